/*
 * Sessions in all modes of the library, against a destination that greets with "hello\n" and echoes.
 *
 * usage: session CASE HOST PORT NUMBER [NAME=VALUE]...
 */
#define _GNU_SOURCE
#include "check.h"

#include <phoebus.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *host;
static uint16_t port;
static long number;
static char **names;

static phoebus_options *options(void)
{
    phoebus_options *options = phoebus_options_new();
    for (char **name = names; *name != NULL; name++) {
        char pair[512];
        snprintf(pair, sizeof pair, "%s", *name);
        char *value = strchr(pair, '=');
        CHECK(value != NULL);
        *value++ = 0;
        phoebus_options_set(options, pair, value);
    }
    return options;
}

/* Prints the error and exits. */
static void fail(phoebus_error *error)
{
    printf("%d %d [%s] %s\n", phoebus_error_code(error), phoebus_error_errno(error), phoebus_error_hop(error),
           phoebus_error_message(error));
    phoebus_error_free(error);
}

static phoebus_session *open_one(void)
{
    phoebus_options *chosen = options();
    phoebus_error *error = NULL;
    phoebus_session *session = phoebus_connect(chosen, host, port, &error);
    phoebus_options_free(chosen);
    if (session == NULL) {
        fail(error);
        exit(3);
    }
    CHECK(error == NULL);
    return session;
}

struct sender {
    const phoebus_session *session;
    long len;
};

static unsigned char at(long n)
{
    return (unsigned char)(n * 31 + (n >> 9));
}

static void *send_all(void *data)
{
    struct sender *sender = data;
    unsigned char bytes[8192];
    for (long sent = 0; sent < sender->len;) {
        size_t n = 0;
        for (; n < sizeof bytes && sent + (long)n < sender->len; n++)
            bytes[n] = at(sent + (long)n);
        for (size_t done = 0; done < n;) {
            ssize_t wrote = phoebus_write(sender->session, bytes + done, n - done);
            CHECK(wrote > 0);
            done += (size_t)wrote;
        }
        sent += (long)n;
    }
    CHECK(phoebus_shutdown(sender->session) == 0);
    return NULL;
}

/* Checks the greeting, and the echo of len bytes while sending them; finishes the session. */
static void converse(phoebus_session *session, long len)
{
    struct sender sender = {session, len};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_all, &sender) == 0);
    unsigned char bytes[8192];
    long got = -6;
    ssize_t n;
    while ((n = phoebus_read(session, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < n; i++, got++)
            CHECK(bytes[i] == (got < 0 ? (unsigned char)"hello\n"[got + 6] : at(got)));
    CHECK(n == 0 && got == len);
    CHECK(pthread_join(thread, NULL) == 0);
    phoebus_stats stats;
    CHECK(phoebus_session_stats(session, &stats, sizeof stats) == 0);
    CHECK(stats.bytes_received >= (uint64_t)len && stats.bytes_sent >= (uint64_t)len);
    CHECK(stats.congestion_control[0] != 0 && stats.send_buffer > 0);
    phoebus_error *error = NULL;
    int code = phoebus_finish(session, &error);
    if (code != 0)
        fail(error);
    CHECK(code == 0 && error == NULL);
}

static void blocking(void)
{
    phoebus_session *session = open_one();
    const phoebus_report *report = phoebus_session_report(session);
    printf("%s\n%s\n", phoebus_report_json(report), phoebus_session_peer(session));
    phoebus_hop hop;
    CHECK(phoebus_report_hop(report, 0, &hop, sizeof hop) == 0 && strcmp(hop.from, "client") == 0);
    /* Programs compiled with fewer members, and with more. */
    struct {
        phoebus_hop hop;
        uint64_t later;
    } larger = {.later = 7};
    CHECK(phoebus_report_hop(report, 0, &larger.hop, sizeof larger) == 0 && larger.later == 0);
    memset(&hop, 1, sizeof hop);
    CHECK(phoebus_report_hop(report, 0, &hop, sizeof hop.from) == 0 && hop.warm == 0x01010101);
    CHECK(phoebus_report_hop(report, phoebus_report_hops(report), &hop, sizeof hop) == PHOEBUS_E_ARGUMENT);
    converse(session, number);
}

/* The same with only system calls on the descriptor. */
static void descriptor(void)
{
    phoebus_session *session = open_one();
    int fd = phoebus_session_descriptor(session);
    CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) == 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(write(fd, "x", 1) == 1);
    CHECK(phoebus_shutdown(session) == 0);
    char text[16];
    size_t len = 0;
    ssize_t n;
    while ((n = read(fd, text + len, sizeof text - len)) > 0)
        len += (size_t)n;
    CHECK(n == 0 && len == 7 && memcmp(text, "hello\nx", 7) == 0);
    CHECK(phoebus_finish(session, NULL) == 0);
}

/* Finishing a session fails before both directions have ended. */
static void early(void)
{
    phoebus_session *session = open_one();
    char text[6];
    CHECK(read(phoebus_session_descriptor(session), text, 6) > 0);
    phoebus_error *error = NULL;
    CHECK(phoebus_finish(session, &error) == PHOEBUS_E_STATE);
    fail(error);
    session = open_one();
    phoebus_session_free(session);
}

static void *in_thread(void *data)
{
    for (long i = 0; i < number; i++)
        converse(open_one(), 20000);
    return data;
}

/* Many at the same time, each in its own thread; errors too. */
static void threads(void)
{
    pthread_t all[8];
    for (size_t i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, in_thread, NULL) == 0);
    for (size_t i = 0; i < 8; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
}

/* Many at the same time in one thread, which polls their descriptors. */
static void polled(void)
{
    phoebus_context *context = phoebus_context_new();
    CHECK(context != NULL);
    phoebus_options *chosen = options();
    phoebus_attempt *attempts[64];
    struct pollfd fds[64];
    CHECK(number <= 64);
    for (long i = 0; i < number; i++) {
        attempts[i] = phoebus_connect_start(context, chosen, host, port, NULL, NULL, NULL);
        CHECK(attempts[i] != NULL);
        fds[i] = (struct pollfd){.fd = phoebus_attempt_descriptor(attempts[i]), .events = POLLIN};
    }
    phoebus_options_free(chosen);
    for (long left = number; left > 0;) {
        CHECK(poll(fds, (nfds_t)number, -1) > 0);
        for (long i = 0; i < number; i++) {
            phoebus_session *session;
            phoebus_error *error;
            if (fds[i].fd < 0)
                continue;
            int code = phoebus_attempt_finish(attempts[i], &session, &error);
            CHECK((code == PHOEBUS_E_PENDING) == ((fds[i].revents & POLLIN) == 0) || code == 0);
            if (code == PHOEBUS_E_PENDING) {
                CHECK(session == NULL);
                phoebus_error_free(error);
                continue;
            }
            CHECK(code == 0);
            phoebus_attempt_free(attempts[i]);
            fds[i].fd = -1;
            left--;
            converse(session, 1000);
        }
    }
    CHECK(phoebus_process(context, 0) == 0);
    phoebus_context_free(context);
}

static pthread_t loop;
static long called;

static void opened(void *handle, void *data)
{
    CHECK(pthread_equal(pthread_self(), loop));
    phoebus_attempt **place = data;
    CHECK(handle == *place);
    phoebus_session *session;
    phoebus_error *error;
    int code = phoebus_attempt_finish(handle, &session, &error);
    phoebus_attempt_free(handle);
    *place = NULL;
    called++;
    if (code != 0) {
        fail(error);
        return;
    }
    converse(session, 1000);
}

/* Callbacks run only in phoebus_process(), and never for an aborted attempt. */
static void callbacks(void)
{
    loop = pthread_self();
    phoebus_context *context = phoebus_context_new();
    phoebus_options *chosen = options();
    phoebus_attempt *attempts[65];
    CHECK(number <= 64);
    for (long i = 0; i <= number; i++)
        CHECK(attempts[i] = phoebus_connect_start(context, chosen, host, port, opened, &attempts[i], NULL));
    phoebus_options_free(chosen);
    phoebus_attempt_free(attempts[number]);
    struct pollfd ready = {.fd = phoebus_context_descriptor(context), .events = POLLIN};
    CHECK(poll(&ready, 1, -1) == 1 && called == 0);
    while (called < number) {
        CHECK(poll(&ready, 1, -1) == 1);
        CHECK(phoebus_process(context, 0) >= 0);
    }
    CHECK(phoebus_process(context, 50) == 0 && called == number);
    phoebus_context_free(context);
}

/* A child uses and finishes a session. The context is unusable there, and stays intact. */
static void forked(void)
{
    phoebus_context *context = phoebus_context_new();
    phoebus_options *chosen = options();
    phoebus_attempt *attempt = phoebus_connect_start(context, chosen, host, port, NULL, NULL, NULL);
    phoebus_session *session = open_one();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        phoebus_error *error = NULL;
        CHECK(phoebus_connect_start(context, chosen, host, port, NULL, NULL, &error) == NULL);
        CHECK(phoebus_error_code(error) == PHOEBUS_E_FORKED);
        phoebus_error_free(error);
        phoebus_attempt_free(attempt);
        CHECK(phoebus_process(context, 0) == 0);
        phoebus_context_free(context);
        converse(session, 100000);
        /* Handles that the child makes itself work as usual. */
        converse(open_one(), 1000);
        context = phoebus_context_new();
        CHECK(attempt = phoebus_connect_start(context, chosen, host, port, NULL, NULL, NULL));
        struct pollfd ready = {.fd = phoebus_attempt_descriptor(attempt), .events = POLLIN};
        CHECK(poll(&ready, 1, -1) == 1);
        CHECK(phoebus_attempt_finish(attempt, &session, NULL) == 0);
        converse(session, 1000);
        phoebus_attempt_free(attempt);
        phoebus_context_free(context);
        phoebus_options_free(chosen);
        exit(0);
    }
    phoebus_session_free(session);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    struct pollfd ready = {.fd = phoebus_attempt_descriptor(attempt), .events = POLLIN};
    CHECK(poll(&ready, 1, -1) == 1);
    CHECK(phoebus_attempt_finish(attempt, &session, NULL) == 0);
    phoebus_attempt_free(attempt);
    phoebus_context_free(context);
    phoebus_options_free(chosen);
    converse(session, 1000);
}

/* Every function with NULL. */
static void nothing(void)
{
    phoebus_error *error;
    CHECK(phoebus_options_set(NULL, "gateway", "pg1") == PHOEBUS_E_ARGUMENT);
    phoebus_options *chosen = phoebus_options_new();
    CHECK(phoebus_options_error(chosen) == NULL);
    CHECK(phoebus_options_set(chosen, NULL, NULL) == PHOEBUS_E_ARGUMENT);
    CHECK(phoebus_options_set(chosen, "gateway", "\xff\xfe") == PHOEBUS_E_ARGUMENT);
    CHECK(phoebus_error_code(phoebus_options_error(chosen)) == PHOEBUS_E_ARGUMENT);
    phoebus_options *copy = phoebus_options_copy(chosen);
    CHECK(phoebus_connect(copy, host, port, &error) == NULL && phoebus_error_code(error) == PHOEBUS_E_ARGUMENT);
    phoebus_error_free(error);
    phoebus_options_free(copy);
    phoebus_options_free(chosen);
    CHECK(phoebus_connect(NULL, NULL, 0, NULL) == NULL);
    CHECK(phoebus_connect(NULL, host, port, &error) == NULL && phoebus_error_code(error) == PHOEBUS_E_NO_GATEWAY);
    CHECK(phoebus_error_errno(error) != 0 && phoebus_error_message(error)[0] != 0 && phoebus_error_hop(error)[0] == 0);
    phoebus_error_free(error);
    phoebus_error_free(NULL);
    CHECK(phoebus_error_code(NULL) == 0 && phoebus_error_message(NULL)[0] == 0);
    CHECK(phoebus_connect_start(NULL, NULL, host, port, NULL, NULL, &error) == NULL);
    phoebus_error_free(error);
    CHECK(phoebus_listen(NULL, NULL, NULL, 0, NULL, NULL, NULL) == NULL);
    phoebus_context_free(NULL);
    phoebus_attempt_free(NULL);
    phoebus_listener_free(NULL);
    phoebus_handshake_free(NULL);
    phoebus_session_free(NULL);
    phoebus_options_free(NULL);
    CHECK(phoebus_handshake_error(NULL) == NULL && phoebus_handshake_report(NULL) == NULL);
    CHECK(phoebus_handshake_deadline(NULL) == UINT64_MAX && phoebus_handshake_again(NULL) == 0);
    size_t size;
    CHECK(phoebus_handshake_step(NULL, 0, NULL, 0, &size, NULL, 0, &size, &size) == PHOEBUS_STEP_FAILED);
    CHECK(phoebus_finish(NULL, NULL) == PHOEBUS_E_ARGUMENT);
    CHECK(phoebus_read(NULL, NULL, 0) == -1 && errno == EBADF);
    CHECK(phoebus_session_descriptor(NULL) == -1 && phoebus_session_release(NULL) == -1);
    CHECK(phoebus_process(NULL, -1) == 0 && phoebus_context_descriptor(NULL) == -1);
    CHECK(phoebus_report_hops(NULL) == 0 && phoebus_report_json(NULL)[0] == 0);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", PHOEBUS_VERSION_MAJOR, PHOEBUS_VERSION_MINOR, PHOEBUS_VERSION_PATCH);
    CHECK(strcmp(version, phoebus_version()) == 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"blocking", blocking}, {"descriptor", descriptor}, {"early", early},   {"threads", threads}, {"polled", polled},
        {"callbacks", callbacks}, {"forked", forked},       {"nothing", nothing},
    };
    if (argc < 5)
        return 2;
    host = argv[2];
    port = (uint16_t)atoi(argv[3]);
    number = atol(argv[4]);
    names = argv + 5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    return 2;
}
