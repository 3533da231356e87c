/* fake_device.h - what a GPU looks like to the core, on the host: memory of its own as far as the table says, products in
 * 16 bits, every operation by the portable ones. */
#ifndef ONEHEAD_TESTS_FAKE_DEVICE_H
#define ONEHEAD_TESTS_FAKE_DEVICE_H

#include "portable/portable.h"
#include "step_case.h"

extern int64_t fake_device_free;      /* bytes that the device says are free; 0: it doesn't know */
extern int64_t fake_device_converted; /* elements that copy_rows wrote in f16, since the last reset */

/* The template's table as a device's. Tensors may be handed over by their host addresses. */
const oh_backend *fake_device_table(void);

oh_context *fake_device_open(void);

#endif
