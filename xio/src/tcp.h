/*
 * The TCP driver below this one: its attributes, and its socket.
 */
#ifndef PX_TCP_H
#define PX_TCP_H

#include "globus_xio_driver.h"

#include <phoebus.h>

/* Attributes of the TCP driver, as far as a connection that is to be made depends on them. */
typedef struct px_tcp {
    char *interface;
    globus_bool_t restrict_port, no_ipv6, keepalive, linger, oobinline, nodelay, blocking;
    int min_port, max_port, linger_time, sndbuf, rcvbuf;
} px_tcp;

/* The TCP driver below `operation`, NULL if another transport is at the bottom of the stack. */
globus_xio_driver_t px_tcp_driver(globus_xio_operation_t operation);

/*
 * What the open `operation` has for the TCP driver, and the same set again. XIO throws a driver's attributes away with its first
 * attempt to open, so that another attempt would be made with none (-tcp-bs, an interface, a range of ports).
 */
globus_result_t px_tcp_save(globus_xio_operation_t operation, globus_xio_driver_t tcp, px_tcp *saved);
globus_result_t px_tcp_restore(globus_xio_operation_t operation, globus_xio_driver_t tcp, const px_tcp *saved);
void px_tcp_clear(px_tcp *saved);

/* The socket below an open handle, -1 if there is none. */
int px_tcp_socket(globus_xio_driver_handle_t below, globus_xio_driver_t tcp);

/* Whether small pieces are sent at once: sets that, and says what it was. */
int px_tcp_nodelay(int fd, int on);

/* The other end of a socket, ADDRESS:PORT; "" if that cannot be said. */
void px_tcp_peer(int fd, char *text, size_t size);

/* Asks for a congestion control; "system" leaves it alone. What was asked for and not had is put into `note`, otherwise "". */
void px_tcp_control(int fd, const char *control, char *note, size_t size);

/* Tells a handshake what is in force on the socket. */
void px_tcp_describe(int fd, phoebus_handshake *handshake, const char *note);

#endif
