/*
 * Open connections. The TCP driver reads and writes, byte for byte, so an open session has no cost here.
 *
 * The program also decides how a connection ends. The kernel closes a dead program's connections with FIN, not RST. But
 * GridFTP recognizes a cut transfer by other means: EOD in MODE E, the server's reply in stream mode. SO_LINGER with a
 * time of 0 would make a reset of it, but would also discard bytes in flight: GCT's programs exit without closing the
 * connections that they keep for another transfer.
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
    /* An open uses its own attributes if they have options, otherwise those of the server. */
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
