/*
 * A session-aware destination: echoes the bytes it receives, with one thread for each session.
 *
 *     ./echo-server 5006 name=dst.example
 *
 * A gateway passes sessions to it if the gateway's configuration names it as a peer, with a route to it:
 *
 *     [[peer]]                          [[route]]
 *     name = "dst.example"              to = "dst.example"
 *     address = "dst.example/5006"      via = "dst.example"
 *     security = "none"
 *
 * A client also reaches it without a gateway: path=dst.example/5006, to dst.example and any port.
 */
#include <phoebus.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *echo(void *data)
{
    phoebus_session *session = data;
    char bytes[64 * 1024];
    ssize_t n;
    while ((n = phoebus_read(session, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = phoebus_write(session, bytes + done, (size_t)(n - done));
            if (wrote < 0) {
                phoebus_session_free(session); /* A reset: the client sees an error too. */
                return NULL;
            }
            done += wrote;
        }
    phoebus_error *error = NULL;
    if (n < 0)
        phoebus_session_free(session);
    else if (phoebus_finish(session, &error) != 0) {
        fprintf(stderr, "echo-server: %s\n", phoebus_error_message(error));
        phoebus_error_free(error);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: echo-server PORT [OPTION=VALUE]...\n");
        return 2;
    }
    phoebus_options *options = phoebus_options_new();
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value != NULL)
            *value++ = 0;
        phoebus_options_set(options, argv[i], value != NULL ? value : "");
    }
    phoebus_context *context = phoebus_context_new();
    phoebus_error *error = NULL;
    phoebus_listener *listener =
        phoebus_listen(context, options, NULL, (uint16_t)atoi(argv[1]), NULL, NULL, &error);
    phoebus_options_free(options);
    if (listener == NULL) {
        fprintf(stderr, "echo-server: %s\n", phoebus_error_message(error));
        phoebus_error_free(error);
        phoebus_context_free(context);
        return 1;
    }
    printf("listening on port %u\n", phoebus_listener_port(listener));
    fflush(stdout);
    for (;;) {
        phoebus_session *session;
        if (phoebus_accept(listener, -1, &session, &error) != 0) {
            fprintf(stderr, "echo-server: %s\n", phoebus_error_message(error));
            return 1;
        }
        printf("%s for %s\n", phoebus_session_peer(session), phoebus_report_destination(phoebus_session_report(session)));
        fflush(stdout);
        pthread_t thread;
        if (pthread_create(&thread, NULL, echo, session) != 0)
            phoebus_session_free(session);
        else
            pthread_detach(thread);
    }
}
