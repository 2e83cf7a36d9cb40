/*
 * The functions that driver.c registers with XIO.
 */
#ifndef PX_DRIVER_H
#define PX_DRIVER_H

#include "globus_xio_driver.h"

/* accept.c: listening and accepting. */
globus_result_t px_server_init(void *attr, const globus_xio_contact_t *contact, globus_xio_operation_t op);
globus_result_t px_server_destroy(void *server);
globus_result_t px_accept(void *server, globus_xio_operation_t op);
globus_result_t px_link_destroy(void *link);
globus_result_t px_no_cntl(void *object, int command, va_list arguments);

/* handle.c: open connections. */
globus_result_t px_open(const globus_xio_contact_t *contact, void *link, void *attr, globus_xio_operation_t op);
globus_result_t px_read(void *handle, const globus_xio_iovec_t *iovec, int count, globus_xio_operation_t op);
globus_result_t px_write(void *handle, const globus_xio_iovec_t *iovec, int count, globus_xio_operation_t op);
globus_result_t px_close(void *handle, void *attr, globus_xio_operation_t op);
globus_result_t px_handle_cntl(void *handle, int command, va_list arguments);

#endif
