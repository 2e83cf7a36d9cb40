/*
 * The accepting side. The last gateway connects as any TCP client does, and this driver passes the connection through.
 * With aware=1, this end takes part in sessions (S5). The gateway asks for the session. This end refuses anything else.
 * Wrong options fail the server before it listens.
 *
 *     px_take ─► passed                                 plain
 *           └──► connected ─► px_shake ─► opened        aware=1
 *                                 └─► failed
 */
#include "attr.h"
#include "driver.h"
#include "error.h"
#include "handle.h"
#include "opening.h"
#include "say.h"
#include "shake.h"
#include "tcp.h"

#include <stdlib.h>
#include <string.h>

/* Room for the name of a congestion control: twice the kernel's TCP_CA_NAME_MAX. */
#define CONTROL_ROOM 32

/* The server object is a copy of its attributes, and so is the object of each link that it accepts. */
globus_result_t px_server_init(void *attr, const globus_xio_contact_t *contact, globus_xio_operation_t op)
{
    void *server = NULL;
    globus_result_t result = attr ? px_attr_copy(&server, attr) : px_attr_init(&server);

    if (result == GLOBUS_SUCCESS)
        result = px_attr_check(server);
    if (result == GLOBUS_SUCCESS)
        result = globus_xio_driver_pass_server_init(op, contact, server);
    if (result != GLOBUS_SUCCESS)
        px_attr_destroy(server);
    return result;
}

globus_result_t px_server_destroy(void *server)
{
    return px_attr_destroy(server);
}

static void accepted(globus_xio_operation_t op, globus_result_t result, void *link)
{
    if (result != GLOBUS_SUCCESS) {
        px_attr_destroy(link);
        link = NULL;
    }
    globus_xio_driver_finished_accept(op, link, result);
}

globus_result_t px_accept(void *server, globus_xio_operation_t op)
{
    void *link = NULL;
    globus_result_t result = px_attr_copy(&link, server);

    if (result == GLOBUS_SUCCESS)
        result = globus_xio_driver_pass_accept(op, accepted, link);
    if (result != GLOBUS_SUCCESS)
        px_attr_destroy(link);
    return result;
}

globus_result_t px_link_destroy(void *link)
{
    return px_attr_destroy(link);
}

globus_result_t px_no_cntl(void *object, int command, va_list arguments)
{
    GlobusXIOName(px_no_cntl);
    (void)object, (void)arguments;
    return GlobusXIOErrorInvalidCommand(command);
}

/* Hands the program a connection as it is, without a session of this end's own. */
static void passed(globus_xio_operation_t op, globus_result_t result, void *arg)
{
    px_handle *handle = NULL;
    char *control = arg, note[64];

    if (result == GLOBUS_SUCCESS && (handle = px_handle_new(op, px_tcp_driver(op))) == NULL)
        result = px_no_memory();
    /* This end sends to the last gateway over a segment that may lose packets, so it sets its congestion control too. */
    if (handle != NULL && handle->fd >= 0)
        px_tcp_control(handle->fd, control, note, sizeof note);
    free(control);
    globus_xio_driver_finished_open(handle, op, result);
}

static globus_result_t pass(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t op)
{
    char *control = calloc(1, CONTROL_ROOM);
    globus_result_t result;

    if (control == NULL)
        return px_no_memory();
    phoebus_options_get(attr->options, "congestion_control", control, CONTROL_ROOM);
    result = globus_xio_driver_pass_open(op, contact, passed, control);
    if (result != GLOBUS_SUCCESS)
        free(control);
    return result;
}

/* Ends the operation, with success if there is a handle. */
static void finish(struct px_opening *o, px_handle *handle, globus_result_t result)
{
    globus_xio_operation_t op = o->op;

    px_opening_done(o);
    globus_xio_driver_finished_open(handle, op, result);
}

/* Fails the open. No connection is open below. */
static void failed(struct px_opening *o)
{
    GlobusXIOName(failed);

    if (px_opening_given_up(o)) {
        finish(o, NULL, GlobusXIOErrorCanceled());
        return;
    }
    px_say_failed(o->handshake, NULL);
    finish(o, NULL, px_error_of(o->handshake));
}

static void opened(struct px_opening *o)
{
    px_handle *handle = px_handle_new(o->op, o->tcp);
    const phoebus_report *report;
    char note[64];

    if (handle == NULL) {
        px_hang_up(o);
        return;
    }
    px_tcp_nodelay(handle->fd, o->nodelay);
    px_tcp_control(handle->fd, o->control, note, sizeof note);
    px_tcp_describe(handle->fd, o->handshake, note);
    report = phoebus_handshake_report(o->handshake);
    handle->report = report ? strdup(phoebus_report_json(report)) : NULL;
    px_say_accepted(o->handshake);
    finish(o, handle, GLOBUS_SUCCESS);
}

/* A connection was accepted. Its other end must ask for a session. */
static void connected(globus_xio_operation_t op, globus_result_t result, void *arg)
{
    struct px_opening *o = arg;
    char from[80] = "";
    int fd;

    (void)op;
    px_opening_back(o);
    if (result != GLOBUS_SUCCESS) {
        finish(o, NULL, result);
        return;
    }
    if ((fd = px_tcp_socket(o->below, o->tcp)) >= 0)
        px_tcp_peer(fd, from, sizeof from);
    o->handshake = phoebus_handshake_accept(o->options, px_now(), *from ? from : NULL);
    /* The answer is sent in two pieces. With Nagle's algorithm, the second would wait for the ACK of the first. */
    o->nodelay = px_tcp_nodelay(fd, 1);
    /* If memory for the handshake is lacking, its first step reports so. */
    px_shake(o, opened, failed);
}

globus_result_t px_take(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t op)
{
    struct px_opening *o;
    globus_result_t result = px_attr_check(attr);

    if (result != GLOBUS_SUCCESS)
        return result;
    if (!px_attr_is_aware(attr))
        return pass(contact, attr, op);
    result = px_opening_new_here(attr, op, &o);
    if (result != GLOBUS_SUCCESS)
        return result;
    px_opening_below(o);
    result = globus_xio_driver_pass_open(op, contact, connected, o);
    if (result != GLOBUS_SUCCESS)
        px_opening_done(o);
    return result;
}
