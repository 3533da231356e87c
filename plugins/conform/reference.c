#include "reference.h"

#include <float.h>
#include <math.h>

#define U FLOAT_U
#define FLUSHED 0x1p-126

/* One row of a tile; zeros where there is no drafter or no target. */
typedef struct row_view {
    const double *z, *t, *z_error, *t_error;
    int64_t columns;
    bool has_z, has_t;
} row_view;

static row_view view_row(const tile *t, int64_t row) {
    const int64_t at = row * t->spec.columns;
    return (row_view){t->z + at,       t->t + at,         t->z_error + at,        t->t_error + at,
                      t->spec.columns, !t->spec.no_draft, t->spec.target_rows > 0};
}

static void add(figure *f, double value, double error) {
    f->value += value;
    f->bound += error;
}

/* --------------------------------------------------------------------------------------------- first read ---- */

uint32_t reference_flags(const tile *t, int64_t row) {
    const row_view r = view_row(t, row);
    uint32_t flags = 0;
    for (int64_t v = 0; v < r.columns; ++v) {
        if (r.has_z && !(r.z[v] < (double)INFINITY)) flags |= OH_ROW_Z_BAD;
        if (r.has_t && !(r.t[v] < (double)INFINITY)) flags |= OH_ROW_T_BAD;
        if (r.has_z && r.z[v] == -(double)INFINITY) flags |= OH_ROW_Z_NEG_INF;
        if (r.has_z && r.has_t && r.z[v] == -(double)INFINITY && isfinite(r.t[v])) flags |= OH_ROW_P0_Q;
        if (r.has_z && r.has_t && r.t[v] == -(double)INFINITY && isfinite(r.z[v])) flags |= OH_ROW_Q0_P;
    }
    return flags;
}

/* e^(x - offset) and its error. */
static figure exponential(double x, double offset, double error) {
    if (x == -(double)INFINITY) return (figure){0, 0};
    const double distance = x - offset, e = exp(distance);
    return (figure){e, e * ((2 * fabs(distance) + 8) * U + error) + FLUSHED};
}

row_sums reference_sums(const tile *t, int64_t row, const oh_row_stats *offsets) {
    const row_view r = view_row(t, row);
    const double z_max = (double)offsets->z_max, t_max = (double)offsets->t_max;
    row_sums s = {0};
    double z_size = 0, t_size = 0, dot_size = 0, kl_size = 0, rkl_size = 0, total_size = 0;
    for (int64_t v = 0; v < r.columns; ++v) {
        const bool has_z = r.has_z && r.z[v] > -(double)INFINITY, has_t = r.has_t && r.t[v] > -(double)INFINITY;
        const double x = has_z ? r.z[v] - z_max : 0, y = has_t ? r.t[v] - t_max : 0;
        const figure ez = has_z ? exponential(r.z[v], z_max, r.z_error[v]) : (figure){0, 0};
        const figure et = has_t ? exponential(r.t[v], t_max, r.t_error[v]) : (figure){0, 0};
        add(&s.z_sum, ez.value, ez.bound), z_size += ez.value;
        add(&s.t_sum, et.value, et.bound), t_size += et.value;
        if (has_z) {
            add(&s.z_dot, ez.value * x, ez.bound * fabs(x) + ez.value * (2 * U * fabs(x) + r.z_error[v]));
            dot_size += ez.value * fabs(x);
            add(&s.z_total, r.z[v], r.z_error[v]), total_size += fabs(r.z[v]);
        }
        if (!has_z || !has_t) continue;
        const double apart = y - x, other_way = fabs(r.t[v] - r.z[v]) + fabs(t_max - z_max);
        const double error = 2 * U * (fabs(x) + fabs(y) + fabs(apart)) + U * other_way + r.z_error[v] + r.t_error[v];
        add(&s.kl_dot, et.value * apart, et.bound * fabs(apart) + et.value * error), kl_size += et.value * fabs(apart);
        add(&s.rkl_dot, -ez.value * apart, ez.bound * fabs(apart) + ez.value * error),
            rkl_size += ez.value * fabs(apart);
    }
    const double summing = (double)((r.columns < 256 ? r.columns : 256) + 16) * U;
    s.z_sum.bound += summing * z_size, s.t_sum.bound += summing * t_size;
    s.z_dot.bound += summing * dot_size, s.z_total.bound += summing * total_size;
    if (total_size > (double)FLT_MAX) s.z_total.bound = (double)INFINITY; /* of masked columns, by no f32 */
    s.kl_dot.bound += summing * kl_size, s.rkl_dot.bound += summing * rkl_size;
    return s;
}

/* -------------------------------------------------------------------------------------------- probabilities ---- */

/* A column's probability and its logarithm, by given normalisers. */
typedef struct probability {
    double p, log_p;        /* 0 and -inf for a logit of -inf */
    double relative, error; /* of p */
    double log_error;
} probability;

static probability probability_of(double x, double x_error, double max, double inverse_sum, double log_sum) {
    if (!(x > -(double)INFINITY)) return (probability){0, -(double)INFINITY, 0, 0, 0};
    const double distance = x - max, log_p = distance - log_sum, p = exp(distance) * inverse_sum;
    const double relative = (2 * fabs(distance) + 10) * U + x_error;
    return (probability){p, log_p, relative, p * relative + FLUSHED,
                         2 * U * (fabs(distance) + fabs(log_sum) + fabs(log_p)) + x_error};
}

/* log q - log p may be formed from t - z: see the header. */
static void relate(probability *p, probability *q, double z, double t, double z_max, double t_max) {
    if (!isfinite(z) || !isfinite(t)) return;
    const double other_way = U * (fabs(t - z) + fabs(t_max - z_max));
    p->log_error += other_way;
    q->log_error += other_way;
}

/* Whether rounding may decide p <= q either way, be it formed of probabilities or of logarithms. */
static bool undecided(const probability *p, const probability *q) {
    return fabs(p->p - q->p) <= p->error + q->error + p->p * p->log_error + q->p * q->log_error;
}

/* log ((p + q) / 2), which doesn't underflow. */
static figure log_mixture(const probability *p, const probability *q) {
    const double high = fmax(p->log_p, q->log_p), low = fmin(p->log_p, q->log_p);
    if (high == -(double)INFINITY) return (figure){high, 0};
    const double value = high + log1p(exp(low - high)) - log(2.0);
    return (figure){value, fmax(p->relative, q->relative) + fmax(p->log_error, q->log_error) + 4 * U * fabs(value)};
}

/* ---------------------------------------------------------------------------------------------- second read ---- */

static void add_overlap(row_overlap *o, const probability *p, const probability *q) {
    const double error = p->error + q->error;
    add(&o->alpha, fmin(p->p, q->p), fmax(p->error, q->error));
    const bool below = p->p <= q->p;
    if (!below && !undecided(p, q)) return;
    add(&o->p_le, below ? p->p : 0, undecided(p, q) ? p->p + p->error : p->error);
    add(&o->tv, fmax(q->p - p->p, 0), error + U * fabs(q->p - p->p));
}

/* p (log p - log m). */
static figure mixture_term(const probability *p, const figure *log_m) {
    if (!(p->p > 0) && p->log_p == -(double)INFINITY) return (figure){0, 0};
    const double apart = p->log_p - log_m->value;
    return (figure){p->p * apart, p->error * fabs(apart) + p->p * (p->log_error + log_m->bound + 2 * U * fabs(apart))};
}

/* The label's column is one of the tile's. */
static void add_ranks(row_overlap *o, const tile *t, const row_view *r, const oh_row_stats *s) {
    const int64_t y = (int64_t)s->label - t->spec.first_column;
    if (y < 0 || y >= r->columns) return;
    for (int64_t v = 0; v < r->columns; ++v) {
        const bool tied = r->z[v] == r->z[y], ahead = tied ? v < y : r->z[v] > r->z[y];
        const bool decided = tied || fabs(r->z[v] - r->z[y]) > r->z_error[v] + r->z_error[y];
        o->rank_least += ahead && decided;
        o->rank_most += ahead || !decided;
    }
}

row_overlap reference_overlap(const tile *t, int64_t row, const oh_row_stats *s) {
    const row_view r = view_row(t, row);
    row_overlap o = {0};
    add_ranks(&o, t, &r, s);
    if (!r.has_t) return o;
    double jsd_size = 0, kl_size = 0;
    for (int64_t v = 0; v < r.columns; ++v) {
        probability p = probability_of(r.z[v], r.z_error[v], (double)s->z_max, 1 / s->z_sum, log(s->z_sum));
        probability q = probability_of(r.t[v], r.t_error[v], (double)s->t_max, 1 / s->t_sum, log(s->t_sum));
        relate(&p, &q, r.z[v], r.t[v], (double)s->z_max, (double)s->t_max);
        add_overlap(&o, &p, &q);
        const figure log_m = log_mixture(&p, &q), of_p = mixture_term(&p, &log_m), of_q = mixture_term(&q, &log_m);
        add(&o.kl_pm, of_p.value, of_p.bound), kl_size += fabs(of_p.value);
        add(&o.jsd, (of_p.value + of_q.value) / 2, (of_p.bound + of_q.bound) / 2);
        jsd_size += (fabs(of_p.value) + fabs(of_q.value)) / 2;
    }
    const double summing = (double)((r.columns < 256 ? r.columns : 256) + 16) * U;
    o.alpha.bound += summing * o.alpha.value, o.tv.bound += summing * o.tv.value,
        o.p_le.bound += summing * o.p_le.value;
    o.jsd.bound += summing * jsd_size, o.kl_pm.bound += summing * kl_size;
    return o;
}

/* ------------------------------------------------------------------------------------------------- gradient ---- */

/* c0 + c1 log p + c2 log q + c3 log m + c4 [p <= q]. A coefficient of 0 leaves its term out, 0 * -inf counts as 0. */
static figure grad_factor(const oh_row_coef *c, const probability *p, const probability *q, bool has_target) {
    const double c1 = (double)c->c1, c2 = (double)c->c2, c3 = (double)c->c3, c4 = (double)c->c4;
    figure f = {(double)c->c0, 0};
    double size = fabs(f.value);
    if (c1 != 0) add(&f, c1 * p->log_p, fabs(c1) * p->log_error), size += fabs(c1 * p->log_p);
    if (has_target && c2 != 0) add(&f, c2 * q->log_p, fabs(c2) * q->log_error), size += fabs(c2 * q->log_p);
    if (has_target && c3 != 0) {
        const figure log_m = log_mixture(p, q);
        add(&f, c3 * log_m.value, fabs(c3) * log_m.bound), size += fabs(c3 * log_m.value);
    }
    if (has_target && c4 != 0) {
        if (p->p <= q->p) add(&f, c4, 0), size += fabs(c4);
        if (undecided(p, q)) f.bound += fabs(c4);
    }
    f.bound += 6 * U * size;
    return f;
}

void reference_grad(const tile *t, int64_t row, const oh_row_coef *c, uint32_t form, int32_t out_dtype, double *want,
                    double *bound, double *spread) {
    const row_view r = view_row(t, row);
    const double cq = (double)c->cq, cy = (double)c->cy, ck = (double)c->ck;
    const bool has_target = r.has_t && form & (OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q);
    for (int64_t v = 0; v < r.columns; ++v) {
        want[v] = bound[v] = spread[v] = 0;
        if (c->zero || r.z[v] == -(double)INFINITY) continue;
        probability p = probability_of(r.z[v], r.z_error[v], (double)c->z_max, (double)c->z_inv, (double)c->z_log);
        probability q = {0};
        if (has_target) {
            q = probability_of(r.t[v], r.t_error[v], (double)c->t_max, (double)c->t_inv, (double)c->t_log);
            relate(&p, &q, r.z[v], r.t[v], (double)c->z_max, (double)c->t_max);
        }
        const figure factor = grad_factor(c, &p, &q, has_target);
        const double of_p = p.p * factor.value, of_q = has_target ? cq * q.p : 0;
        const double of_y = v + t->spec.first_column == c->label ? cy : 0;
        const double dz = of_p - of_y - of_q - ck;
        const double error = p.p * factor.bound + p.error * fabs(factor.value) + fabs(cq) * q.error +
                             4 * U * (fabs(of_p) + fabs(of_y) + fabs(of_q) + fabs(ck));
        const int64_t at = row * r.columns + v;
        want[v] = dz * t->slope[at];
        bound[v] = error * fabs(t->slope[at]) + fabs(dz) * t->slope_error[at] + 2 * U * fabs(want[v]);
        bound[v] += float_unit(out_dtype) * (fabs(want[v]) + bound[v]) + float_floor(out_dtype);
        /* Where what differs between columns is less than a rounding, all are ck rounded, by the same error. */
        const bool alike = fabs(of_p - of_y - of_q) * fabs(t->slope[at]) < bound[v] && ck != 0;
        spread[v] = alike || (has_target && c->c4 != 0 && undecided(&p, &q)) ? (double)NAN : bound[v];
    }
}
