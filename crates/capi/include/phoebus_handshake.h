/*
 * libphoebus: the opening of a session as a state machine. This is a part of phoebus.h, which includes it and defines its types.
 */
#ifndef PHOEBUS_HANDSHAKE_H
#define PHOEBUS_HANDSHAKE_H

#include <phoebus.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The opening of a session, for callers with an event loop and connections of their own. The machine starts no thread, opens no
 * socket and reads no clock: it returns where to connect, consumes and produces bytes, and returns how long to wait. (It reads the
 * files that the options name, the file of a running agent, and the time of day in phoebus_handshake_new(), and never later.)
 *
 *     phoebus_handshake *h = phoebus_handshake_new(options, "dtn.example", 2811);
 * again:
 *     if (phoebus_handshake_first_hop(h, now, &host, &port) == 0 && connect to host and port) {
 *         in_len = 0;
 *         for (;;) {
 *             switch (phoebus_handshake_step(h, now, in, in_len, &consumed, out, sizeof out, &produced, &want)) {
 *             case PHOEBUS_STEP_WRITE:  write all of out[0..produced); in_len = 0; continue;
 *             case PHOEBUS_STEP_READ:   in_len = read at least 1 and at most want bytes into in; continue;
 *             case PHOEBUS_STEP_DONE:   the session is open: the connection is the program's, from the next byte on
 *             case PHOEBUS_STEP_FAILED: break;
 *             }
 *         }
 *     } else
 *         phoebus_handshake_lost(h, errno);
 *     close the connection;
 *     if (phoebus_handshake_again(h)) goto again;
 *     complain about phoebus_error_message(phoebus_handshake_error(h));
 *
 * After DONE the connection carries the session's bytes unchanged, and its ends are the session's: shutdown(2) ends one
 * direction, a reset fails both. A program that dies, or closes a connection before it has read its end, should cause a reset
 * and not a FIN: set SO_LINGER {1, 0} before connecting, and clear it when both directions have ended.
 */
typedef struct phoebus_handshake phoebus_handshake;

enum phoebus_step {
    PHOEBUS_STEP_WRITE = 1,  /* send all of the produced bytes, then step again */
    PHOEBUS_STEP_READ = 2,   /* receive at least one and at most *want bytes, then step again with them */
    PHOEBUS_STEP_DONE = 3,   /* the destination is connected; see phoebus_handshake_report() */
    PHOEBUS_STEP_FAILED = 4  /* see phoebus_handshake_error(); close the connection, then call phoebus_handshake_again() */
};

/*
 * A session to this host, a name or an address, and port. The last gateway resolves names. The options are copied.
 *
 * NULL only if out of memory. Wrong arguments or options, or options with neither a gateway nor a fallback (PHOEBUS_E_NO_GATEWAY),
 * give a handshake that has already failed. If the options make this destination direct (disable, only, except), or allow a direct
 * connection without a gateway (fallback), phoebus_handshake_is_direct() is 1.
 */
phoebus_handshake *phoebus_handshake_new(const phoebus_options *options, const char *host, uint16_t port);

/*
 * Returns where to connect, by TCP, and starts the time limit. The host is a name or an address of the first gateway, of the agent
 * on this host, or of the destination itself if the connection is direct; the caller resolves it, and may try several
 * addresses. The string is valid until this function is called again or the handshake is freed.
 *
 * now_ns is the time in nanoseconds of any monotonic clock, such as CLOCK_MONOTONIC. Use the same clock in all functions of a
 * handshake.
 *
 * Fails with the handshake's error if the handshake has failed, and with PHOEBUS_E_STATE if it is in progress or done.
 */
int phoebus_handshake_first_hop(phoebus_handshake *handshake, uint64_t now_ns, const char **host, uint16_t *port);

/*
 * Continues on the connection. The first step reports that the connection exists; it has no input. The input is in_len bytes at in,
 * of which *consumed were used; the rest belongs to the session (a caller that reads at most *want bytes has no rest). *produced
 * bytes are written to out, at most capacity. All four pointers to sizes are required; in may be NULL if in_len is 0.
 *
 * WRITE produces at least 1 byte; capacity must be at least 1. READ sets *want to at least 1: exactly the number of bytes that
 * certainly belong to the handshake. *want is 0 with all other results, *produced is 0 with all but WRITE.
 *
 * Without input while it waits for some, it returns READ again, or FAILED once the deadline has passed.
 */
int phoebus_handshake_step(phoebus_handshake *handshake, uint64_t now_ns, const void *in, size_t in_len, size_t *consumed,
                           void *out, size_t capacity, size_t *produced, size_t *want);

/*
 * The deadline, in nanoseconds: of the connection after phoebus_handshake_first_hop(), of the path after the first step. Once it
 * has passed, call phoebus_handshake_lost() with ETIMEDOUT, or a step without input. UINT64_MAX if the machine waits for nothing.
 */
uint64_t phoebus_handshake_deadline(const phoebus_handshake *handshake);

/*
 * Reports that the connection could not be made, or has failed: errnum is the reason, 0 if it ended while bytes were wanted. First
 * read what the connection still delivers: a gateway states why it hangs up. The handshake has then failed, unless it was done.
 */
void phoebus_handshake_lost(phoebus_handshake *handshake, int errnum);

/*
 * Whether there is another first hop to try after a failure: a better gateway that was named, the gateway itself after an agent
 * that has gone, or the destination itself if the options allow the fallback. If so, 1: the machine starts again with
 * phoebus_handshake_first_hop(), on a new connection. If not, 0, and the error is final.
 */
int phoebus_handshake_again(phoebus_handshake *handshake);

/* 1 if the connection goes directly to the destination: the first step completes it, no byte is exchanged, and the report's note
 * gives the reason. */
int phoebus_handshake_is_direct(const phoebus_handshake *handshake);

/*
 * Adds what the caller knows of the first hop's socket to the report: round trip in microseconds, buffers in bytes (0 if unknown),
 * the name of the congestion control, and what was not granted as asked. NULL leaves a text unchanged. Reports obtained before
 * become invalid.
 */
int phoebus_handshake_describe(phoebus_handshake *handshake, const char *congestion_control, uint64_t rtt_us,
                               uint64_t send_buffer, uint64_t receive_buffer, const char *note);

/*
 * The accepting side: a session that comes to this program, on a connection that it has accepted. The client has set aware=1; the
 * last gateway then asks for the session as it would ask another gateway, and learns from this end that the destination is
 * connected. The machine is stepped like any other, from the first step on: there is no first hop (PHOEBUS_E_STATE), nothing to
 * try again, and phoebus_handshake_report() has only the last hop.
 *
 * from is the peer, address:port, or NULL if unknown; now_ns is the current time. Options that apply here: name, from (without
 * certificates), and connect_timeout: the longest wait for the request. A request that cannot be met, or another protocol, is
 * answered with an error before the machine fails. Security is none: nothing authenticates a connection that the program owns.
 */
phoebus_handshake *phoebus_handshake_accept(const phoebus_options *options, uint64_t now_ns, const char *from);

/* The other end of the session: the requested destination or, once a session was accepted, the client's address as the gateways
 * report it, which is not authenticated. Valid until the next step. */
const char *phoebus_handshake_peer(const phoebus_handshake *handshake);

/* Why it failed; NULL if it has not. Valid until phoebus_handshake_again() or phoebus_handshake_free(). */
const phoebus_error *phoebus_handshake_error(const phoebus_handshake *handshake);

/* The session's report; NULL before the handshake is done. */
const phoebus_report *phoebus_handshake_report(const phoebus_handshake *handshake);

void phoebus_handshake_free(phoebus_handshake *handshake);

#ifdef __cplusplus
}
#endif

#endif /* PHOEBUS_HANDSHAKE_H */
