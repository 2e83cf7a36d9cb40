/*
 * Errors as Globus wants them.
 */
#ifndef PX_ERROR_H
#define PX_ERROR_H

#include "globus_xio_driver.h"

#include <errno.h>
#include <phoebus.h>

/* A sentence, and the errno that programs go by. */
globus_result_t px_error(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));

globus_result_t px_no_memory(void);

/* Why a handshake failed, its hop included. */
globus_result_t px_error_of(const phoebus_handshake *handshake);

/* The errno in a result of XIO: 0 for the end of a connection, EIO where there is none. */
int px_errno(globus_result_t result);

/* Frees the error of a result that nobody will look at. */
void px_forget(globus_result_t result);

#endif
