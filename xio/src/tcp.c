/*
 * The built-in TCP driver below this one (S4, S9). Its options stay in force. This file sets what a session needs on
 * its socket.
 */
#include "tcp.h"

#include "globus_xio_tcp_driver.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The kernel's TCP_CA_NAME_MAX. */
#define CONTROL_MAX 16

globus_xio_driver_t px_tcp_driver(globus_xio_operation_t operation)
{
    globus_xio_driver_t driver = globus_xio_operation_get_transport_user_driver(operation);
    const char *name = NULL;
    globus_result_t result = globus_xio_driver_attr_cntl(operation, driver, GLOBUS_XIO_GET_DRIVER_NAME, &name);

    if (result != GLOBUS_SUCCESS) {
        globus_object_free(globus_error_get(result));
        return NULL;
    }
    return name != NULL && strcmp(name, "tcp") == 0 ? driver : NULL;
}

globus_result_t px_tcp_save(globus_xio_operation_t op, globus_xio_driver_t tcp, px_tcp *to)
{
    globus_result_t result;

    memset(to, 0, sizeof *to);
#define GET(...) \
    if ((result = globus_xio_driver_attr_cntl(op, tcp, __VA_ARGS__)) != GLOBUS_SUCCESS) \
    return result
    GET(GLOBUS_XIO_TCP_GET_INTERFACE, &to->interface);
    GET(GLOBUS_XIO_TCP_GET_RESTRICT_PORT, &to->restrict_port);
    GET(GLOBUS_XIO_TCP_GET_NO_IPV6, &to->no_ipv6);
    GET(GLOBUS_XIO_TCP_GET_CONNECT_RANGE, &to->min_port, &to->max_port);
    GET(GLOBUS_XIO_TCP_GET_KEEPALIVE, &to->keepalive);
    GET(GLOBUS_XIO_TCP_GET_LINGER, &to->linger, &to->linger_time);
    GET(GLOBUS_XIO_TCP_GET_OOBINLINE, &to->oobinline);
    GET(GLOBUS_XIO_TCP_GET_SNDBUF, &to->sndbuf);
    GET(GLOBUS_XIO_TCP_GET_RCVBUF, &to->rcvbuf);
    GET(GLOBUS_XIO_TCP_GET_NODELAY, &to->nodelay);
    GET(GLOBUS_XIO_TCP_GET_BLOCKING_IO, &to->blocking);
#undef GET
    return GLOBUS_SUCCESS;
}

globus_result_t px_tcp_restore(globus_xio_operation_t op, globus_xio_driver_t tcp, const px_tcp *from)
{
    globus_result_t result;

#define SET(...) \
    if ((result = globus_xio_driver_attr_cntl(op, tcp, __VA_ARGS__)) != GLOBUS_SUCCESS) \
    return result
    SET(GLOBUS_XIO_TCP_SET_INTERFACE, from->interface);
    SET(GLOBUS_XIO_TCP_SET_RESTRICT_PORT, from->restrict_port);
    SET(GLOBUS_XIO_TCP_SET_NO_IPV6, from->no_ipv6);
    SET(GLOBUS_XIO_TCP_SET_CONNECT_RANGE, from->min_port, from->max_port);
    SET(GLOBUS_XIO_TCP_SET_KEEPALIVE, from->keepalive);
    SET(GLOBUS_XIO_TCP_SET_LINGER, from->linger, from->linger_time);
    SET(GLOBUS_XIO_TCP_SET_OOBINLINE, from->oobinline);
    SET(GLOBUS_XIO_TCP_SET_SNDBUF, from->sndbuf);
    SET(GLOBUS_XIO_TCP_SET_RCVBUF, from->rcvbuf);
    SET(GLOBUS_XIO_TCP_SET_NODELAY, from->nodelay);
    SET(GLOBUS_XIO_TCP_SET_BLOCKING_IO, from->blocking);
#undef SET
    return GLOBUS_SUCCESS;
}

void px_tcp_clear(px_tcp *saved)
{
    free(saved->interface);
    saved->interface = NULL;
}

int px_tcp_socket(globus_xio_driver_handle_t below, globus_xio_driver_t tcp)
{
    globus_xio_system_socket_t fd = -1;
    globus_result_t result = globus_xio_driver_handle_cntl(below, tcp, GLOBUS_XIO_TCP_GET_HANDLE, &fd);

    if (result != GLOBUS_SUCCESS) {
        globus_object_free(globus_error_get(result));
        return -1;
    }
    return fd;
}

int px_tcp_nodelay(int fd, int on)
{
    int before = 0;
    socklen_t len = sizeof before;

    getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &before, &len);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return before;
}

void px_tcp_peer(int fd, char *text, size_t size)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    char host[64], port[8];

    *text = '\0';
    if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0
        && getnameinfo((struct sockaddr *)&peer, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(text, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static void control_in_force(int fd, char name[CONTROL_MAX + 1])
{
    socklen_t len = CONTROL_MAX;

    memset(name, 0, CONTROL_MAX + 1);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) != 0)
        *name = '\0';
}

void px_tcp_control(int fd, const char *control, char *note, size_t size)
{
    char name[CONTROL_MAX + 1];

    *note = '\0';
    if (*control == '\0' || strcmp(control, "system") == 0)
        return;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, (socklen_t)strlen(control)) == 0)
        return;
    control_in_force(fd, name);
    if (strcmp(name, control) != 0)
        snprintf(note, size, "asked for %.15s, in force is %s", control, *name ? name : "unknown");
}

void px_tcp_describe(int fd, phoebus_handshake *handshake, const char *note)
{
    char name[CONTROL_MAX + 1];
    struct tcp_info info;
    socklen_t len = sizeof info;
    int sndbuf = 0, rcvbuf = 0;

    memset(&info, 0, sizeof info);
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    len = sizeof sndbuf;
    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, &len);
    len = sizeof rcvbuf;
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, &len);
    control_in_force(fd, name);
    phoebus_handshake_describe(handshake, name, info.tcpi_rtt, (uint64_t)sndbuf, (uint64_t)rcvbuf, note);
}
