/*
 * An open that is under way: what it needs, how long it lives, and its time-out.
 */
#ifndef PX_OPENING_H
#define PX_OPENING_H

#include "attr.h"
#include "tcp.h"

#include <stdint.h>

/* Room for what is sent and received in one step of the handshake, which is usually a few hundred bytes. */
#define PX_ROOM 16384

struct px_opening {
    globus_xio_operation_t op;
    globus_xio_driver_t tcp;
    globus_xio_driver_handle_t below; /* where operations go that are passed on */
    px_tcp saved;                     /* TCP's attributes, for attempts after the first */
    phoebus_handshake *handshake;
    phoebus_options *options;     /* of a session that comes here, whose handshake begins when there is a connection */
    globus_xio_contact_t contact; /* the destination, as the program gave it */
    char *destination;            /* likewise, for people; NULL if the session comes here */
    char control[32];             /* the congestion control to ask for */
    int attempts;
    int meant_direct; /* it was not to go through the gateway that is set */
    char in[PX_ROOM], out[PX_ROOM];
    globus_xio_iovec_t iovec;
    int nodelay; /* what the program had set for that, while the handshake of a session that comes here runs */
    void (*opened)(struct px_opening *), (*failed)(struct px_opening *); /* px_shake()'s */

    globus_mutex_t lock; /* of what follows, which the timer sees as well */
    int references;
    globus_callback_handle_t timer;
    globus_bool_t under_way; /* an operation below is */
    globus_bool_t timed_out;
    uint64_t deadline;
    int knock;                        /* px_knock()'s descriptor, -1 before that */
    void (*over)(struct px_opening *); /* what there is to do when it was heard */
};

/* The clock that libphoebus is told, in nanoseconds. */
uint64_t px_now(void);

/* One for `operation`, with its timer running; `attr` may be NULL. An error, and nothing, if there can be no session at all. */
globus_result_t px_opening_new(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation,
                               struct px_opening **out);

/* The same for a session that comes here, on a connection that was accepted. */
globus_result_t px_opening_new_here(const px_attr *attr, globus_xio_operation_t operation, struct px_opening **out);

/* An operation is about to be passed on, which the timer cancels when libphoebus's deadline is over; it has come back. */
void px_opening_below(struct px_opening *opening);
void px_opening_back(struct px_opening *opening);

/* Whether the program has cancelled the open; the timer does so, too. */
int px_opening_given_up(struct px_opening *opening);

/* Tells the other end that no connection will come (px_knock()), and calls `over` afterwards, at once if that is not possible. */
void px_opening_knock(struct px_opening *opening, void (*over)(struct px_opening *));

/* Ends the timer, and the opening once that is no longer in use. The operation is still to be finished. */
void px_opening_done(struct px_opening *opening);

#endif
