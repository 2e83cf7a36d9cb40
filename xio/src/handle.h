/*
 * An open connection, and this driver's part in opening it.
 */
#ifndef PX_HANDLE_H
#define PX_HANDLE_H

#include "attr.h"
#include "globus_xio_driver.h"

/* The driver's state of an open connection. */
typedef struct px_handle {
    int fd;       /* the TCP driver's socket; -1 if it has none */
    char *report; /* the session's report, a JSON object; NULL on an accepting side that takes no part in the session */
} px_handle;

/* Makes the handle of a connection that is open below `operation`. Returns NULL if memory is lacking. */
px_handle *px_handle_new(globus_xio_operation_t operation, globus_xio_driver_t tcp);
void px_handle_free(px_handle *handle);

/*
 * Opens a session to `contact` over the gateways of `attr`, or a direct connection if `attr` says so. If `attr` is
 * NULL, this host's configuration alone applies. Finishes the operation later, or returns an error if it cannot begin.
 */
globus_result_t px_connect(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation);

/*
 * Opens an accepted connection: as it is, or, if `attr` has aware=1, after the other end has asked for a session on it.
 * Finishes the operation later, or returns an error if it cannot begin.
 */
globus_result_t px_take(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation);

#endif
