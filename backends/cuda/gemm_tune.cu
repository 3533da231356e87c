/* gemm_tune.cu - algorithms by the clock instead of by cuBLASLt's heuristic, where a user asks for it.
 *
 *     ONEHEAD_CUDA_ALGORITHMS=FILE                          choices made before, read when a device is opened
 *     ONEHEAD_CUDA_ALGORITHMS=FILE ONEHEAD_CUDA_TUNE=1      makes them, and writes FILE after each
 *
 * A tuned choice is made at a product's first use, on its own operands. Under a long load a GPU's power bounds its
 * clocks, so that what a product costs is energy as much as cycles: each of the heuristic's answers runs by itself for
 * long enough that the clocks settle to it, and they take turns at that, so that all meet the same temperatures. That
 * waits for the stream: it belongs in a run of its own, not in training. Small products, and those that add to their
 * result, keep the heuristic's choice.
 * The file is one line a choice: GPU, cuBLASLt's version, key and algorithm as hexadecimal bytes; lines of another GPU
 * or version are left alone and left out. */
#include "gemm_tune.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"

/* A stretch settles the clocks, then is timed; turns before the first that counts warm the GPU. */
enum { CANDIDATES = 16, TURNS = 3, WARM_TURNS = 1, SETTLING = 10, TIMED = 8, LINE = 1024, NAME = 256 };

#define LEAST_FLOPS 1e11

static const char *file_name(void) {
    return secure_getenv("ONEHEAD_CUDA_ALGORITHMS");
}

int gemm_is_large(int64_t m, int64_t n, int64_t k) {
    return 2.0 * (double)m * (double)n * (double)k >= LEAST_FLOPS;
}

int gemm_tune_has_file(const oh_gemm *product) {
    return file_name() && gemm_is_large(product->m, product->n, product->k);
}

int gemm_tune_wanted(const gemm_key *key) {
    const char *wanted = secure_getenv("ONEHEAD_CUDA_TUNE");
    return wanted && strcmp(wanted, "1") == 0 && !key->accumulate && gemm_is_large(key->m, key->n, key->k);
}

/* ----------------------------------------------------------------------------------------------------- timing ---- */

static double median(float *ms, int count) {
    std::sort(ms, ms + count);
    return (double)ms[count / 2];
}

/* Milliseconds of one product within a stretch of them; negative where the algorithm doesn't run. */
static float time_stretch(cudaStream_t stream, cudaEvent_t *events, const gemm_call *call,
                          const cublasLtMatmulAlgo_t *algorithm) {
    float ms = -1;
    for (int i = 0; i < SETTLING + TIMED; ++i) {
        if (i == SETTLING && cudaEventRecord(events[0], stream) != cudaSuccess) return -1;
        if (call->run(call->user, algorithm) != CUBLAS_STATUS_SUCCESS) return -1;
    }
    if (cudaEventRecord(events[1], stream) != cudaSuccess || cudaEventSynchronize(events[1]) != cudaSuccess) return -1;
    return cudaEventElapsedTime(&ms, events[0], events[1]) == cudaSuccess ? ms / TIMED : -1;
}

int gemm_tune(oh_queue *queue, const gemm_call *call, const cublasLtMatmulHeuristicResult_t *results, int count) {
    cudaEvent_t events[2];
    float ms[CANDIDATES][TURNS];
    int works[CANDIDATES], best = 0;
    double best_ms = 0;
    if (count > CANDIDATES) count = CANDIDATES;
    if (cudaEventCreate(&events[0]) != cudaSuccess) return 0;
    if (cudaEventCreate(&events[1]) != cudaSuccess) {
        (void)cudaEventDestroy(events[0]);
        return 0;
    }
    for (int i = 0; i < count; ++i)
        works[i] = results[i].state == CUBLAS_STATUS_SUCCESS;
    for (int turn = -WARM_TURNS; turn < TURNS; ++turn)
        for (int i = 0; i < count; ++i) {
            if (!works[i]) continue;
            const float once = time_stretch(queue->stream, events, call, &results[i].algo);
            if (once < 0) works[i] = 0;
            if (turn >= 0) ms[i][turn] = once;
        }
    for (int i = 0; i < count; ++i) {
        if (!works[i]) continue;
        const double middle = median(ms[i], TURNS);
        const oh_host *host = &queue->device->host;
        char line[160];
        snprintf(line, sizeof line, "cuda: tuning: answer %d of %d: %.4f ms, %zu bytes of scratch, %.2f waves", i + 1,
                 count, middle, results[i].workspaceSize, (double)results[i].wavesCount);
        if (host->log) host->log(host->user, line);
        if (best_ms == 0 || middle < best_ms) best_ms = middle, best = i;
    }
    (void)cudaEventDestroy(events[0]);
    (void)cudaEventDestroy(events[1]);
    (void)cudaGetLastError();
    return best;
}

/* ------------------------------------------------------------------------------------------------------- file ---- */

static void write_hex(FILE *file, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
        fprintf(file, "%02x", ((const unsigned char *)bytes)[i]);
}

static int read_hex(const char *text, void *bytes, size_t count) {
    if (strlen(text) != 2 * count) return 0;
    for (size_t i = 0; i < count; ++i) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) return 0;
        ((unsigned char *)bytes)[i] = (unsigned char)value;
    }
    return 1;
}

/* The GPU's name as one word. */
static void device_word(const oh_device *device, char word[NAME]) {
    cudaDeviceProp properties;
    word[0] = '\0';
    if (cudaGetDeviceProperties(&properties, device->index) != cudaSuccess) return;
    snprintf(word, NAME, "%s", properties.name);
    for (char *c = word; *c; ++c)
        if (*c == ' ') *c = '_';
}

void gemm_tune_load(oh_device *device) {
    FILE *file = file_name() ? fopen(file_name(), "r") : NULL;
    if (!file) return;
    char line[LINE], here[NAME], gpu[NAME], key[LINE], algorithm[LINE];
    size_t version;
    device_word(device, here);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%255s %zu %1023s %1023s", gpu, &version, key, algorithm) != 4) continue;
        if (strcmp(gpu, here) != 0 || version != cublasLtGetVersion()) continue;
        gemm_choice choice;
        memset(&choice, 0, sizeof choice);
        if (!read_hex(key, &choice.key, sizeof choice.key)) continue;
        if (!read_hex(algorithm, &choice.algorithm, sizeof choice.algorithm)) continue;
        gemm_table *table = &device->gemms;
        if (table->clock >= GEMM_TABLE_SIZE / 2) break; /* leave room for others */
        choice.tuned = 1;
        choice.used = ++table->clock;
        table->choices[table->clock - 1] = choice;
    }
    fclose(file);
}

static void write_choices(const oh_device *device, FILE *file) {
    char here[NAME];
    device_word(device, here);
    for (const gemm_choice &c : device->gemms.choices) {
        if (!c.used || !c.tuned) continue;
        fprintf(file, "%s %zu ", here, cublasLtGetVersion());
        write_hex(file, &c.key, sizeof c.key);
        fputc(' ', file);
        write_hex(file, &c.algorithm, sizeof c.algorithm);
        fputc('\n', file);
    }
}

/* Beside its place, then moved there: whoever reads it meanwhile, or is killed here, has the old one or the new. */
static int replace_file(const oh_device *device, const char *name) {
    char temporary[PATH_MAX];
    const int length = snprintf(temporary, sizeof temporary, "%s.%ld-%d", name, (long)getpid(), device->index);
    FILE *file = length > 0 && length < (int)sizeof temporary ? fopen(temporary, "wx") : NULL;
    if (!file) return -1;
    write_choices(device, file);
    const int failed = ferror(file) | fclose(file);
    if (failed == 0 && rename(temporary, name) == 0) return 0;
    (void)unlink(temporary);
    return -1;
}

void gemm_tune_save(const oh_device *device) {
    if (!file_name() || replace_file(device, file_name()) == 0 || !device->host.log) return;
    char line[NAME + PATH_MAX];
    snprintf(line, sizeof line, "cuda: ONEHEAD_CUDA_ALGORITHMS %s could not be written", file_name());
    device->host.log(device->host.user, line);
}
