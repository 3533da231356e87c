/* The writer's files read back as declared; a failure or an interrupt leaves the folder as it was. */
#define _XOPEN_SOURCE 700

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atomic_file.h"
#include "safetensors_write.h"

static char folder[] = "/tmp/test_safetensors_write.XXXXXX";

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int entries(void) {
    int count = 0;
    DIR *const listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0;
    closedir(listing);
    return count - 1; /* ".." */
}

static void put(const char *path, const char *text) {
    FILE *const out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void assert_holds(const char *path, const char *text) {
    char read[4096] = "";
    FILE *const in = fopen(path, "r");
    assert_non_null(in);
    const size_t size = fread(read, 1, sizeof read - 1, in);
    fclose(in);
    assert_int_equal(size, strlen(text));
    assert_string_equal(read, text);
}

static void assert_says(const oh_error *error, oh_status status, const char *part) {
    assert_int_equal(error->status, status);
    if (strstr(error->message, part) == NULL) fail_msg("'%s' not in '%s'", part, error->message);
}

/* Gives up root for a moment: root may write into read-only folders, and a broken writer run by root would replace
 * /dev/full by a plain file for the whole machine. False when it can't. */
static bool become_nobody(uid_t *before) {
    *before = geteuid();
    return *before != 0 || seteuid(65534) == 0;
}

/* /dev/full, only where it is the device and we can be someone who can't replace it. */
static bool begin_full_device(uid_t *before) {
    struct stat info;
    *before = geteuid();
    return stat("/dev/full", &info) == 0 && S_ISCHR(info.st_mode) && become_nobody(before);
}

static const int64_t shape_f[] = {2, 3};
static const int64_t shape_none[] = {0, 4};
static const int64_t shape_b[] = {5};
static const float floats[] = {1, 2, 3, 4, 5, 6};
static const st_declaration declared[] = {
    {"empty", ST_F64, 2, shape_none},
    {"f", ST_F32, 2, shape_f},
    {"scalar", ST_I32, 0, NULL},
    {"b \"quoted\" \xc3\xa9", ST_BOOL, 1, shape_b},
};
static const st_text metadata[] = {{"format", "pt"}, {"note", "line\nbreak"}};

static oh_status write_all(const char *path, oh_error *error) {
    static const int32_t scalar = -7;
    st_writer *writer;
    oh_status status = st_writer_begin(&writer, path, declared, 4, metadata, 2, error);
    if (status != OH_OK) return status;
    /* Pieces of one, then the rest. */
    status = st_writer_write(writer, "f", floats, 4, error);
    if (status == OH_OK) status = st_writer_write(writer, "f", floats + 1, 20, error);
    if (status == OH_OK) status = st_writer_write(writer, "scalar", &scalar, 4, error);
    if (status == OH_OK) status = st_writer_write(writer, declared[3].name, "\1\0\1\0\1", 5, error);
    if (status == OH_OK) return st_writer_finish(writer, error);
    st_writer_discard(writer);
    return status;
}

static void test_round_trip(void **state) {
    (void)state;
    const char *const path = in_folder("round");
    oh_error error;
    if (write_all(path, &error) != OH_OK) fail_msg("%s", error.message);
    assert_int_equal(entries(), 1);

    st_file *file;
    if (st_open(&file, path, &error) != OH_OK) fail_msg("%s", error.message);
    assert_int_equal(st_count(file), 4);
    assert_string_equal(st_metadata(file, "format"), "pt");
    assert_string_equal(st_metadata(file, "note"), "line\nbreak");
    const st_tensor *const f = st_find(file, "f");
    assert_int_equal(f->dtype, ST_F32);
    assert_int_equal(f->rank, 2);
    assert_int_equal(f->shape[1], 3);
    assert_true(st_is_aligned(f));
    assert_int_equal((uintptr_t)f->data % 8, 0); /* the padding */
    assert_memory_equal(f->data, floats, sizeof floats);
    assert_int_equal(*(const int32_t *)st_find(file, "scalar")->data, -7);
    assert_memory_equal(st_find(file, declared[3].name)->data, "\1\0\1\0\1", 5);
    assert_int_equal(st_find(file, "empty")->shape[1], 4);
    st_close(file);
    unlink(path);
}

static void test_same_input_gives_same_bytes(void **state) {
    (void)state;
    char bytes[2][1024] = {{0}};
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write_all(in_folder("same"), NULL), OH_OK);
        FILE *const in = fopen(in_folder("same"), "rb");
        sizes[i] = fread(bytes[i], 1, sizeof bytes[i], in);
        fclose(in);
    }
    assert_true(sizes[0] > 100 && sizes[0] == sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    unlink(in_folder("same"));
}

static void test_bad_declarations_are_refused_before_any_file(void **state) {
    (void)state;
    static const int64_t negative[] = {-1};
    static const int64_t huge[] = {INT64_MAX};
    static const int64_t half[] = {INT64_MAX / 2 + 1};
    static const struct {
        st_declaration tensors[2];
        st_text texts[2];
        size_t text_count;
        const char *part;
    } cases[] = {
        {{{"a", ST_U8, 1, shape_b}, {"a", ST_U8, 1, shape_b}}, {{0}}, 0, "tensor 'a' is declared twice"},
        {{{"a", ST_U8, 1, shape_b}, {"__metadata__", ST_U8, 1, shape_b}}, {{0}}, 0, "can't be named __metadata__"},
        {{{"a", ST_OPAQUE, 1, shape_b}, {"b", ST_U8, 1, shape_b}}, {{0}}, 0, "tensor 'a': no dtype"},
        {{{"a", ST_U8, 1, negative}, {"b", ST_U8, 1, shape_b}}, {{0}}, 0, "tensor 'a': a negative dimension"},
        {{{"a", ST_U16, 1, huge}, {"b", ST_U8, 1, shape_b}},
         {{0}},
         0,
         "tensor 'a': a negative dimension, or more bytes"},
        {{{"a", ST_U8, 1, half}, {"b", ST_U8, 1, half}}, {{0}}, 0, "tensor 'b': a negative dimension, or more bytes"},
        {{{"\xff", ST_U8, 1, shape_b}, {"b", ST_U8, 1, shape_b}}, {{0}}, 0, "tensor '?': its name isn't UTF-8"},
        {{{"a", ST_U8, 1, shape_b}, {"b", ST_U8, 1, shape_b}},
         {{"k", "1"}, {"k", "2"}},
         2,
         "metadata 'k' is given twice"},
        {{{"a", ST_U8, 1, shape_b}, {"b", ST_U8, 1, shape_b}},
         {{"k", "\xc0\x80"}},
         1,
         "metadata 'k': key or text isn't UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        st_writer *writer = (st_writer *)(uintptr_t)1;
        oh_error error = {0};
        assert_int_equal(st_writer_begin(&writer, in_folder("bad"), cases[i].tensors, 2, cases[i].texts,
                                         cases[i].text_count, &error),
                         OH_INVALID_ARGUMENT);
        assert_null(writer);
        assert_says(&error, OH_INVALID_ARGUMENT, cases[i].part);
        assert_int_equal(entries(), 0);
    }
}

static void test_pieces_must_follow_the_declaration(void **state) {
    (void)state;
    st_writer *writer;
    oh_error error;
    assert_int_equal(st_writer_begin(&writer, in_folder("order"), declared, 4, NULL, 0, &error), OH_OK);
    assert_int_equal(st_writer_write(writer, "scalar", floats, 4, &error), OH_INVALID_ARGUMENT);
    assert_says(&error, OH_INVALID_ARGUMENT,
                "order: 4 bytes for tensor 'scalar', but tensor 'f' comes next and has 0 of 24");
    assert_int_equal(st_writer_write(writer, "f", floats, 25, &error), OH_INVALID_ARGUMENT);
    assert_says(&error, OH_INVALID_ARGUMENT, "25 bytes for tensor 'f', expected at most 24");
    assert_int_equal(st_writer_write(writer, "f", floats, 24, &error), OH_OK);
    assert_int_equal(st_writer_write(writer, "f", floats, 0, &error), OH_OK);
    assert_int_equal(st_writer_write(writer, "scalar", floats, 4, &error), OH_OK);
    assert_int_equal(st_writer_write(writer, declared[3].name, floats, 5, &error), OH_OK);
    assert_int_equal(st_writer_write(writer, "f", floats, 1, &error), OH_INVALID_ARGUMENT);
    assert_says(&error, OH_INVALID_ARGUMENT, "1 bytes for tensor 'f', but every tensor is complete");
    assert_int_equal(st_writer_finish(writer, &error), OH_OK); /* the refused calls wrote nothing */
    st_file *file;
    assert_int_equal(st_open(&file, in_folder("order"), NULL), OH_OK);
    st_close(file);
    unlink(in_folder("order"));
}

static void test_incomplete_tensor_leaves_the_old_file(void **state) {
    (void)state;
    put(in_folder("kept"), "old");
    st_writer *writer;
    oh_error error;
    assert_int_equal(st_writer_begin(&writer, in_folder("kept"), declared, 4, NULL, 0, NULL), OH_OK);
    assert_int_equal(st_writer_write(writer, "f", floats, 8, NULL), OH_OK);
    assert_int_equal(entries(), 2);
    assert_int_equal(st_writer_finish(writer, &error), OH_INVALID_ARGUMENT);
    assert_says(&error, OH_INVALID_ARGUMENT, "kept: tensor 'f' has 8 of 24 bytes");
    assert_int_equal(entries(), 1);
    assert_holds(in_folder("kept"), "old");
    unlink(in_folder("kept"));
}

static void test_discard_leaves_the_old_file(void **state) {
    (void)state;
    put(in_folder("kept"), "old");
    st_writer *writer;
    assert_int_equal(st_writer_begin(&writer, in_folder("kept"), declared, 4, NULL, 0, NULL), OH_OK);
    st_writer_discard(writer);
    st_writer_discard(NULL);
    assert_int_equal(entries(), 1);
    assert_holds(in_folder("kept"), "old");
    unlink(in_folder("kept"));
}

static void test_full_device_is_reported(void **state) {
    (void)state;
    uid_t user;
    if (!begin_full_device(&user)) skip();
    oh_error error;
    const oh_status status = write_all("/dev/full", &error);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(status, OH_IO);
    assert_says(&error, OH_IO, "/dev/full: can't write: No space left on device");
    struct stat info;
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode)); /* not renamed over */
}

static void test_file_size_limit_leaves_nothing(void **state) {
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    put(in_folder("kept"), "old");

    /* Every limit below the size: in the header length, in the header, in the padding, in the data. The write before
     * the limit is a short one. */
    assert_int_equal(write_all(in_folder("whole"), NULL), OH_OK);
    struct stat whole;
    assert_int_equal(stat(in_folder("whole"), &whole), 0);
    for (rlim_t limit = 0; limit < (rlim_t)whole.st_size; limit++) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, before.rlim_max}), 0);
        oh_error error;
        const oh_status status = write_all(in_folder("kept"), &error);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, OH_IO);
        assert_says(&error, OH_IO, "kept: can't write: File too large");
        assert_int_equal(entries(), 2);
    }
    assert_holds(in_folder("kept"), "old");
    unlink(in_folder("kept"));
    unlink(in_folder("whole"));
    signal(SIGXFSZ, handler);
}

static void test_commit_refuses_after_a_failed_write(void **state) {
    (void)state;
    uid_t user;
    if (!begin_full_device(&user)) skip();
    atomic_file *file;
    oh_error error;
    const oh_status opened = atomic_file_open(&file, "/dev/full", &error);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(opened, OH_OK);
    assert_int_equal(atomic_file_write(file, "x", 1, &error), OH_IO);
    assert_int_equal(atomic_file_commit(file, &error), OH_IO);
    assert_says(&error, OH_IO, "/dev/full: not written: an earlier write failed");
}

static void test_impossible_destinations_are_reported(void **state) {
    (void)state;
    put(in_folder("plain"), "x");
    char name[300];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    atomic_file *file;
    oh_error error;
    assert_int_equal(atomic_file_open(&file, in_folder("absent/out"), &error), OH_IO);
    assert_says(&error, OH_IO, "absent/out: can't create: No such file or directory");
    assert_int_equal(atomic_file_open(&file, in_folder("plain/out"), &error), OH_IO);
    assert_says(&error, OH_IO, "plain/out: can't create: Not a directory");
    assert_int_equal(atomic_file_open(&file, in_folder("absent/"), &error), OH_IO);
    assert_says(&error, OH_IO, "absent/: can't create: No such file or directory");
    assert_int_equal(atomic_file_open(&file, "", &error), OH_IO);
    assert_says(&error, OH_IO, "can't create: No such file or directory");
    assert_int_equal(atomic_file_open(&file, folder, &error), OH_IO);
    assert_says(&error, OH_IO, "is a directory, expected a file to write");
    assert_int_equal(atomic_file_open(&file, in_folder(name), &error), OH_IO); /* now, not after hours of work */
    assert_says(&error, OH_IO, "can't create: File name too long");
    assert_null(file);
    assert_int_equal(entries(), 1);
    unlink(in_folder("plain"));
}

static void test_read_only_folder_is_reported(void **state) {
    (void)state;
    uid_t user;
    assert_int_equal(chmod(folder, 0555), 0);
    if (!become_nobody(&user)) skip(); /* teardown sets no mode: a folder of root's can still be removed */
    atomic_file *file;
    oh_error error;
    const oh_status status = atomic_file_open(&file, in_folder("out"), &error);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(status, OH_IO);
    assert_says(&error, OH_IO, "out: can't create a temporary file beside it: Permission denied");
}

static void test_rename_that_fails_leaves_nothing(void **state) {
    (void)state;
    char inner[512];
    snprintf(inner, sizeof inner, "%s", in_folder("inner"));
    assert_int_equal(mkdir(inner, 0700), 0);
    atomic_file *file;
    oh_error error;
    assert_int_equal(atomic_file_open(&file, in_folder("inner/out"), &error), OH_OK);
    assert_int_equal(mkdir(in_folder("inner/out"), 0700), 0); /* what a rename can't replace */
    assert_int_equal(atomic_file_commit(file, &error), OH_IO);
    assert_says(&error, OH_IO, "inner/out: can't rename the temporary file over it: Is a directory");
    assert_int_equal(rmdir(in_folder("inner/out")), 0);
    assert_int_equal(rmdir(inner), 0); /* empty: no temporary file is left */
}

/* Opens and writes NAME, with the text that it shall hold. */
static atomic_file *open_written(const char *name) {
    atomic_file *file;
    oh_error error;
    assert_int_equal(atomic_file_open(&file, in_folder(name), &error), OH_OK);
    assert_int_equal(atomic_file_write(file, "new", 3, &error), OH_OK);
    return file;
}

static void test_files_committed_together_appear_together(void **state) {
    (void)state;
    put(in_folder("replaced"), "old");
    atomic_file *const files[] = {open_written("replaced"), NULL, open_written("made")};
    assert_int_equal(atomic_file_commit_all(files, 3, NULL), OH_OK);
    assert_holds(in_folder("replaced"), "new");
    assert_holds(in_folder("made"), "new");
    assert_int_equal(entries(), 2);
    unlink(in_folder("replaced"));
    unlink(in_folder("made"));
}

static void test_a_file_that_fails_takes_back_those_before_it(void **state) {
    (void)state;
    oh_error error;
    put(in_folder("replaced"), "old");
    atomic_file *const files[] = {open_written("replaced"), open_written("made"), open_written("folder"),
                                  open_written("after")};
    assert_int_equal(mkdir(in_folder("folder"), 0700), 0); /* what a rename can't replace */
    assert_int_equal(atomic_file_commit_all(files, 4, &error), OH_IO);
    assert_says(&error, OH_IO, "folder: can't rename the temporary file over it: Is a directory");
    assert_holds(in_folder("replaced"), "old");
    assert_int_equal(entries(), 2); /* it and the folder: nothing made, no temporary file */
    assert_int_equal(rmdir(in_folder("folder")), 0);

    /* One that can't be flushed is found before the first gets its name. */
    uid_t user;
    if (begin_full_device(&user)) {
        atomic_file *full;
        const oh_status opened = atomic_file_open(&full, "/dev/full", &error);
        assert_int_equal(seteuid(user), 0);
        assert_int_equal(opened, OH_OK);
        assert_int_equal(atomic_file_write(full, "x", 1, NULL), OH_IO);
        atomic_file *const more[] = {open_written("replaced"), full};
        assert_int_equal(atomic_file_commit_all(more, 2, &error), OH_IO);
        assert_holds(in_folder("replaced"), "old");
        assert_int_equal(entries(), 1);
    }
    unlink(in_folder("replaced"));
}

static void test_mode_honours_the_umask(void **state) {
    (void)state;
    static const mode_t masks[] = {022, 077, 002, 0};
    const mode_t before = umask(0);
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        umask(masks[i]);
        assert_int_equal(write_all(in_folder("mode"), NULL), OH_OK);
        struct stat info;
        assert_int_equal(stat(in_folder("mode"), &info), 0);
        assert_int_equal(info.st_mode & 0777, 0666 & ~masks[i]);
    }
    umask(before);
    unlink(in_folder("mode"));
}

static void test_link_keeps_pointing_to_the_new_file(void **state) {
    (void)state;
    char link[512];
    snprintf(link, sizeof link, "%s", in_folder("link"));
    put(in_folder("real"), "old");
    assert_int_equal(symlink("real", link), 0);
    atomic_file *file;
    assert_int_equal(atomic_file_open(&file, link, NULL), OH_OK);
    assert_string_equal(atomic_file_path(file), link);
    assert_int_equal(atomic_file_write(file, "new", 3, NULL), OH_OK);
    assert_holds(in_folder("real"), "old");
    assert_int_equal(atomic_file_commit(file, NULL), OH_OK);
    assert_holds(in_folder("real"), "new");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    unlink(link);
    unlink(in_folder("real"));
}

static void test_fifo_is_written_straight(void **state) {
    (void)state;
    const char *const path = in_folder("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    atomic_file *file;
    assert_int_equal(atomic_file_open(&file, path, NULL), OH_OK);
    assert_int_equal(atomic_file_write(file, "text", 4, NULL), OH_OK);
    assert_int_equal(atomic_file_commit(file, NULL), OH_OK);
    char text[8];
    assert_int_equal(read(reader, text, sizeof text), 4);
    assert_memory_equal(text, "text", 4);
    close(reader);
    unlink(path);
}

enum { LONG_TEXT = 1 << 20 }; /* many times what a pipe holds */

static void ignore_alarm(int number) {
    (void)number;
}

/* Reads everything, but only after the writer has been blocked on a full pipe for a while. */
static void *read_late(void *argument) {
    const struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    size_t total = 0;
    char bytes[4096];
    for (ssize_t got; total < LONG_TEXT && (got = read(*(const int *)argument, bytes, sizeof bytes)) > 0;) {
        for (ssize_t i = 0; i < got; i++, total++) {
            if (bytes[i] != (char)(total % 251)) return argument;
        }
    }
    return total == LONG_TEXT ? NULL : argument;
}

static void test_interrupted_and_short_writes_are_continued(void **state) {
    (void)state;
    const char *const path = in_folder("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    atomic_file *file;
    assert_int_equal(atomic_file_open(&file, path, NULL), OH_OK);
    assert_int_equal(fcntl(reader, F_SETFL, 0), 0);
    char *const text = malloc(LONG_TEXT);
    for (size_t i = 0; i < LONG_TEXT; i++)
        text[i] = (char)(i % 251);

    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    struct sigaction before;
    const struct sigaction interrupting = {.sa_handler = ignore_alarm}; /* no SA_RESTART: write returns EINTR */
    assert_int_equal(sigaction(SIGALRM, &interrupting, &before), 0);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &alarms, NULL), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_late, &reader), 0); /* inherits the block */
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL), 0);
    const struct itimerval often = {{0, 2000}, {0, 2000}};
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    const oh_status status = atomic_file_write(file, text, LONG_TEXT, NULL);
    assert_int_equal(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL), 0);
    atomic_file_discard(file); /* closes the pipe, so that the reader ends in any case */

    void *failed;
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_int_equal(status, OH_OK);
    assert_null(failed);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    free(text);
    close(reader);
    unlink(path);
}

static void test_relative_path_survives_a_change_of_folder(void **state) {
    (void)state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    atomic_file *file;
    assert_int_equal(atomic_file_open(&file, "relative", NULL), OH_OK);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(atomic_file_write(file, "x", 1, NULL), OH_OK);
    assert_int_equal(atomic_file_commit(file, NULL), OH_OK);
    assert_int_equal(chdir(before), 0);
    assert_holds(in_folder("relative"), "x");
    unlink(in_folder("relative"));
}

static void test_open_files_are_limited_and_slots_come_back(void **state) {
    (void)state;
    atomic_file *files[ATOMIC_FILE_LIMIT];
    oh_error error;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ATOMIC_FILE_LIMIT; i++) {
            assert_int_equal(atomic_file_open(&files[i], in_folder("many"), NULL), OH_OK);
        }
        assert_int_equal(entries(), ATOMIC_FILE_LIMIT);
        atomic_file *extra;
        assert_int_equal(atomic_file_open(&extra, in_folder("many"), &error), OH_IO);
        assert_says(&error, OH_IO, "16 output files are open");
        if (round == 1) atomic_file_discard_all(); /* slots come back after it, too */
        for (int i = 0; i < ATOMIC_FILE_LIMIT; i++)
            atomic_file_discard(files[i]);
        assert_int_equal(entries(), 0);
    }
}

static void test_discard_all_removes_and_fails_the_commit(void **state) {
    (void)state;
    put(in_folder("kept"), "old");
    atomic_file *file;
    oh_error error;
    assert_int_equal(atomic_file_open(&file, in_folder("kept"), NULL), OH_OK);
    assert_int_equal(atomic_file_write(file, "new", 3, NULL), OH_OK);
    atomic_file_discard_all();
    assert_int_equal(entries(), 1);
    assert_int_equal(atomic_file_commit(file, &error), OH_IO);
    assert_says(&error, OH_IO, "can't rename the temporary file over it: No such file or directory");
    assert_holds(in_folder("kept"), "old");
    unlink(in_folder("kept"));
}

static void end_on_interrupt(int number) {
    atomic_file_discard_all();
    _exit(128 + number);
}

static void test_interrupt_leaves_no_file(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) { /* writes files for ever */
            signal(SIGINT, end_on_interrupt);
            for (;;) {
                if (write_all(in_folder("done"), NULL) != OH_OK) _exit(1);
            }
        }
        const struct timespec pause = {0, 1000000L * (5 + round)};
        nanosleep(&pause, NULL);
        assert_int_equal(kill(child, SIGINT), 0);
        int ended;
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_true(WIFEXITED(ended) || WTERMSIG(ended) == SIGINT); /* perhaps before it had set its handler */
        if (WIFEXITED(ended)) assert_int_equal(WEXITSTATUS(ended), 128 + SIGINT);
        unlink(in_folder("done"));
        assert_int_equal(entries(), 0);
    }
}

static void *write_many(void *argument) {
    char path[256];
    snprintf(path, sizeof path, "%s/thread%d", folder, *(const int *)argument);
    for (int i = 0; i < 50; i++) {
        if (write_all(path, NULL) != OH_OK) return argument;
    }
    unlink(path);
    return NULL;
}

static void test_threads_write_different_files(void **state) {
    (void)state;
    pthread_t threads[4];
    int numbers[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &numbers[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(entries(), 0);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails when any file is left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_same_input_gives_same_bytes),
        cmocka_unit_test(test_bad_declarations_are_refused_before_any_file),
        cmocka_unit_test(test_pieces_must_follow_the_declaration),
        cmocka_unit_test(test_incomplete_tensor_leaves_the_old_file),
        cmocka_unit_test(test_discard_leaves_the_old_file),
        cmocka_unit_test(test_full_device_is_reported),
        cmocka_unit_test(test_file_size_limit_leaves_nothing),
        cmocka_unit_test(test_commit_refuses_after_a_failed_write),
        cmocka_unit_test(test_impossible_destinations_are_reported),
        cmocka_unit_test(test_read_only_folder_is_reported),
        cmocka_unit_test(test_rename_that_fails_leaves_nothing),
        cmocka_unit_test(test_files_committed_together_appear_together),
        cmocka_unit_test(test_a_file_that_fails_takes_back_those_before_it),
        cmocka_unit_test(test_mode_honours_the_umask),
        cmocka_unit_test(test_link_keeps_pointing_to_the_new_file),
        cmocka_unit_test(test_fifo_is_written_straight),
        cmocka_unit_test(test_interrupted_and_short_writes_are_continued),
        cmocka_unit_test(test_relative_path_survives_a_change_of_folder),
        cmocka_unit_test(test_open_files_are_limited_and_slots_come_back),
        cmocka_unit_test(test_discard_all_removes_and_fails_the_commit),
        cmocka_unit_test(test_interrupt_leaves_no_file),
        cmocka_unit_test(test_threads_write_different_files),
    };
    return cmocka_run_group_tests_name("safetensors_write", tests, make_folder, remove_folder);
}
