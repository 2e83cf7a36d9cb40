/*
 * An aware destination that uses only the handshake machine, on a connection of its own: prints its port, accepts one
 * connection, greets, and echoes to the end.
 *
 * usage: accept READ ROOM [NAME=VALUE]...
 * READ, ROOM: as for handshake.
 */
#define _GNU_SOURCE
#include "check.h"
#include "shake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

/* Accepts the one connection; `from` is the peer's address. */
static int take(char from[64])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char host[INET_ADDRSTRLEN];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    int fd = accept(listener, (struct sockaddr *)&address, &len);
    CHECK(fd >= 0 && inet_ntop(AF_INET, &address.sin_addr, host, sizeof host) != NULL);
    snprintf(from, 64, "%s:%u", host, ntohs(address.sin_port));
    close(listener);
    return fd;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    phoebus_options *options = phoebus_options_new();
    for (int i = 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value++ = 0;
        phoebus_options_set(options, argv[i], value);
    }
    char from[64], *rest = NULL, text[256];
    size_t rest_len = 0;
    const char *host;
    uint16_t port;
    int fd = take(from);
    phoebus_handshake *h = phoebus_handshake_accept(options, now_ns(), from);
    phoebus_options_free(options);
    int opened = shake(h, fd, (size_t)atol(argv[1]), (size_t)atol(argv[2]), &rest, &rest_len);
    CHECK(phoebus_handshake_again(h) == 0 && phoebus_handshake_is_direct(h) == 0);
    if (opened) {
        CHECK(phoebus_handshake_first_hop(h, now_ns(), &host, &port) == PHOEBUS_E_STATE);
        CHECK(phoebus_handshake_describe(h, "mine", 17, 1, 2, NULL) == PHOEBUS_OK);
        CHECK(phoebus_handshake_deadline(h) == UINT64_MAX);
        printf("%s\n%s\n", phoebus_report_json(phoebus_handshake_report(h)), phoebus_handshake_peer(h));
        send_all(fd, "hello\n", 6);
        send_all(fd, rest, rest_len);
        ssize_t n;
        while ((n = recv(fd, text, sizeof text, 0)) > 0)
            send_all(fd, text, (size_t)n);
        CHECK(n == 0 && shutdown(fd, SHUT_WR) == 0);
    } else {
        complain(h);
    }
    free(rest);
    phoebus_handshake_free(h);
    close(fd);
    return opened ? 0 : 3;
}
