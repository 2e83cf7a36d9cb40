/*
 * libphoebus: sessions over Phoebus gateways, for C programs.
 *
 * A session is two byte streams, one each way, between this program and a destination. It goes over gateways, hop by hop. Each
 * hop is a transport connection of its own. A program that would connect(2) to a distant host connects through this library
 * instead, and gets the throughput of the slowest segment.
 *
 * The parts, each of which works without those below it:
 *
 *   phoebus_error, phoebus_options, phoebus_report   reasons of failures, settings, and what a session got
 *   phoebus_handshake                                the opening of a session as a state machine: no threads, descriptors or
 *                                                    clock; in phoebus_handshake.h, which this header includes
 *   phoebus_session, phoebus_connect                 an open session, and the simplest way to open one
 *   phoebus_context, phoebus_attempt                 sessions opened in the background, with a descriptor to poll or a callback
 *   phoebus_listener                                 sessions that this program accepts
 *
 * Rules for all parts:
 *
 * - Handles are opaque. The program frees each with the function of its kind; all of these functions accept NULL.
 * - One thread at a time uses a handle. Different threads may use different handles at the same time: the library has no global
 *   state.
 * - Strings are UTF-8 and end with a zero byte. A "const char *" that a function returns belongs to the handle that it came from,
 *   and stays unchanged until that handle is freed, unless the function states otherwise. It is never NULL.
 * - Functions that can fail return 0 or a code of phoebus_code. A fault in the library gives PHOEBUS_E_BUG, and does not abort the
 *   program.
 * - The library writes nothing to standard output, and to standard error only the message of a fault in the library. It touches no
 *   signal, changes no limit of the process, and runs callbacks only in phoebus_process().
 *
 * Man pages: libphoebus(3) is an overview; phoebus_handshake(3) and others have the details.
 */
#ifndef PHOEBUS_H
#define PHOEBUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The library's soname carries the parts of it that change with the interface. */
#define PHOEBUS_VERSION_MAJOR 0
#define PHOEBUS_VERSION_MINOR 1
#define PHOEBUS_VERSION_PATCH 0

/* The version of the library in use, such as "0.1.0". */
const char *phoebus_version(void);

/* ------------------------------------------------------------------------------------------------------------------ errors */

/*
 * The kind of a failure, for programs. Codes below 65536 are those of the session protocol and come from the hop that failed
 * (docs/protocol/session.md, section 7); the others are this library's. Later versions may add codes: for an unknown one, use
 * phoebus_error_errno().
 */
enum phoebus_code {
    PHOEBUS_OK = 0,
    PHOEBUS_E_PROTOCOL = 1,             /* a neighbour broke the session protocol, or speaks another one */
    PHOEBUS_E_VERSION = 2,              /* no common version */
    PHOEBUS_E_FEATURE = 3,              /* a required feature is not supported */
    PHOEBUS_E_AUTH_REQUIRED = 4,        /* a gateway requires authentication */
    PHOEBUS_E_AUTH_FAILED = 5,          /* authentication of one end failed */
    PHOEBUS_E_NOT_ALLOWED = 6,          /* a gateway's configuration does not allow the session */
    PHOEBUS_E_LIMIT = 7,                /* a gateway's limit is reached */
    PHOEBUS_E_LOOP = 8,                 /* the path leads through a gateway twice */
    PHOEBUS_E_DUPLICATE = 9,            /* the session's identifier was seen before */
    PHOEBUS_E_NO_ROUTE = 10,            /* no route, or no such gateway */
    PHOEBUS_E_REQUIREMENT = 11,         /* a demand cannot be met: rate, buffer, streams, transport, protection */
    PHOEBUS_E_DRAINING = 12,            /* a gateway is shutting down */
    PHOEBUS_E_HANDSHAKE_TIMEOUT = 13,   /* the handshake took too long */
    PHOEBUS_E_INTERNAL = 14,            /* a gateway failed */
    PHOEBUS_E_TERMINATED = 15,          /* a gateway ended the session */
    PHOEBUS_E_IDLE = 16,                /* the session was idle for too long */
    PHOEBUS_E_NO_SESSION = 17,          /* no such session for a connection to join */
    PHOEBUS_E_NO_DATAGRAMS = 18,        /* no datagrams beside the session */
    PHOEBUS_E_REFUSED = 32,             /* connection refused */
    PHOEBUS_E_NETWORK_UNREACHABLE = 33, /* network unreachable */
    PHOEBUS_E_HOST_UNREACHABLE = 34,    /* no route to host */
    PHOEBUS_E_TIMED_OUT = 35,           /* connection timed out */
    PHOEBUS_E_NAME_NOT_FOUND = 36,      /* the name does not resolve */
    PHOEBUS_E_RESET = 37,               /* connection reset */
    PHOEBUS_E_CONNECT_FAILED = 38,      /* another failure to connect */

    PHOEBUS_E_ARGUMENT = 65536,         /* a wrong argument or option */
    PHOEBUS_E_STATE = 65537,            /* the handle is not in a state that allows the call */
    PHOEBUS_E_NO_GATEWAY = 65538,       /* the options name no gateway */
    PHOEBUS_E_NO_AGENT = 65539,         /* no running agent carries the first hop as demanded */
    PHOEBUS_E_SYSTEM = 65540,           /* the operating system failed: files, memory, descriptors, random numbers */
    PHOEBUS_E_FORKED = 65541,           /* the handle belongs to the process that forked this one */
    PHOEBUS_E_PENDING = 65542,          /* not finished yet */
    PHOEBUS_E_BUG = 65543               /* a fault in the library; the handle is unusable, and can still be freed */
};

/* Why something failed. Belongs to the handle that it came from; where a function says so, free it with phoebus_error_free(). */
typedef struct phoebus_error phoebus_error;

/* One of phoebus_code, or a code of a later version. */
int phoebus_error_code(const phoebus_error *error);

/* The errno of a direct connection that fails in this way, or the closest one; never 0. */
int phoebus_error_errno(const phoebus_error *error);

/* One sentence for people, which names the gateway, address, option or file. */
const char *phoebus_error_message(const phoebus_error *error);

/* The hop that failed: a gateway's name or an address. Empty for this host. */
const char *phoebus_error_hop(const phoebus_error *error);

void phoebus_error_free(phoebus_error *error);

/* ----------------------------------------------------------------------------------------------------------------- options */

/*
 * The options of a session. Options are names and values, both text, as in a configuration file or on a driver stack:
 *
 *   gateway             HOST/PORT of the first gateway; its routes choose the rest
 *   path                all gateways, the first one first: HOST/PORT,HOST/PORT
 *   only, except        which destinations go through gateways: 10.3.0.0/16:5000-5999,[2001:db8::]/32,host.example,*:443
 *   disable             1: connections are direct, as if nothing else were set
 *   fallback            direct, or 1: connect directly if no gateway can be reached; 0, the default: fail
 *   security            of the connection to the first gateway: none, the default, or auth: TLS authenticates both ends and
 *                       protects the request; the data follow in the clear. (encrypt is for destinations, see phoebus_listener)
 *   first_hop           quic, udt, tls or auto: use the agent on this host that carries the first hop over it; tcp: no agent.
 *                       By default, a running agent is used, but not required; with security=auth, none is used
 *   authorities         PEM file: authorities that may certify the first gateway (with security=auth)
 *   certificate, key    PEM files: this user's certificate, for gateways that require one
 *   user                an e-mail address, for gateways that require one
 *   rate                bandwidth to ask every gateway for, such as 100mbit; a session that does not get it is refused
 *   buffer              memory to ask every gateway for, per direction, such as 16MiB; likewise
 *   streams             connections of each hop between gateways, 1 to 65535; likewise
 *   protection          minimum protection of each hop between gateways: none, auth or encrypt; likewise
 *   transport           required transport of each hop between gateways: tcp, udt, quic or a driver's name; a session whose
 *                       report says something else, or has no such hop, fails
 *   send_buffer, receive_buffer
 *                       of the first hop's socket: auto, the default, or a size such as 8MiB
 *   congestion_control  of the first hop's socket: a name, or system for the system's own; the default is bbr where permitted
 *   connect_timeout     longest wait for the first gateway to accept a connection, or for an accepted peer's request: 10s
 *   open_timeout        longest wait for the path to connect to the destination: 150s
 *   finish_timeout      longest time without an acknowledgement at the end of a session: 5m
 *   redirects           how many redirects to a better gateway are followed: 4
 *   bypass_rtt          destinations with a shorter measured round trip are connected directly, such as 2ms; 0, the default: none
 *   cache               the file that remembers these round trips
 *   aware               1: the destination takes part in its sessions (phoebus_listener, phoebus_handshake_accept()), and the last
 *                       gateway asks it for this one; fails if the destination does not, and if the connection is direct
 *   name, from          see phoebus_listener
 *
 * The options keep the first error. Everything made with them then fails with it, so that a program needs only one check, and a
 * misspelt option never results in a direct connection.
 */
typedef struct phoebus_options phoebus_options;

/* The defaults above: no gateway; environment and files are ignored. NULL if out of memory. */
phoebus_options *phoebus_options_new(void);

/* An independent copy. NULL if out of memory. */
phoebus_options *phoebus_options_copy(const phoebus_options *options);

/*
 * Loads /etc/phoebus/client.conf, the user's client.conf and the variables PHOEBUS_GW, PHOEBUS_PATH and the others of
 * phoebus-run(1), each of which overrides the one named before it. Options set afterwards override all of them.
 */
int phoebus_options_load(phoebus_options *options);

/* Sets an option. A later value replaces an earlier one. */
int phoebus_options_set(phoebus_options *options, const char *name, const char *value);

/*
 * The value of an option in the form that phoebus_options_set() accepts, environment and files included: empty if it has none, or
 * if there is no such option. Writes at most size bytes to value, the final zero included; returns the whole length without it, as
 * snprintf(3) does.
 */
size_t phoebus_options_get(const phoebus_options *options, const char *name, char *value, size_t size);

/*
 * Whether connections to this destination go through gateways: 1 or 0, by only, except, disable, and whether a gateway is set. The
 * host is a name or an address; address ranges match addresses only. This host's own addresses (loopback, link-local) are
 * connected directly unless a range of only contains them.
 */
int phoebus_options_select(const phoebus_options *options, const char *host, uint16_t port);

/* The first error, NULL if there was none. */
const phoebus_error *phoebus_options_error(const phoebus_options *options);

void phoebus_options_free(phoebus_options *options);

/* ----------------------------------------------------------------------------------------------------------------- reports */

/* What a session got, hop by hop. Belongs to the handle that it came from. */
typedef struct phoebus_report phoebus_report;

/* One hop of a session. Members are only ever added at the end. */
typedef struct phoebus_hop {
    const char *from;               /* the end that opened it: a gateway's name, or "client" */
    const char *to;                 /* the end that it leads to: a gateway's name, or the destination's address */
    const char *transport;          /* "tcp", "tls", "quic", "udt" */
    const char *congestion_control; /* in force at its beginning; empty if unknown */
    const char *security;           /* "none", "auth" or "encrypt" */
    const char *note;               /* what was not granted as asked; empty if nothing */
    uint64_t rtt_us;                /* round trip in microseconds, 0 if unknown */
    uint64_t send_buffer;           /* in force, in bytes, 0 if unknown */
    uint64_t receive_buffer;        /* likewise */
    uint64_t rate;                  /* limit of the session's sending rate on it, in bits per second; 0 without a limit */
    uint32_t streams;               /* maximum number of its connections */
    uint32_t warm;                  /* 1 if its connection has carried a session before */
} phoebus_hop;

/* The session's identifier, 32 hexadecimal digits, the same in every gateway's log; empty for a direct connection. */
const char *phoebus_report_session(const phoebus_report *report);

/* The destination, host:port. */
const char *phoebus_report_destination(const phoebus_report *report);

/* Sum of the known round trips of the hops, in microseconds. */
uint64_t phoebus_report_rtt_us(const phoebus_report *report);

/* Duration of the opening, in microseconds. */
uint64_t phoebus_report_opened_in_us(const phoebus_report *report);

/* Why the connection is direct although gateways were set, or why it uses other gateways; empty without a remark. */
const char *phoebus_report_note(const phoebus_report *report);

/* Number of hops, including the one from this host. */
size_t phoebus_report_hops(const phoebus_report *report);

/* Fills in the hop with this index, from 0; size is sizeof(phoebus_hop). PHOEBUS_E_ARGUMENT if there is no such hop. */
int phoebus_report_hop(const phoebus_report *report, size_t index, phoebus_hop *hop, size_t size);

/* The report on one line for people: client –8.1ms tcp/bbr→ pg1 –100.2ms tcp*8/cubic warm→ pg2 –8.0ms tcp/cubic→ 10.0.0.4:80 */
const char *phoebus_report_text(const phoebus_report *report);

/* The report as a JSON object, on one line. */
const char *phoebus_report_json(const phoebus_report *report);

/* --------------------------------------------------------------------------------------------------------- handshake machine */

#include <phoebus_handshake.h>

/* ---------------------------------------------------------------------------------------------------------------- sessions */

/*
 * An open session, which is a socket of the program: phoebus_session_descriptor() can be polled, and read(2), write(2),
 * sendfile(2), splice(2) and setsockopt(2) work as with a TCP connection. It blocks until the program sets O_NONBLOCK.
 *
 * A session ends in order only if both directions have ended and phoebus_finish() returns 0. In all other cases both ends see a
 * reset, and never an end of stream that looks complete: phoebus_session_free() resets the session, and so does the death of the
 * program, as soon as no other process has the descriptor.
 *
 * Several threads may call phoebus_read, phoebus_write, phoebus_shutdown and phoebus_session_stats for one session at the same
 * time. A child of fork(2) may call them like its parent.
 */
typedef struct phoebus_session phoebus_session;

/*
 * Opens a session to this host, an address or a name that the last gateway resolves, and waits for it: when this returns, the
 * last gateway has connected to the destination. Without a gateway, it behaves as phoebus_handshake_new() does. NULL on failure;
 * *error is then the reason, to be freed with phoebus_error_free(). error may be NULL.
 */
phoebus_session *phoebus_connect(const phoebus_options *options, const char *host, uint16_t port, phoebus_error **error);

/* The socket. It belongs to the session. */
int phoebus_session_descriptor(const phoebus_session *session);

/* Like recv(2) and send(2), without a signal: the number of bytes, 0 for the end of the peer's stream, or -1 with errno. */
ssize_t phoebus_read(const phoebus_session *session, void *buffer, size_t len);
ssize_t phoebus_write(const phoebus_session *session, const void *buffer, size_t len);

/* Ends this end's stream; the other continues. 0, or -1 with errno. (Do not use shutdown(2): phoebus_finish() must know of it.) */
int phoebus_shutdown(const phoebus_session *session);

/*
 * Ends the session in order, and frees it in any case: ends this end's stream, waits until the next hop has acknowledged all of it,
 * and closes. The program must have read the other end's stream to its end before (otherwise PHOEBUS_E_STATE). 0, or a code; then
 * the session was reset, and *error, if error is not NULL, is the reason.
 */
int phoebus_finish(phoebus_session *session, phoebus_error **error);

/* Passes the socket to the program for good, and frees the rest. Closing it still resets the connection (SO_LINGER {1, 0}). */
int phoebus_session_release(phoebus_session *session);

/* The session's report, hop by hop. */
const phoebus_report *phoebus_session_report(const phoebus_session *session);

/* The other end: the requested destination or, of an accepted session, the client's address as the gateways report it, which is
 * not authenticated. */
const char *phoebus_session_peer(const phoebus_session *session);

/* Statistics of the first hop, 0 where unknown. Members are only ever added at the end. */
typedef struct phoebus_stats {
    uint64_t bytes_sent;          /* including retransmissions */
    uint64_t bytes_acked;
    uint64_t bytes_received;      /* without duplicates */
    uint64_t bytes_retransmitted;
    uint64_t rtt_us;              /* smoothed round trip, in microseconds */
    uint64_t rtt_var_us;          /* its mean deviation */
    uint64_t min_rtt_us;          /* recent minimum */
    uint64_t delivery_rate;       /* most recent, in bytes per second */
    uint64_t pacing_rate;         /* in bytes per second; 0 without pacing */
    uint64_t send_buffer;         /* in force, in bytes */
    uint64_t receive_buffer;
    uint64_t congestion_window;   /* in bytes */
    uint64_t unsent;              /* bytes written but not yet sent */
    uint64_t segments_lost;       /* currently considered lost */
    char congestion_control[16];
} phoebus_stats;

/* Fills in the statistics; size is sizeof(phoebus_stats). */
int phoebus_session_stats(const phoebus_session *session, phoebus_stats *stats, size_t size);

/* Frees the session, and resets it unless another process also has its socket. */
void phoebus_session_free(phoebus_session *session);

/* ---------------------------------------------------------------------------------------------------- while others work on it */

/*
 * For programs with an event loop: a thread of the library that opens and accepts sessions in the background, and callbacks, which
 * run only in phoebus_process(). The thread receives none of the program's signals.
 *
 * One thread at a time uses a context and the handles made in it, except sessions. The context and these handles belong to the
 * process that made the context: in a child of fork(2) the functions fail with PHOEBUS_E_FORKED, and freeing the context there
 * leaves the parent's alone. A child that runs for long without exec(3) holds copies of the parent's sockets.
 */
typedef struct phoebus_context phoebus_context;

/* Called from phoebus_process(), with the handle that has news and the data registered with it. It may use and free any handle
 * except the context. */
typedef void phoebus_callback(void *handle, void *data);

/* NULL if out of memory, descriptors or threads. */
phoebus_context *phoebus_context_new(void);

/* Readable when phoebus_process() has something to do. */
int phoebus_context_descriptor(const phoebus_context *context);

/*
 * Calls the callbacks that are due, and returns their number. If none is due, it waits for this many milliseconds; with 0 not at
 * all, with -1 without a limit.
 */
int phoebus_process(const phoebus_context *context, int milliseconds);

/* Frees the context; free the handles made in it first. Sessions accepted through it are reset; those it opened go on. */
void phoebus_context_free(phoebus_context *context);

/* A session that is being opened. */
typedef struct phoebus_attempt phoebus_attempt;

/*
 * Starts to open a session, as phoebus_connect() does. When it is open or has failed, the attempt's descriptor becomes readable and
 * the callback, if there is one, is called with the attempt. NULL and *error if the attempt cannot start.
 */
phoebus_attempt *phoebus_connect_start(const phoebus_context *context, const phoebus_options *options, const char *host,
                                       uint16_t port, phoebus_callback *callback, void *data, phoebus_error **error);

/* Readable once the attempt has ended. */
int phoebus_attempt_descriptor(const phoebus_attempt *attempt);

/* The result: 0 and *session, once; PHOEBUS_E_PENDING while the attempt goes on; otherwise the reason, and *error. */
int phoebus_attempt_finish(const phoebus_attempt *attempt, phoebus_session **session, phoebus_error **error);

/* Frees the attempt, and aborts it if it has not ended. Its callback is no longer called. */
void phoebus_attempt_free(phoebus_attempt *attempt);

/* ---------------------------------------------------------------------------------------------------------------- listening */

/*
 * A session-aware destination: gateways pass sessions to it as they do to each other, over warm connections, with the configured
 * protection and transport; clients may also connect directly. For a gateway it is a peer, with a route to it:
 *
 *     [[peer]]                          [[route]]
 *     name = "dst.example"              to = "dst.example"
 *     address = "dst.example/5006"      via = "dst.example"
 *
 * Options that apply here: name (the name that gateways use; the host's by default), security (minimum protection: none, auth or
 * encrypt), authorities, certificate and key (of this end, for peers that use TLS), transport (tcp, or udt or quic in addition to
 * it), from (who may open sessions: address ranges and certificate:NAME, separated by commas; everyone by default), send_buffer,
 * receive_buffer, finish_timeout.
 */
typedef struct phoebus_listener phoebus_listener;

/*
 * Listens on an address of this host (NULL: all of them; with port 0, which lets the kernel choose, all IPv4 addresses). While a
 * session waits to be accepted, the listener's descriptor is readable, and the callback, if there is one, is called with the
 * listener. NULL and *error on failure.
 */
phoebus_listener *phoebus_listen(const phoebus_context *context, const phoebus_options *options, const char *address,
                                 uint16_t port, phoebus_callback *callback, void *data, phoebus_error **error);

/* The port that it listens on. */
uint16_t phoebus_listener_port(const phoebus_listener *listener);

/* Readable while a session waits to be accepted. */
int phoebus_listener_descriptor(const phoebus_listener *listener);

/*
 * Accepts the next session. If none is pending, it waits for this many milliseconds; with 0 not at all, with -1 without a limit. 0
 * and *session; PHOEBUS_E_PENDING if there is none; otherwise the reason, and *error.
 */
int phoebus_accept(const phoebus_listener *listener, int milliseconds, phoebus_session **session, phoebus_error **error);

/* Stops listening. Accepted sessions go on until the context is freed. */
void phoebus_listener_free(phoebus_listener *listener);

#ifdef __cplusplus
}
#endif

#endif /* PHOEBUS_H */
