/*
 * Globus error objects.
 */
#ifndef PX_ERROR_H
#define PX_ERROR_H

#include "globus_xio_driver.h"

#include <errno.h>
#include <phoebus.h>

/* Makes an error of a sentence for people and an errno for programs. */
globus_result_t px_error(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));

globus_result_t px_no_memory(void);

/* Makes an error of the reason and the hop of a failed handshake. */
globus_result_t px_error_of(const phoebus_handshake *handshake);

/* Returns the errno in a result of XIO: 0 for an end of file, EIO if the result has none. */
int px_errno(globus_result_t result);

/* Frees the error object of a result that the caller ignores. */
void px_forget(globus_result_t result);

#endif
