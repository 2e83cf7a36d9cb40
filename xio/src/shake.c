/*
 * The session's handshake on a connection that is open below. Each read and write is an operation of XIO. Nothing
 * blocks.
 *
 *     px_shake ─► step ─► written, received ─► step ─► … ─► opened
 *                   └─► px_hang_up ─► closed ─► failed
 */
#include "shake.h"

#include "error.h"

#include <errno.h>

static void step(struct px_opening *o, size_t in_len);

static void closed(globus_xio_operation_t op, globus_result_t result, void *arg)
{
    struct px_opening *o = arg;

    (void)op;
    px_forget(result);
    o->failed(o);
}

/* The open fails afterwards: XIO cannot reopen a closed handle. */
void px_hang_up(struct px_opening *o)
{
    globus_result_t result = globus_xio_driver_pass_close(o->op, closed, o);

    if (result != GLOBUS_SUCCESS)
        closed(o->op, result, o);
}

void px_lost(struct px_opening *o, globus_result_t result)
{
    phoebus_handshake_lost(o->handshake, o->timed_out ? ETIMEDOUT : px_errno(result));
    px_forget(result);
}

static void written(globus_xio_operation_t op, globus_result_t result, globus_size_t n, void *arg)
{
    struct px_opening *o = arg;

    (void)op, (void)n;
    px_opening_back(o);
    if (result != GLOBUS_SUCCESS) {
        px_lost(o, result);
        px_hang_up(o);
        return;
    }
    step(o, 0);
}

static void received(globus_xio_operation_t op, globus_result_t result, globus_size_t n, void *arg)
{
    struct px_opening *o = arg;

    (void)op;
    px_opening_back(o);
    if (result != GLOBUS_SUCCESS) {
        px_lost(o, result);
        px_hang_up(o);
        return;
    }
    step(o, n);
}

/* Advances the handshake with `in_len` received bytes. */
static void step(struct px_opening *o, size_t in_len)
{
    size_t consumed, produced, want;
    globus_result_t result;

    switch (phoebus_handshake_step(o->handshake, px_now(), o->in, in_len, &consumed, o->out, sizeof o->out, &produced, &want)) {
    case PHOEBUS_STEP_WRITE:
        o->iovec.iov_base = o->out;
        o->iovec.iov_len = produced;
        px_opening_below(o);
        result = globus_xio_driver_pass_write(o->op, &o->iovec, 1, produced, written, o);
        break;
    case PHOEBUS_STEP_READ:
        /* Reads no byte beyond the handshake: those after OPENED belong to the program. */
        o->iovec.iov_base = o->in;
        o->iovec.iov_len = want < sizeof o->in ? want : sizeof o->in;
        px_opening_below(o);
        result = globus_xio_driver_pass_read(o->op, &o->iovec, 1, 1, received, o);
        break;
    case PHOEBUS_STEP_DONE:
        o->opened(o);
        return;
    default:
        px_hang_up(o);
        return;
    }
    if (result != GLOBUS_SUCCESS) {
        px_opening_back(o);
        px_lost(o, result);
        px_hang_up(o);
    }
}

void px_shake(struct px_opening *o, void (*opened)(struct px_opening *), void (*failed)(struct px_opening *))
{
    o->opened = opened;
    o->failed = failed;
    step(o, 0);
}
