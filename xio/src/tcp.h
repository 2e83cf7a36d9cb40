/*
 * The TCP driver below this one: its attributes, and its socket.
 */
#ifndef PX_TCP_H
#define PX_TCP_H

#include "globus_xio_driver.h"

#include <phoebus.h>

/* The attributes of the TCP driver that a new connection depends on. */
typedef struct px_tcp {
    char *interface;
    globus_bool_t restrict_port, no_ipv6, keepalive, linger, oobinline, nodelay, blocking;
    int min_port, max_port, linger_time, sndbuf, rcvbuf;
} px_tcp;

/* Returns the TCP driver below `operation`, or NULL if the stack has another transport. */
globus_xio_driver_t px_tcp_driver(globus_xio_operation_t operation);

/*
 * Save and restore the TCP driver's attributes of an open. XIO drops them with the first attempt to open, so a second
 * attempt would lack them (-tcp-bs, an interface, a range of ports).
 */
globus_result_t px_tcp_save(globus_xio_operation_t operation, globus_xio_driver_t tcp, px_tcp *saved);
globus_result_t px_tcp_restore(globus_xio_operation_t operation, globus_xio_driver_t tcp, const px_tcp *saved);
void px_tcp_clear(px_tcp *saved);

/* Returns the socket below an open handle, or -1 if there is none. */
int px_tcp_socket(globus_xio_driver_handle_t below, globus_xio_driver_t tcp);

/* Sets TCP_NODELAY, and returns its previous value. */
int px_tcp_nodelay(int fd, int on);

/* Writes the peer of a socket as ADDRESS:PORT, or "" if it is unknown. */
void px_tcp_peer(int fd, char *text, size_t size);

/* Requests a congestion control. "system" leaves it alone. `note` receives the reason if another one is used. */
void px_tcp_control(int fd, const char *control, char *note, size_t size);

/* Tells the handshake the settings of its socket, for the report. */
void px_tcp_describe(int fd, phoebus_handshake *handshake, const char *note);

#endif
