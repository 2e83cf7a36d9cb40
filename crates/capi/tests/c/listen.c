/*
 * A session-aware destination: greets every session with "hello\n", echoes, and finishes it.
 *
 * usage: listen HOW PORT SESSIONS [NAME=VALUE]...
 * HOW: waits in phoebus_accept (wait), polls the listener (poll), or uses a callback (call; with "-all", accepts every pending
 * session in it); with "-fork", serves each session in a child.
 * Prints its port, then a line for each session: client, destination, path. Exits after SESSIONS sessions.
 */
#define _GNU_SOURCE
#include "check.h"

#include <phoebus.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int forks, all;
static long served;
static pthread_t threads[1024];

static void *echo(void *data)
{
    phoebus_session *session = data;
    char bytes[16384] = "hello\n";
    ssize_t n = 6;
    do {
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = phoebus_write(session, bytes + done, (size_t)(n - done));
            if (wrote < 0) {
                perror("listen: write");
                phoebus_session_free(session);
                return NULL;
            }
            done += wrote;
        }
    } while ((n = phoebus_read(session, bytes, sizeof bytes)) > 0);
    phoebus_error *error = NULL;
    if (n < 0) {
        perror("listen: read");
        phoebus_session_free(session);
    } else if (phoebus_finish(session, &error) != 0)
        fprintf(stderr, "listen: %s\n", phoebus_error_message(error));
    phoebus_error_free(error);
    return NULL;
}

static void serve(phoebus_session *session)
{
    const phoebus_report *report = phoebus_session_report(session);
    phoebus_hop hop;
    CHECK(phoebus_report_hops(report) == 1 && phoebus_report_hop(report, 0, &hop, sizeof hop) == 0);
    printf("%s for %s by %s to %s %s\n", phoebus_session_peer(session), phoebus_report_destination(report), hop.from, hop.to,
           phoebus_report_note(report));
    fflush(stdout);
    if (!forks) {
        CHECK(pthread_create(&threads[served++], NULL, echo, session) == 0);
        return;
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        echo(session);
        _exit(0);
    }
    served++;
    phoebus_session_free(session);
}

static void arrived(void *handle, void *data)
{
    (void)data;
    phoebus_session *session;
    CHECK(phoebus_accept(handle, 0, &session, NULL) == 0);
    do
        serve(session);
    while (all && phoebus_accept(handle, 0, &session, NULL) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    long sessions = atol(argv[3]);
    CHECK(sessions <= 1024);
    forks = strstr(argv[1], "-fork") != NULL;
    all = strstr(argv[1], "-all") != NULL;
    phoebus_options *options = phoebus_options_new();
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value++ = 0;
        phoebus_options_set(options, argv[i], value);
    }
    phoebus_context *context = phoebus_context_new();
    phoebus_error *error = NULL;
    const char *address = getenv("ADDRESS");
    int calls = strncmp(argv[1], "call", 4) == 0;
    phoebus_listener *listener = phoebus_listen(context, options, address, (uint16_t)atoi(argv[2]), calls ? arrived : NULL, NULL,
                                                &error);
    phoebus_options_free(options);
    if (listener == NULL) {
        printf("%d %s\n", phoebus_error_code(error), phoebus_error_message(error));
        phoebus_error_free(error);
        phoebus_context_free(context);
        return 3;
    }
    phoebus_session *session;
    /* Nobody connects before the port is known. */
    CHECK(phoebus_accept(listener, 0, &session, NULL) == PHOEBUS_E_PENDING && session == NULL);
    printf("%u\n", phoebus_listener_port(listener));
    fflush(stdout);
    while (served < sessions) {
        if (calls) {
            CHECK(phoebus_process(context, -1) >= 0);
            continue;
        }
        struct pollfd ready = {.fd = phoebus_listener_descriptor(listener), .events = POLLIN};
        if (strncmp(argv[1], "poll", 4) == 0)
            CHECK(poll(&ready, 1, -1) == 1);
        CHECK(phoebus_accept(listener, -1, &session, NULL) == 0);
        serve(session);
    }
    phoebus_listener_free(listener);
    for (long i = 0; i < served; i++) {
        if (forks)
            CHECK(wait(NULL) > 0);
        else
            CHECK(pthread_join(threads[i], NULL) == 0);
    }
    /* Sends the rest of the sessions that have finished. */
    phoebus_context_free(context);
    return 0;
}
