#include "oracle.h"

#include <math.h>
#include <stdlib.h>

#define U ORACLE_U

/* A distribution with what its f32 computation may be off by. */
typedef struct distribution {
    double *p, *log_p, *relative; /* relative error of p; log_p is -inf where p is 0 */
    double lse, log_sum, moment;  /* moment: sum p |x - max| */
    double log_sum_error;
    int32_t argmax;
} distribution;

static double *numbers(int64_t count) {
    double *x = calloc((size_t)(count > 0 ? count : 1), sizeof *x);
    if (!x) abort();
    return x;
}

static distribution open_distribution(const double *x, int64_t count, double error) {
    distribution d = {numbers(count), numbers(count), numbers(count), 0, 0, 0, 0, 0};
    for (int64_t v = 1; v < count; ++v)
        if (x[v] > x[d.argmax]) d.argmax = (int32_t)v;
    const double max = x[d.argmax];
    double sum = 0;
    for (int64_t v = 0; v < count; ++v)
        sum += exp(x[v] - max);
    d.log_sum = log(sum);
    d.lse = max + d.log_sum;
    for (int64_t v = 0; v < count; ++v) {
        d.log_p[v] = (x[v] - max) - d.log_sum;
        d.p[v] = exp(d.log_p[v]);
        if (d.p[v] > 0) d.moment += d.p[v] * (max - x[v]);
    }
    d.log_sum_error = (d.moment + 2) * U + 2 * error;
    for (int64_t v = 0; v < count; ++v)
        d.relative[v] = d.p[v] > 0 ? (max - x[v] + d.moment + 6) * U + 4 * error : 0;
    return d;
}

static void close_distribution(distribution *d) {
    free(d->p);
    free(d->log_p);
    free(d->relative);
}

static double log_mean(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return high == -INFINITY ? -INFINITY : high + log1p(exp(low - high)) - log(2.0);
}

/* Error of log q - log p, formed from t - z and rounded once. */
static double ratio_error(const distribution *p, const distribution *q, int64_t v, double z_error, double t_error) {
    const double ratio = q->log_p[v] - p->log_p[v];
    const double rounding = isfinite(ratio) ? U * fabs(ratio) : 0;
    return rounding + U * (p->log_sum + q->log_sum) + p->log_sum_error + q->log_sum_error + 2 * (z_error + t_error);
}

/* Error of `log`, which is log m - log p (or log q): it moves with the ratio by `share`, q / (p + q) (or p's), and log1p
 * and expm1 add a few roundings of their own. */
static double mixture_error(const distribution *p, const distribution *q, int64_t v, double share, double log,
                            double z_error, double t_error) {
    const double own = 16 * U * (isfinite(log) ? fabs(log) : 0);
    return isfinite(p->log_p[v]) && isfinite(q->log_p[v]) ? share * ratio_error(p, q, v, z_error, t_error) + own : own;
}

/* a / (a + b), a little above for what the errors of a and b do to it; 1 where both underflow. */
static double share_of(double a, double b) {
    return a + b > 0 ? fmin(1, 1.01 * a / (a + b)) : 1;
}

static double p_error(const distribution *d, int64_t v) {
    /* expf's smallest results are subnormal: absolute steps of 2^-149. */
    return d->p[v] * d->relative[v] + 0x1p-148;
}

/* Whether rounding may decide p <= q either way. */
static int undecided(const distribution *p, const distribution *q, int64_t v) {
    return fabs(p->p[v] - q->p[v]) <= p_error(p, v) + p_error(q, v);
}

static void measure_divergences(const double *z, const double *t, const distribution *p, const distribution *q,
                                int64_t count, double z_error, double t_error, oracle_row *r) {
    double kl = 0, kl_bound = 0, rkl = 0, rkl_bound = 0, kl_size = 0, rkl_size = 0;
    for (int64_t v = 0; v < count; ++v) {
        if (t[v] > -INFINITY) kl += z[v] > -INFINITY ? q->p[v] * (q->log_p[v] - p->log_p[v]) : INFINITY;
        if (z[v] > -INFINITY) rkl += t[v] > -INFINITY ? p->p[v] * (p->log_p[v] - q->log_p[v]) : INFINITY;
        if (!(z[v] > -INFINITY && t[v] > -INFINITY)) continue;
        /* The library sums the difference of the offsets from the maxima, which has the logs of the sums in it. */
        const double size = fabs(q->log_p[v] - p->log_p[v]) + fabs(q->log_sum - p->log_sum);
        kl_size += q->p[v] * size;
        rkl_size += p->p[v] * size;
        kl_bound += q->p[v] * (q->relative[v] * size + 2 * (z_error + t_error));
        rkl_bound += p->p[v] * (p->relative[v] * size + 2 * (z_error + t_error));
    }
    const double logs = p->log_sum_error + q->log_sum_error;
    r->kl = (oracle_figure){kl, kl_bound + kl_size * q->log_sum_error + logs + 1e-13};
    r->rkl = (oracle_figure){rkl, rkl_bound + rkl_size * p->log_sum_error + logs + 1e-13};
}

static void measure_overlap(const distribution *p, const distribution *q, int64_t count, double z_error, double t_error,
                            oracle_row *r) {
    double jsd_bound = 0, kl_pm_bound = 0;
    for (int64_t v = 0; v < count; ++v) {
        const double a = p->p[v], b = q->p[v], error = p_error(p, v) + p_error(q, v);
        r->alpha.value += a < b ? a : b;
        r->alpha.bound += error;
        r->tv.value += b > a ? b - a : 0;
        r->tv.bound += error + U * fabs(b - a);
        if (a <= b) r->p_le.value += a;
        r->p_le.bound += undecided(p, q, v) ? a : p_error(p, v);
        const double log_m = log_mean(p->log_p[v], q->log_p[v]);
        const double of_p = a > 0 ? p->log_p[v] - log_m : 0, of_q = b > 0 ? q->log_p[v] - log_m : 0;
        const double p_apart = mixture_error(p, q, v, share_of(b, a), of_p, z_error, t_error);
        const double q_apart = mixture_error(p, q, v, share_of(a, b), of_q, z_error, t_error);
        r->kl_pm.value += a * of_p;
        r->jsd.value += 0.5 * (a * of_p + b * of_q);
        kl_pm_bound += p_error(p, v) * fabs(of_p) + a * p_apart;
        jsd_bound += p_error(p, v) * fabs(of_p) + a * p_apart + p_error(q, v) * fabs(of_q) + b * q_apart;
    }
    r->kl_pm.bound = kl_pm_bound + 1e-13;
    r->jsd.bound = 0.5 * jsd_bound + 1e-13;
    r->alpha.bound += 1e-13;
    r->tv.bound += 1e-13;
    r->p_le.bound += 1e-13;
}

void oracle_measure(const double *z, const double *t, int64_t count, int32_t label, double z_error, double t_error,
                    oracle_row *row) {
    const oracle_row empty = {0};
    distribution p = open_distribution(z, count, z_error);
    *row = empty;
    row->z_argmax = p.argmax;
    row->t_argmax = -1;
    row->lse = (oracle_figure){p.lse, p.log_sum_error + 1e-15 * fabs(p.lse) + z_error};
    double second = 0;
    for (int64_t v = 0; v < count; ++v) {
        if (z[v] == -INFINITY) continue;
        const double x = z[p.argmax] - z[v];
        row->total.value += z[v];
        row->total.bound += z_error + 1e-15 * (double)count * fabs(z[v]);
        row->entropy.value -= p.p[v] * p.log_p[v];
        second += p.p[v] * x * x;
    }
    /* log sum - dot / sum: the normaliser's error, the terms' and the normaliser's again, on M. */
    row->entropy.bound = p.log_sum_error + U * (second + 2 * p.moment) + p.moment * p.log_sum_error +
                         2 * z_error * (1 + p.moment + p.log_sum) + 1e-13;
    for (int64_t v = 0; v < count; ++v)
        row->rank += label >= 0 && (z[v] > z[label] || (z[v] == z[label] && v < label));
    if (t) {
        distribution q = open_distribution(t, count, t_error);
        row->t_argmax = q.argmax;
        row->t_lse = (oracle_figure){q.lse, q.log_sum_error + 1e-15 * fabs(q.lse) + t_error};
        measure_divergences(z, t, &p, &q, count, z_error, t_error, row);
        measure_overlap(&p, &q, count, z_error, t_error, row);
        close_distribution(&q);
    }
    close_distribution(&p);
}

void oracle_terms(const oh_objective *o, const double *z, const double *t, int64_t count, int32_t label,
                  double term[OH_TERM_COUNT]) {
    oracle_row r;
    distribution p = open_distribution(z, count, 0);
    oracle_measure(z, t, count, label, 0, 0, &r);
    const double e = o->label_smoothing, u = exp(-o->eta * r.alpha.value);
    double mean_log_p = 0;
    for (int64_t v = 0; e != 0 && v < count; ++v)
        mean_log_p += p.log_p[v] / (double)count;
    term[OH_TERM_CE] = -(1 - e) * p.log_p[label] - e * mean_log_p + o->z_loss * p.lse * p.lse;
    term[OH_TERM_KL] = r.kl.value;
    term[OH_TERM_RKL] = r.rkl.value;
    term[OH_TERM_JSD] = r.jsd.value;
    term[OH_TERM_TV] = r.tv.value;
    term[OH_TERM_NLA] = -log(fmax(r.alpha.value, 1e-5));
    term[OH_TERM_LK_HYBRID] = u * r.kl.value + (1 - u) * r.tv.value;
    term[OH_TERM_CAP] = p.argmax == label ? r.entropy.value : 0;
    close_distribution(&p);
}

/* The table's gradient at one column, and its bound: each factor's own error (relative of p, ratio, the row figure)
 * times what it multiplies, and 8 roundings of the linear form's sums and products. */
typedef struct column {
    double p, q, dp, dq; /* probabilities and their errors */
    double ratio, ratio_error, g, g_error, log_p, log_p_error;
    double le; /* [p <= q] */
    int undecided, is_label;
} column;

static oracle_figure times(double factor, oracle_figure f) {
    return (oracle_figure){factor * f.value, fabs(factor) * f.bound};
}

static oracle_figure sum_of(oracle_figure a, oracle_figure b) {
    return (oracle_figure){a.value + b.value, a.bound + b.bound};
}

/* p times a factor (a - b), each with its error. */
static oracle_figure weighted(const column *c, double a, double a_error, double b, double b_error) {
    const double size = fabs(a) + fabs(b);
    return (oracle_figure){c->p * (a - b), c->dp * size + c->p * (a_error + b_error + 8 * U * size)};
}

static oracle_figure kl_grad(const column *c) {
    return (oracle_figure){c->p - c->q, c->dp + c->dq + 8 * U * (c->p + c->q)};
}

static oracle_figure tv_grad(const column *c, const oracle_row *r) {
    oracle_figure f = weighted(c, r->p_le.value, r->p_le.bound, c->le, 0);
    if (c->undecided) f.bound += c->p;
    return f;
}

static oracle_figure column_grad(const oh_objective *o, const oracle_row *r, const column *c, int64_t count,
                                 int32_t label) {
    oracle_figure sum = {0, 0};
    const double *lambda = o->lambda, alpha = r->alpha.value, e = o->label_smoothing;
    if (lambda[OH_TERM_CE] != 0) {
        oracle_figure f = weighted(c, 1, 0, -2 * o->z_loss * r->lse.value, 2 * o->z_loss * r->lse.bound);
        const double less = (1 - e) * c->is_label + e / (double)count;
        f = sum_of(f, (oracle_figure){-less, 8 * U * less});
        sum = sum_of(sum, times(lambda[OH_TERM_CE], f));
    }
    if (lambda[OH_TERM_KL] != 0) sum = sum_of(sum, times(lambda[OH_TERM_KL], kl_grad(c)));
    if (lambda[OH_TERM_RKL] != 0)
        sum =
            sum_of(sum, times(lambda[OH_TERM_RKL], weighted(c, -c->ratio, c->ratio_error, r->rkl.value, r->rkl.bound)));
    if (lambda[OH_TERM_JSD] != 0)
        sum =
            sum_of(sum, times(lambda[OH_TERM_JSD] / 2, weighted(c, -c->g, c->g_error, r->kl_pm.value, r->kl_pm.bound)));
    if (lambda[OH_TERM_TV] != 0) sum = sum_of(sum, times(lambda[OH_TERM_TV], tv_grad(c, r)));
    if (lambda[OH_TERM_NLA] != 0 && alpha >= 1e-5) {
        oracle_figure f = times(1 / alpha, tv_grad(c, r));
        f.bound += fabs(f.value) * r->alpha.bound / alpha;
        sum = sum_of(sum, times(lambda[OH_TERM_NLA], f));
    }
    if (lambda[OH_TERM_LK_HYBRID] != 0) {
        const double u = exp(-o->eta * alpha);
        const oracle_figure kl = kl_grad(c), tv = tv_grad(c, r);
        oracle_figure f = sum_of(times(u, kl), times(1 - u, tv));
        f.bound += o->eta * u * r->alpha.bound * (fabs(kl.value) + fabs(tv.value));
        sum = sum_of(sum, times(lambda[OH_TERM_LK_HYBRID], f));
    }
    if (lambda[OH_TERM_CAP] != 0 && r->z_argmax == label)
        sum = sum_of(sum, times(lambda[OH_TERM_CAP],
                                weighted(c, -c->log_p, c->log_p_error, r->entropy.value, r->entropy.bound)));
    /* Coefficients of log p that cancel between terms do so up to their rounding. */
    const double logs = fabs(lambda[OH_TERM_RKL]) + fabs(lambda[OH_TERM_JSD]) + fabs(lambda[OH_TERM_CAP]);
    if (c->p > 0) sum.bound += 4 * U * logs * c->p * fabs(c->log_p);
    return sum;
}

void oracle_grad(const oh_objective *o, const double *z, const double *t, int64_t count, int32_t label, double z_error,
                 double t_error, double *dz, double *bound) {
    oracle_row r;
    distribution p = open_distribution(z, count, z_error), q = {0};
    oracle_measure(z, t, count, label, z_error, t_error, &r);
    if (t) q = open_distribution(t, count, t_error);
    for (int64_t v = 0; v < count; ++v) {
        dz[v] = 0;
        if (bound) bound[v] = 0;
        if (z[v] == -INFINITY) continue;
        column c = {.p = p.p[v], .dp = p_error(&p, v), .log_p = p.log_p[v], .is_label = v == label};
        c.log_p_error = U * (3 * fabs(c.log_p) + p.log_sum) + p.log_sum_error + 2 * z_error;
        if (t) {
            c.q = q.p[v];
            c.dq = p_error(&q, v);
            c.ratio = q.log_p[v] - p.log_p[v];
            c.ratio_error = ratio_error(&p, &q, v, z_error, t_error);
            c.g = log_mean(p.log_p[v], q.log_p[v]) - p.log_p[v];
            c.g_error = mixture_error(&p, &q, v, share_of(c.q, c.p), c.g, z_error, t_error);
            c.le = c.p <= c.q;
            c.undecided = undecided(&p, &q, v);
        }
        const oracle_figure f = column_grad(o, &r, &c, count, label);
        dz[v] = f.value;
        if (bound) bound[v] = f.bound;
    }
    close_distribution(&p);
    if (t) close_distribution(&q);
}

double oracle_transform(double raw, double scale, double bias, double softcap, double *slope) {
    if (raw == -INFINITY || bias == -INFINITY) {
        *slope = 0;
        return -INFINITY;
    }
    const double x = scale * raw + bias;
    if (softcap == 0) {
        *slope = scale;
        return x;
    }
    const double y = tanh(x / softcap);
    *slope = scale * (1 - y * y);
    return softcap * y;
}

void oracle_top_k(const double *z, int64_t count, int32_t top_k, int32_t *ids) {
    for (int32_t k = 0; k < top_k; ++k) {
        ids[k] = -1;
        for (int64_t v = 0; v < count; ++v) {
            int taken = 0;
            for (int32_t i = 0; i < k; ++i)
                taken |= ids[i] == v;
            if (!taken && (ids[k] < 0 || z[v] > z[ids[k]])) ids[k] = (int32_t)v;
        }
    }
}
