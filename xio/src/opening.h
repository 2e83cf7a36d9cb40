/*
 * An open that is under way: its state, its lifetime and its time-out.
 */
#ifndef PX_OPENING_H
#define PX_OPENING_H

#include "attr.h"
#include "tcp.h"

#include <stdint.h>

/* Bytes that one step of the handshake can send and receive. Usually it needs a few hundred. */
#define PX_ROOM 16384

struct px_opening {
    globus_xio_operation_t op;
    globus_xio_driver_t tcp;
    globus_xio_driver_handle_t below; /* the driver that operations are passed to */
    px_tcp saved;                     /* TCP's attributes, for attempts after the first */
    phoebus_handshake *handshake;
    phoebus_options *options;     /* for accepting: the handshake is made from them after the connection is open */
    globus_xio_contact_t contact; /* the destination, as the program gave it */
    char *destination;            /* the same as text, for messages; NULL when accepting */
    char control[32];             /* the congestion control to request */
    int attempts;
    int meant_direct; /* a gateway is set, but the settings exclude this destination from it */
    char in[PX_ROOM], out[PX_ROOM];
    globus_xio_iovec_t iovec;
    int nodelay; /* for accepting: the program's TCP_NODELAY, restored after the handshake */
    void (*opened)(struct px_opening *), (*failed)(struct px_opening *); /* arguments of px_shake() */

    globus_mutex_t lock; /* guards the members below, which the timer uses too */
    int references;
    globus_callback_handle_t timer;
    globus_bool_t under_way; /* whether an operation below is under way */
    globus_bool_t timed_out;
    uint64_t deadline;
    int knock;                        /* descriptor of px_knock(); -1 if there is none */
    void (*over)(struct px_opening *); /* called after the knock */
};

/* The monotonic clock that libphoebus is given, in nanoseconds. */
uint64_t px_now(void);

/* Makes an opening that connects, and starts its timer. `attr` may be NULL. Sets no `out` on error. */
globus_result_t px_opening_new(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation,
                               struct px_opening **out);

/* The same for an accepted connection on which the other end asks for a session. */
globus_result_t px_opening_new_here(const px_attr *attr, globus_xio_operation_t operation, struct px_opening **out);

/* Marks the begin and the end of an operation below. The timer cancels one that exceeds libphoebus's deadline. */
void px_opening_below(struct px_opening *opening);
void px_opening_back(struct px_opening *opening);

/* Whether the program has cancelled the open. A cancellation by the timer does not count. */
int px_opening_given_up(struct px_opening *opening);

/* Tells the other end that no connection will come (px_knock()), then calls `over`. */
void px_opening_knock(struct px_opening *opening, void (*over)(struct px_opening *));

/* Stops the timer, and frees the opening after it. The caller must still finish the operation. */
void px_opening_done(struct px_opening *opening);

#endif
