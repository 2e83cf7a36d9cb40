/*
 * A connection that only exists to be reset. A FIN would not do: on an unsecured data channel, it is the regular end of
 * an empty file.
 */
#include "knock.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int px_knock(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const struct linger reset = {1, 0};
    struct addrinfo *found;
    int fd;

    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0
        && (setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0
            || (connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS))) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

int px_knock_is_heard(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    return poll(&one, 1, 0) != 0;
}

void px_knock_end(int fd)
{
    close(fd);
}
