/*
 * A transport for Phoebus from a shared library, version 1 (U9-U11).
 *
 * A driver is a library with ordinary blocking calls: Phoebus puts threads and bounded buffers around it. It exports one symbol,
 *
 *     const struct phoebus_driver *phoebus_driver_v1(void);
 *
 * which returns a table of functions that stays valid for ever. docs/guide/drivers.md shows how to write, list and debug
 * one; examples/drivers/tcp is one of about a hundred lines.
 *
 * THREADS
 *   - connect, accept, read, write, shutdown and finish may block. Each connection is read by one thread and written by another,
 *     so that read runs beside write; no two reads run at a time on a connection, and no two of {connect, write, shutdown,
 *     finish}. No thread is shared among connections, so that a call may block for as long as it takes.
 *   - check, pending, set, stats and address are called by any thread while the connection is connected, and interrupt from
 *     open (or accept) on, beside each other and beside the blocking calls. They do not block.
 *   - open, listen and the calls on a listener follow the same rules: one thread accepts, any thread asks or interrupts.
 *   - close and close_listener are called once, after every other call on the object has returned. They may block for a moment.
 *   - Threads belong to Phoebus. A driver changes neither their signal masks nor signal handlers of the process, and raises
 *     no SIGPIPE (send with MSG_NOSIGNAL).
 *
 * OWNERSHIP
 *   - Connections and listeners are the driver's, from open, accept or listen to close or close_listener.
 *   - What Phoebus passes (addresses, settings, buffers, texts) is valid until the call returns. A driver that needs it
 *     longer copies it.
 *   - What the driver returns in its table stays valid and unchanged for ever. The library is never unloaded.
 *   - Exceptions must not leave a function: C++ drivers catch them.
 *
 * ERRORS
 *   A function that fails returns -1 (or NULL) after filling `error`, which is never NULL: `code` is an errno that says what kind
 *   of failure it was, `text` a short lower-case phrase for people ("the peer's version is 3"), or empty where the errno says it
 *   all. Clients are told what the code means: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH and ECONNRESET reach them as
 *   they are. EAGAIN and EINTR from a blocking call mean "nothing yet, call me again".
 *
 * ENDS
 *   A connection that is closed without a finish that succeeded has failed, and a driver that has PHOEBUS_TRUE_ENDS makes the
 *   peer see that: its read fails. It never sees an end that nobody meant, even when this process is killed. A driver
 *   without it still carries sessions, whose ends are then told by frames.
 *
 * GROWTH
 *   Later headers of version 1 add functions at the end of struct phoebus_driver, fields at the end of struct phoebus_stats, and
 *   nothing else. `size` in each says what the other side was compiled with. Anything else gets another entry symbol.
 */
#ifndef PHOEBUS_DRIVER_H
#define PHOEBUS_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHOEBUS_DRIVER_VERSION 1

/* Objects of the driver, which alone knows what they contain. */
typedef struct phoebus_connection phoebus_connection;
typedef struct phoebus_listener phoebus_listener;

/* Why a call failed. */
struct phoebus_error {
  int32_t code;   /* an errno, never 0 */
  char text[252]; /* UTF-8, ended by 0; may be empty */
};

/* What a driver can do (phoebus_driver.abilities). */
#define PHOEBUS_HALF_CLOSE 1u /* one side can end while the other goes on; needs `shutdown` */
#define PHOEBUS_TRUE_ENDS 2u  /* an end is the peer's own, and a failure is told from it (see ENDS); needs PHOEBUS_HALF_CLOSE */

/* What the value of an option is. It reaches the driver as text, checked by Phoebus. */
enum phoebus_kind {
  PHOEBUS_TEXT = 0,    /* any text without a 0 */
  PHOEBUS_NUMBER = 1,  /* a whole number, in decimal */
  PHOEBUS_SIZE = 2,    /* bytes; "8MiB" in a configuration is passed as "8388608" */
  PHOEBUS_RATE = 3,    /* bits per second; "1gbit" in a configuration is passed as "1000000000" */
  PHOEBUS_BOOLEAN = 4  /* passed as "0" or "1" */
};

/*
 * An option that the driver has. Five names mean the same everywhere, and Phoebus sets them itself where a profile asks for it:
 * `rate` (PHOEBUS_RATE: the most a connection sends, 0 for no bound), `send_buffer` and `receive_buffer` (PHOEBUS_SIZE), `mss`
 * (PHOEBUS_NUMBER: the largest IP packet), and `congestion_control` (PHOEBUS_TEXT).
 */
struct phoebus_option {
  const char *name;    /* lower case, digits, underscores */
  const char *about;   /* one line: meaning, unit, default */
  int64_t least, most; /* bounds of numbers, sizes and rates; both 0 for none */
  uint32_t kind;       /* enum phoebus_kind */
  uint32_t live;       /* 1 if `set` takes it on an open connection */
};

/* An option with its value. Each occurs once. */
struct phoebus_setting {
  const char *name, *value;
};

/*
 * What a connection has counted; 0 where the driver does not know. Phoebus passes it zeroed, and 1024 bytes of memory may be
 * written from its start on, so that a driver that was compiled with a longer struct does no harm.
 */
struct phoebus_stats {
  uint32_t size;              /* sizeof(struct phoebus_stats) of Phoebus */
  uint32_t segment_size;      /* bytes of a full segment */
  uint64_t bytes_sent;        /* repetitions included */
  uint64_t bytes_acked;       /* known to have arrived */
  uint64_t bytes_received;    /* without repetitions */
  uint64_t bytes_retransmitted;
  uint64_t segments_sent;     /* repetitions included */
  uint64_t retransmits;       /* segments */
  uint64_t lost;              /* segments now believed lost */
  uint64_t in_flight;         /* segments */
  uint64_t rtt_us;            /* smoothed round-trip time, microseconds */
  uint64_t rtt_var_us;        /* its mean deviation */
  uint64_t min_rtt_us;        /* the least of late */
  uint64_t delivery_rate;     /* bytes per second */
  uint64_t pacing_rate;       /* bytes per second */
  uint64_t congestion_window; /* segments */
  uint64_t sending_period_ns; /* time between segments */
  uint64_t send_buffer;       /* bytes, in force */
  uint64_t receive_buffer;    /* bytes, in force */
};

/* Whose address. */
enum phoebus_end { PHOEBUS_HERE = 0, PHOEBUS_PEER = 1 };

/* The driver. Functions marked "may be NULL" are optional, all others must be there. */
struct phoebus_driver {
  uint32_t version; /* PHOEBUS_DRIVER_VERSION */
  uint32_t size;    /* sizeof(struct phoebus_driver) */
  const char *name; /* of the library and its version: "libudt 4.11" */
  uint32_t abilities;
  uint32_t option_count;
  const struct phoebus_option *options;

  /* Called before anything else, and not again once it has succeeded. May be NULL. */
  int (*start)(struct phoebus_error *error);

  /* A connection that is not connected yet, with all settings checked and made. Does not block. */
  phoebus_connection *(*open)(const struct phoebus_setting *settings, size_t count, struct phoebus_error *error);
  /* Connects it; once. A driver that can gives up after limit_ms; Phoebus interrupts it then. */
  int (*connect)(phoebus_connection *, const struct sockaddr *to, socklen_t length, uint32_t limit_ms,
                 struct phoebus_error *error);
  /* Reads what is there, waiting until there is at least one byte. 0: the peer has ended its stream, or, without true ends,
     the connection is over. All that arrived before it is read first. */
  ssize_t (*read)(phoebus_connection *, void *buffer, size_t size, struct phoebus_error *error);
  /* Writes at least one byte, waiting for room; `size` is at least 1. */
  ssize_t (*write)(phoebus_connection *, const void *bytes, size_t size, struct phoebus_error *error);
  /* Ends this side's stream. May be NULL without PHOEBUS_HALF_CLOSE. */
  int (*shutdown)(phoebus_connection *, struct phoebus_error *error);
  /* The last call before close, when both directions are done: waits, for limit_ms at most, until what was written needs
     nothing more of this process than a close, which the peer then sees as an end. */
  int (*finish)(phoebus_connection *, uint32_t limit_ms, struct phoebus_error *error);
  /* Makes all blocking calls on the connection return, and those that follow fail, from any thread. It may be called more than
     once. May be NULL if every blocking call returns EAGAIN within a second when nothing happens. */
  void (*interrupt)(phoebus_connection *);
  /* -1 if the connection has failed. Asked once a second while the receiver does not read. May be NULL. */
  int (*check)(phoebus_connection *, struct phoebus_error *error);
  /* How much of what was written is not known to have arrived: bytes, or segments where the library counts those. -1 as usual.
     May be NULL: what was written counts as arrived. */
  int64_t (*pending)(phoebus_connection *, struct phoebus_error *error);
  /* Changes an option that is marked `live`. May be NULL if none is. */
  int (*set)(phoebus_connection *, const struct phoebus_setting *, struct phoebus_error *error);
  /* May be NULL. */
  int (*stats)(phoebus_connection *, struct phoebus_stats *, struct phoebus_error *error);
  /* The address of one end. */
  int (*address)(phoebus_connection *, enum phoebus_end, struct sockaddr_storage *, struct phoebus_error *error);
  /* Frees the connection. */
  void (*close)(phoebus_connection *);

  /* Listens; accepted connections have the settings. Does not block. */
  phoebus_listener *(*listen)(const struct sockaddr *on, socklen_t length, const struct phoebus_setting *settings, size_t count,
                              struct phoebus_error *error);
  /* The next connection. */
  phoebus_connection *(*accept)(phoebus_listener *, struct phoebus_error *error);
  /* As `interrupt`, under the same condition. */
  void (*interrupt_listener)(phoebus_listener *);
  /* The address that is listened on, with the port that was chosen for 0. */
  int (*listener_address)(phoebus_listener *, struct sockaddr_storage *, struct phoebus_error *error);
  void (*close_listener)(phoebus_listener *);
};

/* The entry point. */
typedef const struct phoebus_driver *(*phoebus_driver_entry)(void);
#define PHOEBUS_DRIVER_ENTRY "phoebus_driver_v1"
__attribute__((visibility("default"))) const struct phoebus_driver *phoebus_driver_v1(void);

#ifdef __cplusplus
}
#endif

#endif
