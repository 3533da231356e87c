/* The command's words become an objective, or a line that says which word has no meaning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <onehead/onehead.h>

static oh_objective defaults(void) {
    oh_request r;
    oh_request_init(&r);
    return r.objective;
}

static void test_defaults_are_the_design_s(void **state) {
    (void)state;
    const oh_objective o = defaults();
    assert_int_equal(o.terms, OH_TERM_BIT(OH_TERM_KL));
    assert_true(o.lambda[OH_TERM_KL] == 1 && o.eta == 3 && o.upstream == 1);
    assert_int_equal(o.labels, OH_LABELS_TARGET);
    assert_int_equal(o.decay, OH_DECAY_EXP);
    assert_true(o.decay_param == 10);
    assert_int_equal(o.norm, OH_NORM_WEIGHTS);
    assert_int_equal(o.gap, OH_GAP_STOP);
    assert_int_equal(o.block_size, 16);
    assert_int_equal(o.first_slot, 1);
    assert_int_equal(o.top_k_count, 3);
    assert_int_equal(o.top_k[2], 8);
}

static void test_terms_are_read_with_their_weights(void **state) {
    (void)state;
    oh_objective o = defaults();
    assert_int_equal(oh_objective_set_terms(&o, "ce=0.1,tv=9e-1,cap=-2", NULL), OH_OK);
    assert_int_equal(o.terms, OH_TERM_BIT(OH_TERM_CE) | OH_TERM_BIT(OH_TERM_TV) | OH_TERM_BIT(OH_TERM_CAP));
    assert_true(o.lambda[OH_TERM_CE] == 0.1 && o.lambda[OH_TERM_TV] == 0.9 && o.lambda[OH_TERM_CAP] == -2);
    assert_true(o.lambda[OH_TERM_KL] == 0);
    assert_int_equal(oh_objective_set_terms(&o, "kl", NULL), OH_OK); /* no number: 1 */
    assert_true(o.lambda[OH_TERM_KL] == 1 && o.lambda[OH_TERM_CE] == 0);
    assert_int_equal(oh_objective_set_terms(&o, "kl=0,ce", NULL), OH_OK); /* reported, though it weighs nothing */
    assert_int_equal(o.terms, OH_TERM_BIT(OH_TERM_CE) | OH_TERM_BIT(OH_TERM_KL));
}

static void test_top_k_is_sorted_and_free_of_repeats(void **state) {
    (void)state;
    oh_objective o = defaults();
    assert_int_equal(oh_objective_set_top_k(&o, "64,1,8,8,3", NULL), OH_OK);
    assert_int_equal(o.top_k_count, 4);
    const int32_t expected[] = {1, 3, 8, 64};
    assert_memory_equal(o.top_k, expected, sizeof expected);
}

static void test_decays_and_norms(void **state) {
    (void)state;
    oh_objective o = defaults();
    assert_int_equal(oh_objective_set_decay(&o, "dpace:0.5", NULL), OH_OK);
    assert_true(o.decay == OH_DECAY_DPACE && o.decay_param == 0.5);
    assert_int_equal(oh_objective_set_decay(&o, "power:0.9", NULL), OH_OK);
    assert_true(o.decay == OH_DECAY_POWER && o.decay_param == 0.9);
    assert_int_equal(oh_objective_set_decay(&o, "none", NULL), OH_OK);
    assert_int_equal(o.decay, OH_DECAY_NONE);
    assert_int_equal(oh_objective_set_norm(&o, "count", NULL), OH_OK);
    assert_int_equal(o.norm, OH_NORM_COUNT);
    assert_int_equal(oh_objective_set_norm(&o, "1234.5", NULL), OH_OK);
    assert_true(o.norm == OH_NORM_NUMBER && o.norm_value == 1234.5);
    assert_int_equal(oh_objective_set_gap(&o, "skip", NULL), OH_OK);
    assert_int_equal(o.gap, OH_GAP_SKIP);
    assert_int_equal(oh_objective_set_labels(&o, "given", NULL), OH_OK);
    assert_int_equal(o.labels, OH_LABELS_GIVEN);
}

static void test_words_without_meaning_are_named_and_change_nothing(void **state) {
    (void)state;
    static const struct {
        oh_status (*set)(oh_objective *, const char *, oh_error *);
        const char *text, *message;
    } cases[] = {
        {oh_objective_set_terms, "kl=1,kk=2",
         "terms 'kl=1,kk=2': unknown term 'kk', expected ce, kl, rkl, jsd, tv, nla, lk_hybrid or cap"},
        {oh_objective_set_terms, "", "terms '': unknown term '', expected ce, kl, rkl, jsd, tv, nla, lk_hybrid or cap"},
        {oh_objective_set_terms, "kl=1,",
         "terms 'kl=1,': unknown term '', expected ce, kl, rkl, jsd, tv, nla, lk_hybrid or cap"},
        {oh_objective_set_terms, "kl=1,kl=2", "terms 'kl=1,kl=2': 'kl' is given twice"},
        {oh_objective_set_terms, "kl=", "terms 'kl=': the weight '' of 'kl' is not a finite number"},
        {oh_objective_set_terms, "kl=1x", "terms 'kl=1x': the weight '1x' of 'kl' is not a finite number"},
        {oh_objective_set_terms, "kl=nan", "terms 'kl=nan': the weight 'nan' of 'kl' is not a finite number"},
        {oh_objective_set_terms, "kl=1e999", "terms 'kl=1e999': the weight '1e999' of 'kl' is not a finite number"},
        {oh_objective_set_decay, "exp", "decay 'exp': expected exp:GAMMA with a finite GAMMA > 0"},
        {oh_objective_set_decay, "exp:0", "decay 'exp:0': expected exp:GAMMA with a finite GAMMA > 0"},
        {oh_objective_set_decay, "dpace:1.5", "decay 'dpace:1.5': expected dpace:A with 0 <= A <= 1"},
        {oh_objective_set_decay, "linear:2",
         "decay 'linear:2': unknown, expected none, exp:GAMMA, power:GAMMA or dpace:A"},
        {oh_objective_set_norm, "-1",
         "norm '-1': expected weights, count, none or a finite number that is not negative"},
        {oh_objective_set_norm, "mean",
         "norm 'mean': expected weights, count, none or a finite number that is not negative"},
        {oh_objective_set_labels, "both", "labels 'both': expected target or given"},
        {oh_objective_set_gap, "", "gap '': expected stop or skip"},
        {oh_objective_set_top_k, "1,0", "topk '1,0': '0' is not a whole number from 1 to 64"},
        {oh_objective_set_top_k, "65", "topk '65': '65' is not a whole number from 1 to 64"},
        {oh_objective_set_top_k, "2.5", "topk '2.5': '2.5' is not a whole number from 1 to 64"},
        {oh_objective_set_top_k, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
         "topk '1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17': 17 different values, at most 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        oh_error error = {OH_OK, ""};
        oh_objective o = defaults();
        const oh_objective before = o;
        assert_int_equal(cases[i].set(&o, cases[i].text, &error), OH_INVALID_ARGUMENT);
        assert_int_equal(error.status, OH_INVALID_ARGUMENT);
        assert_string_equal(error.message, cases[i].message);
        assert_memory_equal(&o, &before, sizeof o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_design_s),
        cmocka_unit_test(test_terms_are_read_with_their_weights),
        cmocka_unit_test(test_top_k_is_sorted_and_free_of_repeats),
        cmocka_unit_test(test_decays_and_norms),
        cmocka_unit_test(test_words_without_meaning_are_named_and_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
