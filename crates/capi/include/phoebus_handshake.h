/*
 * libphoebus: the opening of a session as a machine. A part of phoebus.h, which includes it and has what it stands on.
 */
#ifndef PHOEBUS_HANDSHAKE_H
#define PHOEBUS_HANDSHAKE_H

#include <phoebus.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The opening of a session, for callers with an event loop and connections of their own. The machine starts no thread, opens no
 * socket and looks at no clock: it says where to connect, takes and gives bytes, and says how long to wait. (Files that the options
 * name, the one that an agent is found by, and the time of day it reads in phoebus_handshake_new(), and never later.)
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
 * After DONE the connection carries the session's bytes as they are, and its ends are the session's: shutdown(2) ends one
 * direction, a reset fails both. A program that dies, or closes a connection before it has read its end, should leave a reset
 * behind and not a FIN: set SO_LINGER {1, 0} before the connection is made, and take that back when both directions have ended.
 */
typedef struct phoebus_handshake phoebus_handshake;

enum phoebus_step {
    PHOEBUS_STEP_WRITE = 1,  /* send the bytes that were produced, all of them, then step again */
    PHOEBUS_STEP_READ = 2,   /* receive some bytes, at most as many as are wanted, then step again with them */
    PHOEBUS_STEP_DONE = 3,   /* the destination has connected; phoebus_handshake_report() */
    PHOEBUS_STEP_FAILED = 4  /* phoebus_handshake_error(); close the connection, and see phoebus_handshake_again() */
};

/*
 * A session to this host, a name or an address, and port. Names are resolved by the last gateway. The options are copied.
 *
 * Never NULL but without memory: what is wrong with the arguments or the options, or that they name no gateway and no fallback
 * (PHOEBUS_E_NO_GATEWAY), makes a handshake that has failed already. Where the options say that this destination goes direct
 * (disable, only, except), or that it does when there is no gateway (fallback), phoebus_handshake_is_direct() is 1.
 */
phoebus_handshake *phoebus_handshake_new(const phoebus_options *options, const char *host, uint16_t port);

/*
 * Where to connect, by TCP, and that the time for it begins now. The host is a name or an address of the first gateway, of
 * the agent on this host, or of the destination itself if the connection is direct; the caller resolves it, and may try several
 * addresses. The string stays until this function is called again or the handshake is freed.
 *
 * Nanoseconds are those of any clock that does not jump, such as CLOCK_MONOTONIC; the same in all functions of a handshake.
 *
 * Fails with the handshake's error when that has failed, with PHOEBUS_E_STATE when it is under way or done.
 */
int phoebus_handshake_first_hop(phoebus_handshake *handshake, uint64_t now_ns, const char **host, uint16_t *port);

/*
 * Goes on, on the connection that was made. The first step says that there is one; it has no input. Of the input, in_len bytes at
 * in, *consumed were taken; what is left belongs to the session (a caller who reads at most *want bytes has none left). Up to
 * capacity bytes are put at out, *produced of them. All four pointers to sizes have to be there; in may be NULL with in_len 0.
 *
 * WRITE comes with at least 1 byte produced, whatever the capacity, which has to be at least 1. READ comes with *want from 1 up:
 * exactly as many bytes as surely belong to the handshake. *want is 0 with all other answers, *produced with all but WRITE.
 *
 * Called without input while it waits for some, it answers READ again, or FAILED once the deadline is over.
 */
int phoebus_handshake_step(phoebus_handshake *handshake, uint64_t now_ns, const void *in, size_t in_len, size_t *consumed,
                           void *out, size_t capacity, size_t *produced, size_t *want);

/*
 * Until when it waits, in nanoseconds: for the connection after phoebus_handshake_first_hop(), for the path after the first step.
 * Once that is over, phoebus_handshake_lost() with ETIMEDOUT, or a step without input, says so to the machine. UINT64_MAX
 * when it waits for nothing.
 */
uint64_t phoebus_handshake_deadline(const phoebus_handshake *handshake);

/*
 * The connection could not be made, or has failed: errnum is why, 0 for its end where bytes were wanted. Read what it still has to
 * say before: a gateway says why it hangs up. The handshake has failed then, unless it was done.
 */
void phoebus_handshake_lost(phoebus_handshake *handshake, int errnum);

/*
 * Whether there is another first hop to try after a failure: a better gateway that was named, the gateway itself after an agent
 * that has gone, or the destination itself if the options say fallback. If so, 1: the machine begins anew with
 * phoebus_handshake_first_hop(), on a new connection. If not, 0, and the error stands.
 */
int phoebus_handshake_again(phoebus_handshake *handshake);

/* 1 if it goes to the destination itself, without gateways: it is done with the first step, no byte is exchanged, and the
 * report's note says why. */
int phoebus_handshake_is_direct(const phoebus_handshake *handshake);

/*
 * Tells what the caller knows of the socket of the first hop, for the report: round trip in microseconds, buffers in bytes (0 where
 * that is not known), the name of the congestion control, and what was asked for and not had. NULL leaves a text as it is.
 * Reports that were got before are of no use any more.
 */
int phoebus_handshake_describe(phoebus_handshake *handshake, const char *congestion_control, uint64_t rtt_us,
                               uint64_t send_buffer, uint64_t receive_buffer, const char *note);

/*
 * The other side: a session that comes to this program, on a connection that it has accepted. Whoever opened it says aware=1; the
 * last gateway then asks for the session as it would ask another gateway, and hears that the destination has connected when this
 * end has said so. The machine is stepped like any other, from the first step on: there is no first hop
 * (PHOEBUS_E_STATE), nothing to try again, and phoebus_handshake_report() has the last hop alone.
 *
 * from is who has connected, address:port, or NULL where that is not known; now_ns is the present. Options that count here: name,
 * from (without certificates), and connect_timeout: how long it may take to ask. Who asks for what cannot be had, or speaks another
 * protocol, is told so before the machine fails. Security is none: nothing is proved on a connection of a program's own.
 */
phoebus_handshake *phoebus_handshake_accept(const phoebus_options *options, uint64_t now_ns, const char *from);

/* The other end of the session: the destination as it was asked for, or, once a session was accepted, the client's address as the
 * gateways have it, which nobody has proved. Stays until the next step. */
const char *phoebus_handshake_peer(const phoebus_handshake *handshake);

/* Why it failed; NULL if it has not. Stays until phoebus_handshake_again() or phoebus_handshake_free(). */
const phoebus_error *phoebus_handshake_error(const phoebus_handshake *handshake);

/* What the session got; NULL before it is done. */
const phoebus_report *phoebus_handshake_report(const phoebus_handshake *handshake);

void phoebus_handshake_free(phoebus_handshake *handshake);

#ifdef __cplusplus
}
#endif

#endif /* PHOEBUS_HANDSHAKE_H */
