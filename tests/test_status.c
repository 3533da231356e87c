/* A failure is one line of UTF-8, whatever went into it; codes and dtypes have names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include <onehead/onehead.h>

#include "status.h"

static void failure_is_returned_and_written(void **state) {
    (void)state;
    oh_error error = {.status = OH_OK};
    assert_int_equal(oh_fail(&error, OH_BAD_DATA, "rows %d, wanted %s", 40, "a multiple of 16"), OH_BAD_DATA);
    assert_int_equal(error.status, OH_BAD_DATA);
    assert_string_equal(error.message, "rows 40, wanted a multiple of 16");
    assert_int_equal(oh_fail(NULL, OH_IO, "%s", "nowhere to say it"), OH_IO);
}

static void message_may_be_wrapped_in_place(void **state) {
    (void)state;
    oh_error error = {.status = OH_OK};
    oh_fail(&error, OH_IO, "inner");
    assert_int_equal(oh_fail(&error, error.status, "outer: %s", error.message), OH_IO);
    assert_string_equal(error.message, "outer: inner");
}

static void control_characters_and_bad_bytes_become_question_marks(void **state) {
    (void)state;
    static const struct {
        const char *given, *wanted;
    } cases[] = {
        {"a\nb\tc\x7f", "a?b?c?"},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff\xfe.", "??."},
        {"\xc2\x85.", "??."},           /* C1 */
        {"\xc0\xaf.", "??."},           /* overlong */
        {"\xe0\x80\xaf.", "???."},      /* overlong */
        {"\xed\xa0\x80.", "???."},      /* surrogate */
        {"\xf4\x90\x80\x80.", "????."}, /* beyond U+10FFFF */
        {"\xf0\x8f\xbf\xbf.", "????."}, /* overlong */
        {"\xe2\x82.", "??."},           /* cut short inside */
        {"x\xe2\x82", "x"},             /* cut short at the end: what a truncation leaves */
        {"\xbf", "?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        oh_error error = {.message = ""};
        oh_fail(&error, OH_IO, "%s", cases[i].given);
        assert_string_equal(error.message, cases[i].wanted);
    }
}

static void long_message_is_cut_between_characters(void **state) {
    (void)state;
    enum { SIZE = sizeof(((oh_error *)0)->message) };
    char text[SIZE + 40];
    for (size_t lead = 0; lead < 3; ++lead) {
        memset(text, 'x', lead);
        for (size_t at = lead; at + 3 < sizeof text; at += 3)
            memcpy(text + at, "\xe2\x82\xac", 4);
        oh_error error;
        oh_fail(&error, OH_IO, "%s", text);
        const size_t length = strlen(error.message);
        assert_in_range(length, SIZE - 3, SIZE - 1);
        assert_int_equal((length - lead) % 3, 0);
        assert_memory_equal(error.message, text, length);
    }
}

static void every_status_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int a = OH_OK; a <= OH_OVERFLOW; ++a) {
        assert_string_not_equal(oh_status_name((oh_status)a), "unknown status");
        for (int b = OH_OK; b < a; ++b)
            assert_string_not_equal(oh_status_name((oh_status)a), oh_status_name((oh_status)b));
    }
    assert_string_equal(oh_status_name((oh_status)12), "unknown status");
}

static void dtypes_have_names_and_sizes(void **state) {
    (void)state;
    static const struct {
        int32_t dtype;
        const char *name;
        int64_t size;
    } wanted[] = {{OH_F32, "f32", 4}, {OH_BF16, "bf16", 2}, {OH_F16, "f16", 2}, {OH_F64, "f64", 8},
                  {OH_I32, "i32", 4}, {OH_I64, "i64", 8},   {OH_U8, "u8", 1},   {OH_BOOL, "bool", 1}};
    assert_int_equal(sizeof wanted / sizeof *wanted, OH_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
        assert_string_equal(oh_dtype_name(wanted[i].dtype), wanted[i].name);
        assert_int_equal(oh_dtype_size(wanted[i].dtype), wanted[i].size);
    }
    assert_string_equal(oh_dtype_name(-1), "unknown dtype");
    assert_int_equal(oh_dtype_size(-1), 0);
    assert_int_equal(oh_dtype_size(OH_DTYPE_COUNT), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_is_returned_and_written),
        cmocka_unit_test(message_may_be_wrapped_in_place),
        cmocka_unit_test(control_characters_and_bad_bytes_become_question_marks),
        cmocka_unit_test(long_message_is_cut_between_characters),
        cmocka_unit_test(every_status_has_a_name_of_its_own),
        cmocka_unit_test(dtypes_have_names_and_sizes),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
