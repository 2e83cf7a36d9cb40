/*
 * Open connections: reads and writes are the TCP driver's, byte for byte, so that a session costs nothing once it is open.
 *
 * How a connection ends is left to the program as well. One that dies leaves a FIN and no reset, but GridFTP tells an end from a
 * cut by other means (EOD in MODE E, the server's word in stream mode), and GCT's programs exit without closing the connections
 * that they keep for a next transfer: SO_LINGER with a time of 0 would throw away what is still on its way then.
 */
#include "handle.h"

#include "driver.h"
#include "error.h"
#include "globus_xio_phoebus_driver.h"
#include "tcp.h"

#include <stdlib.h>
#include <string.h>

px_handle *px_handle_new(globus_xio_operation_t op, globus_xio_driver_t tcp)
{
    px_handle *handle = calloc(1, sizeof *handle);

    if (handle == NULL)
        return NULL;
    handle->fd = tcp ? px_tcp_socket(globus_xio_operation_get_driver_handle(op), tcp) : -1;
    return handle;
}

void px_handle_free(px_handle *handle)
{
    if (handle != NULL) {
        free(handle->report);
        free(handle);
    }
}

globus_result_t px_open(const globus_xio_contact_t *contact, void *link, void *attr, globus_xio_operation_t op)
{
    const px_attr *own = attr;

    if (link == NULL)
        return px_connect(contact, own, op);
    /* The link has what the server was made with; an open that was given options has its own. */
    return px_take(contact, own != NULL && own->text != NULL ? own : link, op);
}

globus_result_t px_read(void *handle, const globus_xio_iovec_t *iovec, int count, globus_xio_operation_t op)
{
    (void)handle;
    return globus_xio_driver_pass_read(op, (globus_xio_iovec_t *)iovec, count, globus_xio_operation_get_wait_for(op), NULL,
                                       NULL);
}

globus_result_t px_write(void *handle, const globus_xio_iovec_t *iovec, int count, globus_xio_operation_t op)
{
    (void)handle;
    return globus_xio_driver_pass_write(op, (globus_xio_iovec_t *)iovec, count, globus_xio_operation_get_wait_for(op), NULL,
                                        NULL);
}

globus_result_t px_close(void *arg, void *attr, globus_xio_operation_t op)
{
    (void)attr;
    px_handle_free(arg);
    return globus_xio_driver_pass_close(op, NULL, NULL);
}

globus_result_t px_handle_cntl(void *arg, int command, va_list arguments)
{
    GlobusXIOName(px_handle_cntl);
    const px_handle *handle = arg;

    if (command == GLOBUS_XIO_PHOEBUS_GET_REPORT) {
        char **out = va_arg(arguments, char **);
        *out = strdup(handle->report ? handle->report : "");
        return *out == NULL ? px_no_memory() : GLOBUS_SUCCESS;
    }
    return GlobusXIOErrorInvalidCommand(command);
}
