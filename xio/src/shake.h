/*
 * The session's handshake on a connection that is open below, for both ends.
 */
#ifndef PX_SHAKE_H
#define PX_SHAKE_H

#include "opening.h"

/* Runs the handshake, then calls `opened`. If it fails, closes the connection, then calls `failed`. */
void px_shake(struct px_opening *opening, void (*opened)(struct px_opening *), void (*failed)(struct px_opening *));

/* Closes the connection, then calls the `failed` of px_shake(). */
void px_hang_up(struct px_opening *opening);

/* Tells the handshake that its connection failed with `result`. */
void px_lost(struct px_opening *opening, globus_result_t result);

#endif
