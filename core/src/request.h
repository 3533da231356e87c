/* request.h - a request with its defaults filled in, or the reason why it has no meaning. */
#ifndef ONEHEAD_CORE_REQUEST_H
#define ONEHEAD_CORE_REQUEST_H

#include <onehead/onehead.h>

/* Checks `request` and writes the normalised one: wishes that others imply, zeros replaced by what they stand for. */
oh_status oh_request_normalise(const oh_request *request, oh_request *normalised, oh_error *error);

/* Whether gradients lack 1 / N until a closing pass. */
int oh_norm_is_late(const oh_request *request);

/* Whether N follows from a selection that only the device has: it is known before the first chunk, but not on the host. */
int oh_norm_is_selected(const oh_request *request);

#endif
