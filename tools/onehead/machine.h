/* machine.h - facts about this machine and build that a measurement depends on. */
#ifndef ONEHEAD_TOOL_MACHINE_H
#define ONEHEAD_TOOL_MACHINE_H

#include <stdint.h>

typedef struct machine_facts {
    char cpu[100]; /* "" where the system doesn't say */
    double mhz;    /* now, of the first CPU; 0: not known */
    int cpus;      /* this process may use */
    double load[3];
    char date[40]; /* ISO 8601 with the offset from UTC */
    const char *commit, *compiler, *build_type;
} machine_facts;

void machine_read(machine_facts *facts);

/* Largest resident set of this process so far in bytes, 0 where not known. Mapped files count where they were read. */
int64_t machine_peak_memory(void);

/* CPU time of all threads of the process, in seconds. */
double machine_cpu_seconds(void);

/* Bytes a second, read plus written, of copies between blocks far larger than a core's caches on `threads` threads, the
 * best of several. 0 where there is no memory for it. */
double machine_copy_rate(int threads);

#endif
