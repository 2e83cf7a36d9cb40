/*
 * libphoebus: sessions over Phoebus gateways, for C programs.
 *
 * A session is two byte streams, one each way, between this program and a destination. It goes over gateways, hop by hop; each
 * hop is a transport connection of its own. A program that would connect(2) to a distant host connects through this library
 * instead and gets the speed of the slowest segment.
 *
 * The parts, each of which can be used without those below it:
 *
 *   phoebus_error, phoebus_options, phoebus_report   why not, with what, and what one got
 *   phoebus_handshake                                the opening of a session as a machine: no threads, descriptors or clock; in
 *                                                    phoebus_handshake.h, which this header includes
 *   phoebus_session, phoebus_connect                 an open session, and the shortest way to one
 *   phoebus_context, phoebus_attempt                 sessions that are opened meanwhile, with a descriptor to poll or a callback
 *   phoebus_listener                                 sessions that come to this program
 *
 * Rules for all of it:
 *
 * - Handles are opaque. Whoever makes one frees it with the function of its kind; all of these take NULL.
 * - A handle is used by one thread at a time. Different handles may be used by different threads at the same time: the library has
 *   no state of its own.
 * - Strings are UTF-8 and end with a zero. A "const char *" that a function returns belongs to the handle that it came from and
 *   stays as it is until that handle is freed, unless the function says something else. It is never NULL.
 * - Functions that can fail return 0 or a code of phoebus_code. A fault in the library ends in PHOEBUS_E_BUG and not in the
 *   program's death.
 * - Nothing is written to standard output, and to standard error only the message of a fault in the library. No signal is
 *   touched, no limit of the process is changed, and no callback runs but from phoebus_process().
 *
 * Man pages: libphoebus(3) is an overview, phoebus_handshake(3) and others have the details.
 */
#ifndef PHOEBUS_H
#define PHOEBUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The library's soname carries the part of it that a change of the interface changes. */
#define PHOEBUS_VERSION_MAJOR 0
#define PHOEBUS_VERSION_MINOR 1
#define PHOEBUS_VERSION_PATCH 0

/* The version of the library in use, such as "0.1.0". */
const char *phoebus_version(void);

/* ------------------------------------------------------------------------------------------------------------------ errors */

/*
 * What a failure is, for programs. Those below 65536 are the codes of the session protocol and come from the hop at fault
 * (docs/protocol/session.md, section 7); the others are this library's. There may be more in later versions: a program that does
 * not know one goes by phoebus_error_errno().
 */
enum phoebus_code {
    PHOEBUS_OK = 0,
    PHOEBUS_E_PROTOCOL = 1,             /* a neighbour broke the session protocol, or speaks another */
    PHOEBUS_E_VERSION = 2,              /* no common version */
    PHOEBUS_E_FEATURE = 3,              /* a required feature is not supported */
    PHOEBUS_E_AUTH_REQUIRED = 4,        /* a gateway wants to know who asks */
    PHOEBUS_E_AUTH_FAILED = 5,          /* one end did not prove who it is */
    PHOEBUS_E_NOT_ALLOWED = 6,          /* a gateway's configuration does not allow it */
    PHOEBUS_E_LIMIT = 7,                /* a gateway's limit is reached */
    PHOEBUS_E_LOOP = 8,                 /* the path leads through a gateway twice */
    PHOEBUS_E_DUPLICATE = 9,            /* the session's identifier was seen before */
    PHOEBUS_E_NO_ROUTE = 10,            /* no route, or no such gateway */
    PHOEBUS_E_REQUIREMENT = 11,         /* what was asked for cannot be had: rate, buffer, streams, transport, protection */
    PHOEBUS_E_DRAINING = 12,            /* a gateway is shutting down */
    PHOEBUS_E_HANDSHAKE_TIMEOUT = 13,   /* the handshake took too long */
    PHOEBUS_E_INTERNAL = 14,            /* a gateway failed */
    PHOEBUS_E_TERMINATED = 15,          /* a gateway ended the session */
    PHOEBUS_E_IDLE = 16,                /* the session was idle for too long */
    PHOEBUS_E_NO_SESSION = 17,          /* no session that a connection may join */
    PHOEBUS_E_REFUSED = 32,             /* connection refused */
    PHOEBUS_E_NETWORK_UNREACHABLE = 33, /* network unreachable */
    PHOEBUS_E_HOST_UNREACHABLE = 34,    /* no route to host */
    PHOEBUS_E_TIMED_OUT = 35,           /* connection timed out */
    PHOEBUS_E_NAME_NOT_FOUND = 36,      /* the name does not resolve */
    PHOEBUS_E_RESET = 37,               /* connection reset */
    PHOEBUS_E_CONNECT_FAILED = 38,      /* another failure to connect */

    PHOEBUS_E_ARGUMENT = 65536,         /* a wrong argument or option */
    PHOEBUS_E_STATE = 65537,            /* not now: the handle is not in the state for it */
    PHOEBUS_E_NO_GATEWAY = 65538,       /* the options name no gateway */
    PHOEBUS_E_NO_AGENT = 65539,         /* no agent runs that carries the first hop as demanded */
    PHOEBUS_E_SYSTEM = 65540,           /* the operating system failed: files, memory, descriptors, random numbers */
    PHOEBUS_E_FORKED = 65541,           /* the handle belongs to the process that forked this one */
    PHOEBUS_E_PENDING = 65542,          /* not yet */
    PHOEBUS_E_BUG = 65543               /* a fault in the library; the handle is of no use any more, and can be freed */
};

/* Why something failed. Belongs to the handle that it came from, or is freed with phoebus_error_free() where a function says so. */
typedef struct phoebus_error phoebus_error;

/* One of phoebus_code, or a code of a later version. */
int phoebus_error_code(const phoebus_error *error);

/* The errno that a direct connection would have failed with, or the nearest there is; never 0. */
int phoebus_error_errno(const phoebus_error *error);

/* One sentence for people, which names the gateway, address, option or file that it is about. */
const char *phoebus_error_message(const phoebus_error *error);

/* The hop at fault: a gateway's name or an address. Empty when it is this host. */
const char *phoebus_error_hop(const phoebus_error *error);

void phoebus_error_free(phoebus_error *error);

/* ----------------------------------------------------------------------------------------------------------------- options */

/*
 * With what sessions are opened. Options are names and values, both text, as in a configuration file or on a driver stack:
 *
 *   gateway             HOST/PORT of the first gateway; its routes choose the rest
 *   path                all gateways, the first one first: HOST/PORT,HOST/PORT
 *   only, except        which destinations go through gateways: 10.3.0.0/16:5000-5999,[2001:db8::]/32,host.example,*:443
 *   disable             1: connections are direct, as if nothing else were set
 *   fallback            direct, or 1: go direct when no gateway can be reached; 0, the default: fail
 *   security            of the connection to the first gateway: none, the default, or auth: TLS proves who is at both ends and
 *                       protects what is asked for; the data follow in the clear. (encrypt is for destinations, see there)
 *   first_hop           quic, udt, tls or auto: go by the agent on this host that carries the first hop so; tcp: without one.
 *                       By default an agent that runs is used, and none is needed; with security=auth none is used
 *   authorities         PEM file: who may vouch for the first gateway (with security=auth)
 *   certificate, key    PEM files: this user's certificate, for gateways that want to see one
 *   user                an e-mail address, for gateways that ask for one
 *   rate                bandwidth to ask every gateway for, such as 100mbit; a session that does not get it is refused
 *   buffer              memory to ask every gateway for, per direction, such as 16MiB; likewise
 *   streams             connections of each hop between gateways, 1 to 65535; likewise
 *   protection          the least protection of each hop between gateways: none, auth or encrypt; likewise
 *   transport           what each hop between gateways has to be carried by: tcp, udt, quic or a driver's name; a session whose
 *                       report says something else, or has no such hop, fails
 *   send_buffer, receive_buffer
 *                       of the first hop's socket: auto, the default, or a size such as 8MiB
 *   congestion_control  of the first hop's socket: a name, or system to leave it alone; bbr where it is permitted by default
 *   connect_timeout     how long the first gateway may take to accept a connection, or whoever has connected to ask: 10s
 *   open_timeout        how long the path may take to say that the destination has connected: 150s
 *   finish_timeout      how long, at the end of a session, the far side may acknowledge nothing: 5m
 *   redirects           how many times a gateway that refuses may name a better one: 4
 *   bypass_rtt          destinations whose path measured a shorter round trip go direct, such as 2ms; 0, the default: none
 *   cache               the file that remembers these round trips
 *   aware               1: the destination is one that takes part in its sessions (phoebus_listener, phoebus_handshake_accept()), and
 *                       the last gateway asks it for this one; where it does not, and where the connection is direct, it fails
 *   name, from          see phoebus_listener
 *
 * The first error is kept. Whatever is made with the options then fails with it, so that only the end needs to be looked at, and
 * a misspelt option never means a direct connection.
 */
typedef struct phoebus_options phoebus_options;

/* Options as above by default: without a gateway, and without regard to environment and files. NULL without memory. */
phoebus_options *phoebus_options_new(void);

/* An independent copy. NULL without memory. */
phoebus_options *phoebus_options_copy(const phoebus_options *options);

/*
 * Takes over /etc/phoebus/client.conf, the user's client.conf and the variables PHOEBUS_GW, PHOEBUS_PATH and the others of
 * phoebus-run(1), each of which stands before the one named before it. What is to stand before all of them is set afterwards.
 */
int phoebus_options_load(phoebus_options *options);

/* Sets an option. A later value stands in the place of an earlier one. */
int phoebus_options_set(phoebus_options *options, const char *name, const char *value);

/*
 * The value of an option as it could be set, environment and files included: empty if it has none, or if there is no such option. At
 * most size bytes are put at value, the final zero included; the result is how long the whole is without it, as with snprintf(3).
 */
size_t phoebus_options_get(const phoebus_options *options, const char *name, char *value, size_t size);

/*
 * Whether connections to this destination go through gateways: 1 or 0, by only, except, disable, and whether a gateway is set. The
 * host is a name or an address; ranges of addresses fit addresses only. This host's own addresses (loopback, link-local) go
 * direct unless a range of only has them in it.
 */
int phoebus_options_select(const phoebus_options *options, const char *host, uint16_t port);

/* The first error that was met with, NULL if there was none. */
const phoebus_error *phoebus_options_error(const phoebus_options *options);

void phoebus_options_free(phoebus_options *options);

/* ----------------------------------------------------------------------------------------------------------------- reports */

/* What a session got, hop by hop. Belongs to the handle that it came from. */
typedef struct phoebus_report phoebus_report;

/* One hop of a session. Members are only ever added at the end. */
typedef struct phoebus_hop {
    const char *from;               /* who opened it: a gateway's name, or "client" */
    const char *to;                 /* where it leads: a gateway's name, or the destination's address */
    const char *transport;          /* "tcp", "tls", "quic", "udt" */
    const char *congestion_control; /* in force at its beginning; empty where that is not known */
    const char *security;           /* "none", "auth" or "encrypt" */
    const char *note;               /* what was asked for and not had; empty if nothing */
    uint64_t rtt_us;                /* round trip in microseconds, 0 where it is not known */
    uint64_t send_buffer;           /* in force, in bytes, 0 where it is not known */
    uint64_t receive_buffer;        /* likewise */
    uint64_t rate;                  /* the most that the session may send on it, in bits per second; 0 without a bound */
    uint32_t streams;               /* connections that make it up, at most */
    uint32_t warm;                  /* 1 if its connection had carried a session before */
} phoebus_hop;

/* The session's identifier, 32 hexadecimal digits, the same in every gateway's log; empty for a direct connection. */
const char *phoebus_report_session(const phoebus_report *report);

/* Where it ends, host:port. */
const char *phoebus_report_destination(const phoebus_report *report);

/* Round trip of all hops in microseconds, as far as they are known. */
uint64_t phoebus_report_rtt_us(const phoebus_report *report);

/* How long it took to open, in microseconds. */
uint64_t phoebus_report_opened_in_us(const phoebus_report *report);

/* Why the connection is direct although gateways were set, or leads through other gateways; empty if nothing is to be said. */
const char *phoebus_report_note(const phoebus_report *report);

/* How many hops there are, the one from this host included. */
size_t phoebus_report_hops(const phoebus_report *report);

/* Fills in the hop with this index, from 0; size is sizeof(phoebus_hop). PHOEBUS_E_ARGUMENT if there is none. */
int phoebus_report_hop(const phoebus_report *report, size_t index, phoebus_hop *hop, size_t size);

/* All of it on one line for people: client –8.1ms tcp/bbr→ pg1 –100.2ms tcp*8/cubic warm→ pg2 –8.0ms tcp/cubic→ 10.0.0.4:80 */
const char *phoebus_report_text(const phoebus_report *report);

/* All of it as an object of JSON, on one line. */
const char *phoebus_report_json(const phoebus_report *report);

/* --------------------------------------------------------------------------------------------------------- handshake machine */

#include <phoebus_handshake.h>

/* ---------------------------------------------------------------------------------------------------------------- sessions */

/*
 * An open session, which is a socket of the program's own: phoebus_session_descriptor() can be polled, and read(2), write(2),
 * sendfile(2), splice(2) and setsockopt(2) do what they do with a TCP connection. It blocks until the program sets O_NONBLOCK.
 *
 * A session ends well only if both directions have ended and phoebus_finish() says so; in all other cases both ends of it see a
 * reset, and never an end of stream that looks like a complete one: phoebus_session_free() resets, and so does the death of the
 * program, as soon as no other process has the descriptor.
 *
 * phoebus_read, phoebus_write, phoebus_shutdown and phoebus_session_stats may be called for one session by several threads at a
 * time, and in a child of fork(2) as in its parent.
 */
typedef struct phoebus_session phoebus_session;

/*
 * Opens a session to this host, a name that the last gateway resolves, or an address, and waits for it: when this returns, the
 * destination has connected. Without a gateway: as phoebus_handshake_new() says. NULL on failure; *error is then why, to be freed
 * with phoebus_error_free(). error may be NULL.
 */
phoebus_session *phoebus_connect(const phoebus_options *options, const char *host, uint16_t port, phoebus_error **error);

/* The socket. It belongs to the session. */
int phoebus_session_descriptor(const phoebus_session *session);

/* As recv(2) and send(2), without a signal: how many bytes, 0 for the end of the other stream, -1 and errno. */
ssize_t phoebus_read(const phoebus_session *session, void *buffer, size_t len);
ssize_t phoebus_write(const phoebus_session *session, const void *buffer, size_t len);

/* Ends this end's stream; the other goes on. 0, or -1 and errno. (Not shutdown(2): phoebus_finish() has to know of it.) */
int phoebus_shutdown(const phoebus_session *session);

/*
 * Ends the session well, and frees it in any case: ends this end's stream, waits until the next hop has acknowledged all of it, and
 * closes. The other end's stream has to have been read to its end before (PHOEBUS_E_STATE if it has not). 0, or a code; the
 * session was reset then, and *error, if there is a place for it, is why.
 */
int phoebus_finish(phoebus_session *session, phoebus_error **error);

/* Gives the socket to the program for good and frees the rest. It still resets when it is closed (SO_LINGER {1, 0}). */
int phoebus_session_release(phoebus_session *session);

/* What it got, hop by hop. */
const phoebus_report *phoebus_session_report(const phoebus_session *session);

/* The other end: the destination as it was asked for, or, of a session that was accepted, the client's address as the gateways
 * have it, which nobody has proved. */
const char *phoebus_session_peer(const phoebus_session *session);

/* Statistics of the first hop, 0 where they are not known. Members are only ever added at the end. */
typedef struct phoebus_stats {
    uint64_t bytes_sent;          /* repetitions included */
    uint64_t bytes_acked;
    uint64_t bytes_received;      /* without repetitions */
    uint64_t bytes_retransmitted;
    uint64_t rtt_us;              /* smoothed round trip, in microseconds */
    uint64_t rtt_var_us;          /* its mean deviation */
    uint64_t min_rtt_us;          /* the least of late */
    uint64_t delivery_rate;       /* of late, in bytes per second */
    uint64_t pacing_rate;         /* in bytes per second; 0 without pacing */
    uint64_t send_buffer;         /* in force, in bytes */
    uint64_t receive_buffer;
    uint64_t congestion_window;   /* in bytes */
    uint64_t unsent;              /* bytes written and not sent yet */
    uint64_t segments_lost;       /* believed lost now */
    char congestion_control[16];
} phoebus_stats;

/* Fills in the statistics; size is sizeof(phoebus_stats). */
int phoebus_session_stats(const phoebus_session *session, phoebus_stats *stats, size_t size);

/* Resets the session, unless another process has its socket too, and frees it. */
void phoebus_session_free(phoebus_session *session);

/* ---------------------------------------------------------------------------------------------------- while others work on it */

/*
 * What a program with an event loop has: a thread of the library's that opens and accepts sessions meanwhile, and callbacks, which
 * run in phoebus_process() and nowhere else. The thread takes none of the program's signals.
 *
 * A context and what is made in it are used by one thread at a time; sessions are not part of it. They belong to the process that
 * made the context: in a child of fork(2) its functions fail with PHOEBUS_E_FORKED, and freeing it leaves the parent's alone. A
 * child that goes on for long without exec(3) should know that it has copies of the parent's sockets.
 */
typedef struct phoebus_context phoebus_context;

/* Called from phoebus_process(), with the handle that it is about and what was given with it. It may use and free any handle but
 * the context. */
typedef void phoebus_callback(void *handle, void *data);

/* NULL without memory, descriptors or a thread. */
phoebus_context *phoebus_context_new(void);

/* Readable when phoebus_process() has something to do. */
int phoebus_context_descriptor(const phoebus_context *context);

/*
 * Calls the callbacks that are due, and says how many that were. If none is, it waits for so many milliseconds; not at all with 0,
 * for ever with -1.
 */
int phoebus_process(const phoebus_context *context, int milliseconds);

/* Frees it, after what was made in it. Sessions that were accepted through it are reset; those that were opened go on. */
void phoebus_context_free(phoebus_context *context);

/* A session that is being opened. */
typedef struct phoebus_attempt phoebus_attempt;

/*
 * Begins to open a session, as phoebus_connect() does. When it is open or has failed, the attempt's descriptor becomes readable and
 * the callback, if there is one, is called with the attempt. NULL and *error if it cannot even be begun.
 */
phoebus_attempt *phoebus_connect_start(const phoebus_context *context, const phoebus_options *options, const char *host,
                                       uint16_t port, phoebus_callback *callback, void *data, phoebus_error **error);

/* Readable once it has come to an end. */
int phoebus_attempt_descriptor(const phoebus_attempt *attempt);

/* What came of it: 0 and *session, once; PHOEBUS_E_PENDING as long as it goes on; otherwise why not, and *error. */
int phoebus_attempt_finish(const phoebus_attempt *attempt, phoebus_session **session, phoebus_error **error);

/* Gives it up, if it is not over. Its callback is not called any more. */
void phoebus_attempt_free(phoebus_attempt *attempt);

/* ---------------------------------------------------------------------------------------------------------------- listening */

/*
 * A session-aware destination: gateways hand it sessions as they hand them to each other, on warm connections, with whatever
 * protection and transport is configured, and clients may come directly. For a gateway it is a peer, with a route to it:
 *
 *     [[peer]]                          [[route]]
 *     name = "dst.example"              to = "dst.example"
 *     address = "dst.example/5006"      via = "dst.example"
 *
 * Options that count here: name (what the gateways call it; the host's by default), security (the least protection: none,
 * auth or encrypt), authorities, certificate and key (of this end, for those who come with TLS), transport (tcp, or udt or quic beside
 * it), from (who may bring sessions: address ranges and certificate:NAME, separated by commas; everyone by default), send_buffer,
 * receive_buffer, finish_timeout.
 */
typedef struct phoebus_listener phoebus_listener;

/*
 * Listens on an address of this host (NULL: all of them; with port 0, which lets the kernel choose, those of IPv4). Whenever a session
 * waits to be accepted, the listener's descriptor is readable, and the callback, if there is one, is called with the listener. NULL
 * and *error on failure.
 */
phoebus_listener *phoebus_listen(const phoebus_context *context, const phoebus_options *options, const char *address,
                                 uint16_t port, phoebus_callback *callback, void *data, phoebus_error **error);

/* The port that it listens on. */
uint16_t phoebus_listener_port(const phoebus_listener *listener);

/* Readable while a session waits to be accepted. */
int phoebus_listener_descriptor(const phoebus_listener *listener);

/*
 * The next session. If none waits, it waits for one for so many milliseconds; not at all with 0, for ever with -1. 0 and *session;
 * PHOEBUS_E_PENDING if there is none; otherwise why not, and *error.
 */
int phoebus_accept(const phoebus_listener *listener, int milliseconds, phoebus_session **session, phoebus_error **error);

/* Listens no more. Sessions that were accepted go on until the context is freed. */
void phoebus_listener_free(phoebus_listener *listener);

#ifdef __cplusplus
}
#endif

#endif /* PHOEBUS_H */
