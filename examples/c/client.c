/*
 * Sends standard input over a session, and prints what comes back: a small nc(1) through gateways.
 *
 *     PHOEBUS_GW=pg1.example/5006 ./client dtn.example 7 < file
 *     ./client dtn.example 7 path=pg1.example/5006,pg2.example/5006 streams=4 < file
 *
 * The session's report goes to standard error. Exit code 0: both directions have ended, and every byte was delivered.
 */
#define _GNU_SOURCE
#include <phoebus.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what, phoebus_error *error)
{
    const char *hop = phoebus_error_hop(error);
    fprintf(stderr, "client: %s%s%s: %s (code %d)\n", what, *hop ? ", at " : "", hop, phoebus_error_message(error),
            phoebus_error_code(error));
    phoebus_error_free(error);
    return 1;
}

static int broken(const char *what)
{
    fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
    return 1;
}

static int write_all(int to, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(to, bytes, len);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* Copies both directions at the same time, up to the end of each. */
static int carry(phoebus_session *session)
{
    static char bytes[256 * 1024];
    int socket = phoebus_session_descriptor(session);
    struct pollfd from[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = socket, .events = POLLIN}};
    size_t waiting = 0, sent = 0; /* Of standard input. */
    static char up[64 * 1024];
    for (;;) {
        /* Does not read while bytes are waiting to be sent. */
        from[0].fd = waiting > sent || from[0].events == 0 ? -1 : STDIN_FILENO;
        from[1].events = (short)(POLLIN | (waiting > sent ? POLLOUT : 0));
        if (poll(from, 2, -1) < 0 && errno != EINTR)
            return broken("poll");
        if (from[0].fd >= 0 && from[0].revents != 0) {
            ssize_t n = read(STDIN_FILENO, up, sizeof up);
            if (n < 0)
                return broken("standard input");
            waiting = (size_t)n;
            sent = 0;
            if (n == 0) {
                from[0].events = 0;
                if (phoebus_shutdown(session) < 0)
                    return broken("the session");
            }
        }
        if (waiting > sent && (from[1].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
            ssize_t n = phoebus_write(session, up + sent, waiting - sent);
            if (n < 0)
                return broken("the session");
            sent += (size_t)n;
        }
        if ((from[1].revents & (POLLIN | POLLERR | POLLHUP)) != 0) {
            ssize_t n = phoebus_read(session, bytes, sizeof bytes);
            if (n < 0)
                return broken("the session");
            if (n == 0)
                return 0;
            if (write_all(STDOUT_FILENO, bytes, (size_t)n) < 0)
                return broken("standard output");
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: client HOST PORT [OPTION=VALUE]...\n");
        return 2;
    }
    /* The command line overrides the environment. The library keeps errors until phoebus_connect. */
    phoebus_options *options = phoebus_options_new();
    phoebus_options_load(options);
    for (int i = 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value != NULL)
            *value++ = 0;
        phoebus_options_set(options, argv[i], value != NULL ? value : "");
    }
    phoebus_error *error = NULL;
    phoebus_session *session = phoebus_connect(options, argv[1], (uint16_t)atoi(argv[2]), &error);
    phoebus_options_free(options);
    if (session == NULL)
        return fail("no session", error);
    fprintf(stderr, "client: %s\n", phoebus_report_text(phoebus_session_report(session)));
    if (carry(session) != 0) {
        phoebus_session_free(session);
        return 1;
    }
    if (phoebus_finish(session, &error) != 0)
        return fail("the session did not end well", error);
    return 0;
}
