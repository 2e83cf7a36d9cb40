/*
 * Opens a session with only the handshake machine, on a connection of its own, to a server that greets first.
 *
 * usage: handshake HOST PORT READ ROOM [NAME=VALUE]...
 * READ: most bytes per read; 0: far more than are wanted, so that some belong to the session. ROOM: size of the output buffer.
 */
#define _GNU_SOURCE
#include "shake.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int dial(const char *host, uint16_t port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0) {
        errno = EHOSTUNREACH;
        return -1;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) < 0) {
        int errnum = errno;
        close(fd);
        fd = -1;
        errno = errnum;
    }
    freeaddrinfo(found);
    return fd;
}

/* Checks the greeting, then the echo of everything that was sent. */
static void converse(int fd, char *rest, size_t len)
{
    char text[256];
    if (len > sizeof text)
        abort();
    memcpy(text, rest, len);
    while (memchr(text, '\n', len) == NULL) {
        ssize_t n = recv(fd, text + len, sizeof text - len, 0);
        if (n <= 0) {
            perror("the greeting");
            exit(1);
        }
        len += (size_t)n;
    }
    printf("%.*s", (int)len, text);
    send_all(fd, "and back\n", 9);
    shutdown(fd, SHUT_WR);
    ssize_t n;
    while ((n = recv(fd, text, sizeof text, 0)) > 0)
        printf("%.*s", (int)n, text);
    if (n < 0) {
        perror("the echo");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    phoebus_options *options = phoebus_options_new();
    for (int i = 5; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value++ = 0;
        phoebus_options_set(options, argv[i], value);
    }
    phoebus_handshake *h = phoebus_handshake_new(options, argv[1], (uint16_t)atoi(argv[2]));
    phoebus_options_free(options);
    int opened = 0;
    do {
        const char *host;
        uint16_t port;
        if (phoebus_handshake_first_hop(h, now_ns(), &host, &port) != 0)
            break;
        fprintf(stderr, "first hop %s %u, within %d s%s\n", host, port,
                (int)((phoebus_handshake_deadline(h) - now_ns()) / 1000000000u),
                phoebus_handshake_is_direct(h) ? ", direct" : "");
        int fd = dial(host, port);
        if (fd < 0) {
            phoebus_handshake_lost(h, errno);
            continue;
        }
        char *rest = NULL;
        size_t rest_len = 0;
        opened = shake(h, fd, (size_t)atol(argv[3]), (size_t)atol(argv[4]), &rest, &rest_len);
        if (opened) {
            phoebus_handshake_describe(h, "mine", 17, 1, 2, "described");
            printf("%s\n", phoebus_report_json(phoebus_handshake_report(h)));
            converse(fd, rest, rest_len);
        }
        free(rest);
        close(fd);
    } while (!opened && phoebus_handshake_again(h));
    if (!opened)
        complain(h);
    phoebus_handshake_free(h);
    return opened ? 0 : 3;
}
