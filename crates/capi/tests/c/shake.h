/* Shared by the programs with a handshake machine: a clock, and the machine's I/O on a blocking connection. */
#ifndef SHAKE_H
#define SHAKE_H

#include <phoebus.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0) {
            perror("send");
            exit(1);
        }
        bytes += n;
        len -= (size_t)n;
    }
}

/* Moves bytes until the machine is done, 1, or has failed, 0. rest receives the bytes read that belong to the session. */
static int shake(phoebus_handshake *h, int fd, size_t chunk, size_t room, char **rest, size_t *rest_len)
{
    /* Allocations of exactly these sizes, so that memory checkers detect any access beyond them. */
    char *in = malloc(65536), *out = malloc(room);
    size_t in_len = 0, consumed, produced, want;
    int done = -1;
    while (done < 0) {
        switch (phoebus_handshake_step(h, now_ns(), in, in_len, &consumed, out, room, &produced, &want)) {
        case PHOEBUS_STEP_WRITE:
            send_all(fd, out, produced);
            memmove(in, in + consumed, in_len - consumed);
            in_len -= consumed;
            break;
        case PHOEBUS_STEP_READ: {
            if (consumed != in_len)
                abort();
            size_t most = chunk == 0 ? 65536 : chunk < want ? chunk : want;
            ssize_t n = recv(fd, in, most, 0);
            in_len = n > 0 ? (size_t)n : 0;
            if (n <= 0) {
                phoebus_handshake_lost(h, n < 0 ? errno : 0);
                done = 0;
            }
            break;
        }
        case PHOEBUS_STEP_DONE:
            *rest_len = in_len - consumed;
            *rest = malloc(*rest_len + 1);
            memcpy(*rest, in + consumed, *rest_len);
            done = 1;
            break;
        default:
            done = 0;
        }
    }
    free(in);
    free(out);
    return done;
}

/* Prints the error on one line. */
static void complain(const phoebus_handshake *h)
{
    const phoebus_error *error = phoebus_handshake_error(h);
    printf("%d %d [%s] %s\n", phoebus_error_code(error), phoebus_error_errno(error), phoebus_error_hop(error),
           phoebus_error_message(error));
}

#endif
