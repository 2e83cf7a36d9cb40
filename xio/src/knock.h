/*
 * Telling the other end of a transfer that no connection will come.
 */
#ifndef PX_KNOCK_H
#define PX_KNOCK_H

/*
 * Begins to connect to a destination, an address and the number of a port, only to reset that connection: not a byte goes there.
 * GCT's stream mode leaves a server that was asked to listen waiting for ever when its client cannot connect, and the client with
 * it, which waits for the server's word; over plain TCP, too. A connection that is reset fails the transfer at once.
 *
 * Returns a descriptor, or -1 if the destination cannot be reached anyway. Nothing here waits.
 */
int px_knock(const char *host, const char *port);

/* Whether the other end has been reached, or cannot be. */
int px_knock_is_heard(int fd);

/* Ends it, by a reset. */
void px_knock_end(int fd);

#endif
