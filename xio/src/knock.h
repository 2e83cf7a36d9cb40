/*
 * Tells the other end of a transfer that no connection will come.
 */
#ifndef PX_KNOCK_H
#define PX_KNOCK_H

/*
 * Begins a connection to a numeric address and port, which px_knock_end() resets. It carries no byte.
 *
 * In GCT's stream mode, a server that listens for its client waits for ever if the client cannot connect, and the
 * client waits for the server's reply. This is so over plain TCP, too. A connection that is reset fails the transfer at
 * once.
 *
 * Returns a descriptor, or -1 if no connection can be begun. Does not block.
 */
int px_knock(const char *host, const char *port);

/* Whether the attempt to connect has ended, with success or not. */
int px_knock_is_heard(int fd);

/* Resets the connection, and closes its descriptor. */
void px_knock_end(int fd);

#endif
