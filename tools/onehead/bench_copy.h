/* bench_copy.h - how fast a device copies its own memory. */
#ifndef ONEHEAD_TOOL_BENCH_COPY_H
#define ONEHEAD_TOOL_BENCH_COPY_H

#include <onehead/onehead.h>

/* Bytes a second, read plus written, of the backend's copy_rows between matrices larger than any cache; 0 where the
 * device has no room or no such operation. */
double bench_copy_rate(const oh_backend *backend, oh_device *device);

#endif
