/* chrome_trace.h - spans as a Chrome trace: JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.
 *
 *     chrome_trace *trace;
 *     if (chrome_trace_open(&trace, path, &error) != OH_OK) ...
 *     chrome_trace_phase(trace, "reading", begin, end);
 *     chrome_trace_spans(trace, "openblas", &log);
 *     if (chrome_trace_end(trace, &file, &error) != OH_OK) ...   then atomic_file_commit
 *
 * The host's lane holds phases and, where a device runs on its own, the calls that enqueue; the device's lanes hold one
 * event an operation, with chunk, stage, rows, columns, bytes and FLOPs as arguments. A counter shows the tile reads so
 * far. Times are those of step_clock; otherData.device_clock says by lane where the device's come from. */
#ifndef ONEHEAD_TOOL_CHROME_TRACE_H
#define ONEHEAD_TOOL_CHROME_TRACE_H

#include "atomic_file.h"
#include "span_log.h"

typedef struct chrome_trace chrome_trace;

/* Creates the temporary file, so that a name that can't be written is told at once. Errors: OH_IO, OH_OUT_OF_MEMORY. */
oh_status chrome_trace_open(chrome_trace **trace, const char *path, oh_error *error);

/* The rest takes NULL for no trace. Running out of memory is told by end. */
void chrome_trace_phase(chrome_trace *trace, const char *name, double begin, double end);
void chrome_trace_spans(chrome_trace *trace, const char *lane, const span_log *log);

/* Writes the file, which is then the caller's to commit (NULL for no trace). Frees, also on failure, and then leaves no
 * file behind. */
oh_status chrome_trace_end(chrome_trace *trace, atomic_file **file, oh_error *error);
void chrome_trace_discard(chrome_trace *trace);

#endif
