/* The command whose 1st, 2nd, 3rd ... allocation fails, until none is left to fail: exit code 5 and one line that says
 * why, no output half written, the files that were there before kept, and nothing leaked (AddressSanitizer's build says
 * so at the end). The subcommands run in this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "failing_alloc.h"
#include "safetensors_write.h"

enum { PATH_SIZE = 400, ARGUMENTS_MOST = 24, OUTPUTS_MOST = 3, TEXT_SIZE = 4000 };

static char folder[60];
static int said, nowhere; /* where the commands' stderr and stdout go */

typedef struct path {
    char text[PATH_SIZE];
} path;

static path in_folder(const char *name) {
    path p;
    snprintf(p.text, sizeof p.text, "%s/%s", folder, name);
    return p;
}

static void write_text(const char *name, const char *text) {
    FILE *const file = fopen(in_folder(name).text, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static bool holds_text(const char *name, const char *text) {
    char read[100] = "";
    FILE *const file = fopen(in_folder(name).text, "r");
    if (file == NULL) return false;
    const size_t size = fread(read, 1, sizeof read - 1, file);
    (void)fclose(file);
    return size == strlen(text) && memcmp(read, text, size) == 0;
}

static int temporaries(void) {
    int count = 0;
    DIR *const entries = opendir(folder);
    assert_non_null(entries);
    for (const struct dirent *e; (e = readdir(entries)) != NULL;)
        count += strstr(e->d_name, ".tmp") != NULL;
    (void)closedir(entries);
    return count;
}

/* ------------------------------------------------------------------------------------------------------- a case ---- */

typedef struct command_case {
    command_function *run;
    const char *arguments; /* separated by spaces; '@' stands for the folder */
    const char *outputs[OUTPUTS_MOST];
    int least;           /* allocations that it must have, so that a case that does nothing is noticed */
    int stride;          /* of a long one only every so many are failed; 0: all */
    bool may_do_without; /* an allocation that fails may cost no more than what it was for */
} command_case;

static int run_command(const command_case *c, int64_t nth, bool lasting, int64_t *asked) {
    char text[1000], *argv[ARGUMENTS_MOST + 1];
    size_t used = 0;
    for (const char *at = c->arguments; *at != '\0'; at++) {
        assert_true(used + sizeof folder < sizeof text);
        if (*at == '@')
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", folder);
        else
            text[used++] = *at;
    }
    text[used] = '\0';
    int argc = 0;
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(argc < ARGUMENTS_MOST);
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    assert_int_equal(ftruncate(said, 0), 0);
    assert_int_equal(lseek(said, 0, SEEK_SET), 0);
    (void)fflush(NULL);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    assert_true(out >= 0 && err >= 0 && dup2(nowhere, STDOUT_FILENO) >= 0 && dup2(said, STDERR_FILENO) >= 0);
    failing_alloc_arm(nth, lasting);
    const int code = c->run(argc, argv);
    *asked = failing_alloc_disarm();
    (void)fflush(NULL);
    assert_true(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0);
    close(out);
    close(err);
    return code;
}

static void put_old_outputs(const command_case *c) {
    for (int i = 0; i < OUTPUTS_MOST && c->outputs[i] != NULL; i++)
        write_text(c->outputs[i], "old");
    (void)unlink(in_folder("resume").text); /* where a pass begins doesn't depend on the one before */
}

static void read_said(char *line) {
    const ssize_t size = pread(said, line, TEXT_SIZE - 1, 0);
    assert_true(size >= 0);
    line[size] = '\0';
}

static void check_failure(const command_case *c, int code, const char *where) {
    char line[TEXT_SIZE];
    read_said(line);
    if (code < 0) fail_msg("%s: nothing failed, and yet: %s", where, line);
    if (code != EXIT_RESOURCE) fail_msg("%s: exit code %d, %s", where, code, line);
    const char *const end = strchr(line, '\n');
    if (strncmp(line, "onehead: ", 9) != 0 || end == NULL || end[1] != '\0')
        fail_msg("%s: expected one line that begins with 'onehead: ', got '%s'", where, line);
    for (int i = 0; i < OUTPUTS_MOST && c->outputs[i] != NULL; i++)
        if (!holds_text(c->outputs[i], "old")) fail_msg("%s: %s was replaced", where, c->outputs[i]);
}

static void check_success(const command_case *c, const char *where) {
    for (int i = 0; i < OUTPUTS_MOST && c->outputs[i] != NULL; i++)
        if (holds_text(c->outputs[i], "old")) fail_msg("%s: %s was not written", where, c->outputs[i]);
}

static void fail_each_allocation(const command_case *c, bool lasting) {
    int64_t nth = 1, allocations = 0, done_without = 0;
    for (bool reached = true; reached; nth += c->stride > 0 ? c->stride : 1) {
        char where[1200];
        snprintf(where, sizeof where, "%s: allocation %lld%s", c->arguments, (long long)nth,
                 lasting ? " and all after it" : "");
        put_old_outputs(c);
        int64_t asked;
        const int code = run_command(c, nth, lasting, &asked);
        reached = asked >= nth;
        allocations = asked;
        if (temporaries() != 0) fail_msg("%s: a temporary file is left", where);
        const bool did_without = code == EXIT_OK && c->may_do_without;
        done_without += reached && did_without;
        if (reached && !did_without)
            check_failure(c, code, where);
        else if (code == EXIT_OK)
            check_success(c, where);
        else
            check_failure(c, -1, where);
    }
    print_message("%6lld allocations%s: %s%s\n", (long long)allocations, done_without > 0 ? " (some not missed)" : "",
                  c->arguments, lasting ? " (lasting)" : "");
    if (allocations < c->least)
        fail_msg("%s: %lld allocations, expected %d", c->arguments, (long long)allocations, c->least);
}

static void check_case(const command_case *c) {
    for (int lasting = 0; lasting < 2; lasting++)
        fail_each_allocation(c, lasting != 0);
}

/* ------------------------------------------------------------------------------------------------------ the cases -- */

#define STEP " --backend template --threads 1 --topk 1,2 "

static void test_run(void **state) {
    (void)state;
    check_case(&(command_case){.run = cmd_run,
                               .arguments = "run @/b0.safetensors --grad @/grad --grad-head --rows @/rows --trace "
                                            "@/trace --json" STEP,
                               .outputs = {"grad", "rows", "trace"},
                               .least = 300});
    check_case(
        &(command_case){.run = cmd_run, .arguments = "run @/b0.safetensors --lm-head @/head.json" STEP, .least = 50});
}

static void test_run_of_many_batches(void **state) {
    (void)state;
    check_case(&(command_case){.run = cmd_run,
                               .arguments = "run @/b0.safetensors @/b1.safetensors --lm-head @/head.safetensors --json "
                                            "--resume @/resume --prefetch 1" STEP,
                               .least = 300,
                               .may_do_without = true}); /* the second of two readers */
    check_case(&(command_case){.run = cmd_run,
                               .arguments = "run @/b0.safetensors @/b1.safetensors --lm-head @/head.safetensors --json "
                                            "--resume @/done" STEP,
                               .least = 200,
                               .may_do_without = true});
}

static void test_plan(void **state) {
    (void)state;
    check_case(&(command_case){.run = cmd_plan,
                               .arguments = "plan --rows 64 --hidden 8 --vocab 19 --json --dot @/dot",
                               .outputs = {"dot"},
                               .least = 300,
                               .stride = 5,
                               .may_do_without = true}); /* a policy to compare with */
    check_case(&(command_case){.run = cmd_plan,
                               .arguments = "plan --rows 64 --hidden 8 --vocab 19 --rate @/rate.json",
                               .least = 5,
                               .may_do_without = true});
}

static void test_backends(void **state) {
    (void)state;
    check_case(&(command_case){.run = cmd_backends, .arguments = "backends template --json", .least = 30});
}

static void test_check(void **state) {
    (void)state;
    check_case(&(command_case){.run = cmd_check,
                               .arguments = "check @/b0.safetensors --golden @/golden.json --json" STEP,
                               .least = 300,
                               .stride = 7,
                               .may_do_without = true});
}

/* ------------------------------------------------------------------------------------------------- what they read -- */

static void write_batch(const char *name, bool with_head) {
    enum { ROWS = 32, HIDDEN = 8, VOCAB = 19 };
    static const int64_t hidden[] = {ROWS, HIDDEN}, head[] = {VOCAB, HIDDEN}, bias[] = {VOCAB};
    const st_declaration all[] = {{"draft_hidden", ST_F32, 2, hidden},
                                  {"target_hidden", ST_F32, 2, hidden},
                                  {"bias", ST_F16, 1, bias},
                                  {"lm_head", ST_F32, 2, head}};
    float values[ROWS * HIDDEN];
    for (int i = 0; i < ROWS * HIDDEN; i++)
        values[i] = (float)((i * 37 + 11) % 64 - 32) / 16;
    static const uint16_t zeros[VOCAB];
    const void *const data[] = {values, values, zeros, values};
    const size_t bytes[] = {sizeof values, sizeof values, sizeof zeros, sizeof(float) * VOCAB * HIDDEN};
    st_writer *writer;
    oh_error error;
    const size_t count = with_head ? 4 : 3;
    assert_int_equal(st_writer_begin(&writer, in_folder(name).text, all, count, NULL, 0, &error), OH_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(st_writer_write(writer, all[i].name, data[i], bytes[i], &error), OH_OK);
    assert_int_equal(st_writer_finish(writer, &error), OH_OK);
}

static int make_folder(void **state) {
    (void)state;
    /* Where there is no disk behind it: every success is flushed. */
    snprintf(folder, sizeof folder, "%s/onehead_memory_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(folder));
    write_batch("b0.safetensors", true);
    write_batch("b1.safetensors", true);
    write_batch("head.safetensors", true);
    write_text("head.json", "{\"weight_map\": {\"lm_head\": \"head.safetensors\"}}");
    write_text("golden.json", "{\"b0.safetensors\": {\"set\": {\"args\": \"--terms kl=1\", \"supervised\": 30}}}");
    write_text("rate.json",
               "{\"benchmarks\": [{\"policy\": \"cached\", \"ratio_to_gemms\": 1.2, \"flops_per_second\": 9e9}]}");
    said = open(in_folder("stderr").text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_true(said >= 0 && nowhere >= 0);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    DIR *const entries = opendir(folder);
    for (const struct dirent *e; entries != NULL && (e = readdir(entries)) != NULL;)
        (void)unlink(in_folder(e->d_name).text);
    if (entries != NULL) (void)closedir(entries);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),   cmocka_unit_test(test_run_of_many_batches),
        cmocka_unit_test(test_plan),  cmocka_unit_test(test_backends),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
