/*
 * The connecting side (S4). It connects to the first gateway by TCP, runs the session's handshake, and then hands the
 * connection to the program.
 *
 *     px_connect ─► dial ─► connected ─► px_shake ─► opened
 *                    ▲          │           │
 *                   next ◄──────┘           └─► fail
 *     next runs in a one-shot callback: it dials the next gateway, or fails. fail knocks at the destination (knock.h).
 *
 * Nothing here waits: GCT's servers run all parallel streams in one thread.
 */
#include "error.h"
#include "handle.h"
#include "opening.h"
#include "say.h"
#include "shake.h"
#include "tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only GridFTP servers have this function. */
extern void globus_gridftp_server_begin_transfer(void) __attribute__((weak));

static void connected(globus_xio_operation_t op, globus_result_t result, void *arg);

/* Ends the operation, with success if there is a handle. */
static void finish(struct px_opening *o, px_handle *handle, globus_result_t result)
{
    globus_xio_operation_t op = o->op;

    px_opening_done(o);
    globus_xio_driver_finished_open(handle, op, result);
}

/* Connects to the next first gateway. Returns -1 on failure, after telling the handshake why. */
static int dial(struct px_opening *o)
{
    globus_xio_contact_t contact;
    const char *host;
    char number[8];
    uint16_t port;
    globus_result_t result = GLOBUS_SUCCESS;

    o->timed_out = GLOBUS_FALSE;
    if (phoebus_handshake_first_hop(o->handshake, px_now(), &host, &port) != PHOEBUS_OK)
        return -1;
    if (o->attempts++ > 0)
        result = px_tcp_restore(o->op, o->tcp, &o->saved);
    snprintf(number, sizeof number, "%u", port);
    memset(&contact, 0, sizeof contact);
    contact.host = (char *)host; /* XIO only reads it */
    contact.port = number;
    if (result == GLOBUS_SUCCESS) {
        int direct = phoebus_handshake_is_direct(o->handshake);
        px_opening_below(o);
        result = globus_xio_driver_pass_open(o->op, direct ? &o->contact : &contact, connected, o);
    }
    if (result == GLOBUS_SUCCESS)
        return 0;
    px_opening_back(o);
    phoebus_handshake_lost(o->handshake, px_errno(result));
    px_forget(result);
    return -1;
}

static void finish_failed(struct px_opening *o)
{
    finish(o, NULL, px_error_of(o->handshake));
}

/* Fails the open. No connection is open below. */
static void fail(struct px_opening *o)
{
    GlobusXIOName(fail);

    if (px_opening_given_up(o)) {
        finish(o, NULL, GlobusXIOErrorCanceled());
        return;
    }
    px_say_failed(o->handshake, o->destination);
    /* No knock is needed: a direct destination has seen the failure, and a server reports it on its control connection. */
    if (phoebus_handshake_is_direct(o->handshake) || globus_gridftp_server_begin_transfer != NULL)
        finish_failed(o);
    else
        px_opening_knock(o, finish_failed);
}

/* After a failed connection to a first gateway, tries the remaining ones. */
static void next(void *arg)
{
    struct px_opening *o = arg;

    do {
        if (px_opening_given_up(o) || !phoebus_handshake_again(o->handshake)) {
            fail(o);
            return;
        }
    } while (dial(o) != 0);
}

/* Calls next from a callback of its own: a second open within XIO's callback would abort the process. */
static void next_later(struct px_opening *o)
{
    globus_result_t result = globus_callback_register_oneshot(NULL, NULL, next, o);

    if (result != GLOBUS_SUCCESS)
        finish(o, NULL, result);
}

/* The session is open, or the direct connection is. */
static void opened(struct px_opening *o)
{
    px_handle *handle = px_handle_new(o->op, o->tcp);
    int direct = phoebus_handshake_is_direct(o->handshake);
    const phoebus_report *report;
    char note[64] = "";

    if (handle == NULL) {
        px_hang_up(o);
        return;
    }
    if (handle->fd >= 0) {
        /* A direct connection keeps the congestion control that it would have without this driver. */
        if (!direct)
            px_tcp_control(handle->fd, o->control, note, sizeof note);
        px_tcp_describe(handle->fd, o->handshake, note);
    }
    report = phoebus_handshake_report(o->handshake);
    handle->report = report ? strdup(phoebus_report_json(report)) : NULL;
    px_say_opened(o->handshake, direct && !o->meant_direct);
    finish(o, handle, GLOBUS_SUCCESS);
}

static void connected(globus_xio_operation_t op, globus_result_t result, void *arg)
{
    struct px_opening *o = arg;

    (void)op;
    px_opening_back(o);
    if (result != GLOBUS_SUCCESS) {
        px_lost(o, result);
        next_later(o);
        return;
    }
    px_shake(o, opened, fail);
}

globus_result_t px_connect(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation)
{
    struct px_opening *o;
    globus_result_t result = px_opening_new(contact, attr, operation, &o);

    if (result == GLOBUS_SUCCESS && dial(o) != 0)
        next_later(o);
    return result;
}
