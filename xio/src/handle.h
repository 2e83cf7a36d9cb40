/*
 * An open connection, and how it comes to be: the part of an open that is this driver's.
 */
#ifndef PX_HANDLE_H
#define PX_HANDLE_H

#include "attr.h"
#include "globus_xio_driver.h"

/* What the driver knows of an open connection. */
typedef struct px_handle {
    int fd;       /* of the TCP driver below; -1 if it has none */
    char *report; /* of the session, an object of JSON; NULL on an accepting side that takes no part in it */
} px_handle;

/* The handle of a connection that is open below `operation`. NULL without memory. */
px_handle *px_handle_new(globus_xio_operation_t operation, globus_xio_driver_t tcp);
void px_handle_free(px_handle *handle);

/*
 * Opens a session to `contact` over the gateways of `attr` (which may be NULL: this host's configuration alone), or a direct
 * connection where it says so. Finishes the operation later, or returns why it was not even begun.
 */
globus_result_t px_connect(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation);

/*
 * Takes over a connection that was accepted, on the terms of `attr`: as it is, or with aware=1 once a session was asked for on it.
 * Likewise.
 */
globus_result_t px_take(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation);

#endif
