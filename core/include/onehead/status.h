/* status.h - the status codes and the error record that every onehead function reports through.
 *
 * Nothing in onehead aborts, exits or prints. A function that can fail returns an oh_status and, where it takes an
 * `oh_error *`, writes there one line that names the thing, its value and what was expected. */
#ifndef ONEHEAD_STATUS_H
#define ONEHEAD_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Values are part of the ABI: they never change, new ones are appended. */
typedef enum oh_status {
    OH_OK = 0,
    OH_INVALID_ARGUMENT = 1, /* the caller asked for something that has no meaning: unknown term, K = 0, NULL output */
    OH_BAD_DATA = 2,         /* the data contradicts itself or the request: wrong shape or dtype, truncated file */
    OH_NO_BACKEND = 3,       /* no such backend or device, or the plugin was refused */
    OH_OUT_OF_MEMORY = 4,    /* an allocation failed, or the budget is too small for the request */
    OH_IO = 5,               /* the operating system refused to read or write */
    OH_DEVICE_ERROR = 6,     /* the device or its library failed; sticky until the queue is waited for */
    OH_UNSUPPORTED = 7,      /* a correct request that this backend or build can't serve */
    OH_OVERFLOW = 8,         /* a value left the range of the format that holds it (an f16 tile), results are invalid */
} oh_status;

/* One error. Callers own it; a function writes it only when it fails. */
typedef struct oh_error {
    oh_status status;
    char message[500]; /* one line, UTF-8, NUL-terminated, no trailing newline */
} oh_error;

#ifdef __cplusplus
}
#endif
#endif
