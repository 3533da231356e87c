/* objective.c - the command's words for terms, decays, normalisers and lists, parsed into an oh_objective. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <onehead/onehead.h>

#include "status.h"

static const char *const term_names[OH_TERM_COUNT] = {"ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "cap"};

const char *oh_term_name(int32_t term) {
    return term >= 0 && term < OH_TERM_COUNT ? term_names[term] : NULL;
}

/* One item of a list that commas separate; empty items count. */
typedef struct oh_word {
    const char *text;
    size_t length;
} oh_word;

static int next_word(const char **rest, oh_word *word) {
    if (!*rest) return 0;
    word->text = *rest;
    const char *comma = strchr(*rest, ',');
    word->length = comma ? (size_t)(comma - *rest) : strlen(*rest);
    *rest = comma ? comma + 1 : NULL;
    return 1;
}

static int word_is(oh_word word, const char *text) {
    return strlen(text) == word.length && memcmp(word.text, text, word.length) == 0;
}

/* A finite number that fills the whole word. */
static int parse_number(oh_word word, double *number) {
    char buffer[64];
    if (word.length == 0 || word.length >= sizeof buffer) return 0;
    memcpy(buffer, word.text, word.length);
    buffer[word.length] = '\0';
    if (strspn(buffer, "0123456789+-.eE") != word.length) return 0; /* strtod also takes spaces, hex, inf and nan */
    char *end = NULL;
    *number = strtod(buffer, &end);
    return *end == '\0' && isfinite(*number);
}

oh_status oh_objective_set_terms(oh_objective *objective, const char *text, oh_error *error) {
    double lambda[OH_TERM_COUNT] = {0};
    uint32_t terms = 0;
    oh_word item;
    for (const char *rest = text; next_word(&rest, &item);) {
        const char *equals = memchr(item.text, '=', item.length);
        const oh_word name = {item.text, equals ? (size_t)(equals - item.text) : item.length};
        int32_t term = 0;
        while (term < OH_TERM_COUNT && !word_is(name, term_names[term]))
            ++term;
        if (term == OH_TERM_COUNT)
            return oh_fail(error, OH_INVALID_ARGUMENT,
                           "terms '%s': unknown term '%.*s', expected ce, kl, rkl, jsd, tv, nla, lk_hybrid or cap",
                           text, (int)name.length, name.text);
        if (terms & OH_TERM_BIT(term))
            return oh_fail(error, OH_INVALID_ARGUMENT, "terms '%s': '%s' is given twice", text, term_names[term]);
        lambda[term] = 1;
        if (equals) {
            const oh_word number = {equals + 1, item.length - name.length - 1};
            if (!parse_number(number, &lambda[term]))
                return oh_fail(error, OH_INVALID_ARGUMENT,
                               "terms '%s': the weight '%.*s' of '%s' is not a finite number", text, (int)number.length,
                               number.text, term_names[term]);
        }
        terms |= OH_TERM_BIT(term);
    }
    memcpy(objective->lambda, lambda, sizeof lambda);
    objective->terms = terms;
    return OH_OK;
}

oh_status oh_objective_set_decay(oh_objective *objective, const char *text, oh_error *error) {
    static const struct {
        const char *name;
        int32_t decay;
        const char *expected;
    } decays[] = {
        {"exp", OH_DECAY_EXP, "exp:GAMMA with a finite GAMMA > 0"},
        {"power", OH_DECAY_POWER, "power:GAMMA with a finite GAMMA > 0"},
        {"dpace", OH_DECAY_DPACE, "dpace:A with 0 <= A <= 1"},
    };
    if (strcmp(text, "none") == 0) {
        objective->decay = OH_DECAY_NONE;
        objective->decay_param = 0;
        return OH_OK;
    }
    const char *colon = strchr(text, ':');
    const oh_word name = {text, colon ? (size_t)(colon - text) : strlen(text)};
    for (size_t i = 0; i < sizeof decays / sizeof decays[0]; ++i) {
        if (!word_is(name, decays[i].name)) continue;
        double value = 0;
        const oh_word number = {colon ? colon + 1 : "", colon ? strlen(colon + 1) : 0};
        const int parsed = parse_number(number, &value);
        const int in_range = decays[i].decay == OH_DECAY_DPACE ? value >= 0 && value <= 1 : value > 0;
        if (!parsed || !in_range)
            return oh_fail(error, OH_INVALID_ARGUMENT, "decay '%s': expected %s", text, decays[i].expected);
        objective->decay = decays[i].decay;
        objective->decay_param = value;
        return OH_OK;
    }
    return oh_fail(error, OH_INVALID_ARGUMENT, "decay '%s': unknown, expected none, exp:GAMMA, power:GAMMA or dpace:A",
                   text);
}

oh_status oh_objective_set_norm(oh_objective *objective, const char *text, oh_error *error) {
    static const struct {
        const char *name;
        int32_t norm;
    } norms[] = {{"weights", OH_NORM_WEIGHTS}, {"count", OH_NORM_COUNT}, {"none", OH_NORM_NONE}};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; ++i)
        if (strcmp(text, norms[i].name) == 0) {
            objective->norm = norms[i].norm;
            objective->norm_value = 0;
            return OH_OK;
        }
    double value = 0;
    if (!parse_number((oh_word){text, strlen(text)}, &value) || value < 0)
        return oh_fail(error, OH_INVALID_ARGUMENT,
                       "norm '%s': expected weights, count, none or a finite number that is not negative", text);
    objective->norm = OH_NORM_NUMBER;
    objective->norm_value = value;
    return OH_OK;
}

oh_status oh_objective_set_labels(oh_objective *objective, const char *text, oh_error *error) {
    if (strcmp(text, "target") != 0 && strcmp(text, "given") != 0)
        return oh_fail(error, OH_INVALID_ARGUMENT, "labels '%s': expected target or given", text);
    objective->labels = strcmp(text, "target") == 0 ? OH_LABELS_TARGET : OH_LABELS_GIVEN;
    return OH_OK;
}

oh_status oh_objective_set_gap(oh_objective *objective, const char *text, oh_error *error) {
    if (strcmp(text, "stop") != 0 && strcmp(text, "skip") != 0)
        return oh_fail(error, OH_INVALID_ARGUMENT, "gap '%s': expected stop or skip", text);
    objective->gap = strcmp(text, "stop") == 0 ? OH_GAP_STOP : OH_GAP_SKIP;
    return OH_OK;
}

oh_status oh_objective_set_top_k(oh_objective *objective, const char *text, oh_error *error) {
    uint64_t seen = 0; /* bit K - 1 */
    int32_t count = 0;
    oh_word item;
    for (const char *rest = text; next_word(&rest, &item);) {
        double value = 0;
        if (!parse_number(item, &value) || value != floor(value) || value < 1 || value > OH_TOP_K_MAX)
            return oh_fail(error, OH_INVALID_ARGUMENT, "topk '%s': '%.*s' is not a whole number from 1 to %d", text,
                           (int)item.length, item.text, OH_TOP_K_MAX);
        const uint64_t bit = UINT64_C(1) << ((unsigned)value - 1);
        if (!(seen & bit)) ++count;
        seen |= bit;
    }
    if (count > OH_TOP_K_LIST_MAX)
        return oh_fail(error, OH_INVALID_ARGUMENT, "topk '%s': %d different values, at most %d", text, (int)count,
                       OH_TOP_K_LIST_MAX);
    objective->top_k_count = 0;
    for (int32_t k = 1; k <= OH_TOP_K_MAX; ++k)
        if (seen >> (k - 1) & 1) objective->top_k[objective->top_k_count++] = k;
    return OH_OK;
}
