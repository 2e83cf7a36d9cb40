/*
 * The session's handshake, whichever end this is, on a connection that is open below.
 */
#ifndef PX_SHAKE_H
#define PX_SHAKE_H

#include "opening.h"

/* Runs it, and then calls `opened`; or closes the connection, and then calls `failed`. */
void px_shake(struct px_opening *opening, void (*opened)(struct px_opening *), void (*failed)(struct px_opening *));

/* Closes the connection, on which there is no session, and then calls what px_shake() was given for that. */
void px_hang_up(struct px_opening *opening);

/* Tells the handshake with what result its connection has failed. */
void px_lost(struct px_opening *opening, globus_result_t result);

#endif
