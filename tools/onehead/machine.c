#include "machine.h"

#include "commit.h"
#include "step.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COPY_BYTES ((size_t)256 << 20)
enum { COPY_ROUNDS = 3, COPY_THREADS_MAX = 256 };

static void read_cpu(machine_facts *facts) {
    FILE *const file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) return;
    char line[300];
    while (fgets(line, sizeof line, file) != NULL) {
        char *const value = strchr(line, ':');
        if (value == NULL) continue;
        value[strcspn(value, "\n")] = '\0';
        if (strncmp(line, "model name", 10) == 0 && facts->cpu[0] == '\0')
            snprintf(facts->cpu, sizeof facts->cpu, "%.99s", value[1] == ' ' ? value + 2 : value + 1);
        if (strncmp(line, "cpu MHz", 7) == 0 && facts->mhz == 0) facts->mhz = strtod(value + 1, NULL);
    }
    fclose(file);
}

static void read_date(machine_facts *facts) {
    const time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local) != NULL) strftime(facts->date, sizeof facts->date, "%Y-%m-%dT%H:%M:%S%z", &local);
}

void machine_read(machine_facts *facts) {
    memset(facts, 0, sizeof *facts);
    read_cpu(facts);
    read_date(facts);
    cpu_set_t set;
    facts->cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(facts->load, 3) != 3) memset(facts->load, 0, sizeof facts->load);
    facts->commit = ONEHEAD_COMMIT;
    facts->compiler = ONEHEAD_COMPILER;
    facts->build_type = ONEHEAD_BUILD_TYPE;
}

int64_t machine_peak_memory(void) {
    FILE *const file = fopen("/proc/self/status", "re");
    if (file == NULL) return 0;
    char line[200];
    int64_t bytes = 0;
    while (fgets(line, sizeof line, file) != NULL && bytes == 0) {
        if (strncmp(line, "VmHWM:", 6) == 0) bytes = strtoll(line + 6, NULL, 10) * 1024;
    }
    fclose(file);
    return bytes;
}

double machine_cpu_seconds(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ------------------------------------------------------------------------------------------- the measured copy ---- */

typedef struct copy_job {
    char *to;
    const char *from;
    size_t bytes;
} copy_job;

static void *copy_block(void *argument) {
    const copy_job *const job = argument;
    memcpy(job->to, job->from, job->bytes);
    return NULL;
}

/* Copies by blocks, the caller taking the first; false when a thread can't be had. */
static bool copy_once(copy_job *jobs, int threads) {
    pthread_t ids[COPY_THREADS_MAX];
    int started = 1;
    while (started < threads && pthread_create(&ids[started], NULL, copy_block, &jobs[started]) == 0)
        started++;
    copy_block(&jobs[0]);
    for (int i = 1; i < started; i++)
        pthread_join(ids[i], NULL);
    return started == threads;
}

double machine_copy_rate(int threads) {
    if (threads < 1) threads = 1;
    if (threads > COPY_THREADS_MAX) threads = COPY_THREADS_MAX;
    char *const from = malloc(COPY_BYTES), *const to = malloc(COPY_BYTES);
    double best = 0;
    if (from != NULL && to != NULL) {
        memset(from, 1, COPY_BYTES);
        memset(to, 2, COPY_BYTES);
        copy_job jobs[COPY_THREADS_MAX];
        const size_t part = COPY_BYTES / (size_t)threads;
        for (int i = 0; i < threads; i++)
            jobs[i] = (copy_job){to + (size_t)i * part, from + (size_t)i * part, part};
        for (int round = 0; round < COPY_ROUNDS; round++) {
            const double start = step_clock();
            if (!copy_once(jobs, threads)) break;
            const double rate = 2.0 * (double)part * threads / (step_clock() - start);
            if (rate > best) best = rate;
        }
    }
    free(from);
    free(to);
    return best;
}
