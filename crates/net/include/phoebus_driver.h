/*
 * A transport for Phoebus from a shared library, version 1 (U9-U11).
 *
 * A driver is a library with ordinary blocking calls: Phoebus adds threads and bounded buffers. It exports one symbol,
 *
 *     const struct phoebus_driver *phoebus_driver_v1(void);
 *
 * which returns a table of functions that stays valid for the life of the process. docs/guide/drivers.md explains how to write,
 * list and debug a driver; examples/drivers/tcp is one of about a hundred lines.
 *
 * THREADS
 *   - connect, accept, read, write, shutdown and finish may block for any time, because no thread is shared among connections.
 *     One thread reads a connection and another writes it. So read runs concurrently with write, but no two reads run at a time
 *     on a connection, and no two of {connect, write, shutdown, finish}.
 *   - Any thread may call check, pending, set, stats and address while the connection is connected, and interrupt from open (or
 *     accept) on, concurrently with each other and with the blocking calls. These functions must not block.
 *   - open, listen and the calls on a listener follow the same rules: one thread accepts, any thread queries or interrupts.
 *   - close and close_listener are called once, after every other call on the object has returned. They may block briefly.
 *   - Threads belong to Phoebus. A driver changes neither their signal masks nor the process's signal handlers, and raises
 *     no SIGPIPE (it sends with MSG_NOSIGNAL).
 *
 * OWNERSHIP
 *   - Connections and listeners belong to the driver, from open, accept or listen to close or close_listener.
 *   - Arguments from Phoebus (addresses, settings, buffers, texts) are valid until the call returns. A driver copies what it
 *     needs longer.
 *   - The driver's table and everything it points to stays valid and unchanged. The library is never unloaded.
 *   - Exceptions must not leave a function: C++ drivers catch them.
 *
 * ERRORS
 *   A function that fails fills `error`, which is never NULL, and returns -1 (or NULL). `code` is an errno for the kind of
 *   failure, `text` a short lower-case phrase for people ("the peer's version is 3"), or empty where the errno suffices.
 *   Clients receive the meaning of the code: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH and ECONNRESET reach them
 *   unchanged. EAGAIN and EINTR from a blocking call mean "nothing happened, call again".
 *
 * AUTHENTICATED CLOSE
 *   A connection that is closed without a successful finish has failed, and a driver with PHOEBUS_TRUE_ENDS makes the peer see
 *   that: the peer's read fails. The peer never sees an end that was not intended, even when this process is killed. A driver
 *   without the flag still carries sessions, with framing that marks their ends.
 *
 * COMPATIBILITY
 *   Later headers of version 1 only add functions at the end of struct phoebus_driver and fields at the end of struct
 *   phoebus_stats. `size` in each tells what the other side was compiled with. Any other change gets a new entry symbol.
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

/* Objects of the driver, opaque to Phoebus. */
typedef struct phoebus_connection phoebus_connection;
typedef struct phoebus_listener phoebus_listener;

/* The reason of a failed call. */
struct phoebus_error {
  int32_t code;   /* an errno, never 0 */
  char text[252]; /* UTF-8, terminated by 0; may be empty */
};

/* Capabilities of a driver (phoebus_driver.abilities). */
#define PHOEBUS_HALF_CLOSE 1u /* one direction can end while the other continues; needs `shutdown` */
#define PHOEBUS_TRUE_ENDS 2u  /* see AUTHENTICATED CLOSE; needs PHOEBUS_HALF_CLOSE */

/* The type of an option's value, which reaches the driver as text, checked by Phoebus. */
enum phoebus_kind {
  PHOEBUS_TEXT = 0,    /* any text without a 0 */
  PHOEBUS_NUMBER = 1,  /* a whole number, in decimal */
  PHOEBUS_SIZE = 2,    /* bytes; "8MiB" in a configuration is passed as "8388608" */
  PHOEBUS_RATE = 3,    /* bits per second; "1gbit" in a configuration is passed as "1000000000" */
  PHOEBUS_BOOLEAN = 4  /* passed as "0" or "1" */
};

/*
 * An option of the driver. Five names have a fixed meaning, and Phoebus sets them where a profile requests it: `rate`
 * (PHOEBUS_RATE: greatest sending rate of a connection, 0 for no limit), `send_buffer` and `receive_buffer` (PHOEBUS_SIZE), `mss`
 * (PHOEBUS_NUMBER: the largest IP packet, in bytes), and `congestion_control` (PHOEBUS_TEXT).
 */
struct phoebus_option {
  const char *name;    /* lower case, digits, underscores */
  const char *about;   /* one line: meaning, unit, default */
  int64_t least, most; /* bounds of numbers, sizes and rates; both 0 for none */
  uint32_t kind;       /* enum phoebus_kind */
  uint32_t live;       /* 1 if `set` can change it on an open connection */
};

/* An option with its value. Each name occurs once. */
struct phoebus_setting {
  const char *name, *value;
};

/*
 * Statistics of a connection; 0 where the driver does not count. Phoebus passes it zeroed, in 1024 bytes of writable memory, so
 * that a driver compiled with a longer struct does no harm.
 */
struct phoebus_stats {
  uint32_t size;              /* sizeof(struct phoebus_stats) of Phoebus */
  uint32_t segment_size;      /* bytes of a full segment */
  uint64_t bytes_sent;        /* retransmissions included */
  uint64_t bytes_acked;       /* known to have arrived */
  uint64_t bytes_received;    /* without duplicates */
  uint64_t bytes_retransmitted;
  uint64_t segments_sent;     /* retransmissions included */
  uint64_t retransmits;       /* segments */
  uint64_t lost;              /* segments now believed lost */
  uint64_t in_flight;         /* segments */
  uint64_t rtt_us;            /* smoothed round-trip time, microseconds */
  uint64_t rtt_var_us;        /* its mean deviation */
  uint64_t min_rtt_us;        /* recent minimum */
  uint64_t delivery_rate;     /* bytes per second */
  uint64_t pacing_rate;       /* bytes per second */
  uint64_t congestion_window; /* segments */
  uint64_t sending_period_ns; /* time between segments */
  uint64_t send_buffer;       /* bytes, in force */
  uint64_t receive_buffer;    /* bytes, in force */
};

/* Selects an end of a connection. */
enum phoebus_end { PHOEBUS_HERE = 0, PHOEBUS_PEER = 1 };

/* The driver. Functions marked "may be NULL" are optional, all others are required. */
struct phoebus_driver {
  uint32_t version; /* PHOEBUS_DRIVER_VERSION */
  uint32_t size;    /* sizeof(struct phoebus_driver) */
  const char *name; /* of the library and its version: "libudt 4.11" */
  uint32_t abilities;
  uint32_t option_count;
  const struct phoebus_option *options;

  /* Called before any other function, and not again after a success. May be NULL. */
  int (*start)(struct phoebus_error *error);

  /* Creates an unconnected connection with all settings checked and applied. Does not block. */
  phoebus_connection *(*open)(const struct phoebus_setting *settings, size_t count, struct phoebus_error *error);
  /* Connects, at most once. The driver should give up after limit_ms; Phoebus interrupts the call then. */
  int (*connect)(phoebus_connection *, const struct sockaddr *to, socklen_t length, uint32_t limit_ms,
                 struct phoebus_error *error);
  /* Reads available bytes, and blocks until there is at least one. 0: the peer has ended its stream or, without
     PHOEBUS_TRUE_ENDS, the connection has ended. Earlier bytes are returned first. */
  ssize_t (*read)(phoebus_connection *, void *buffer, size_t size, struct phoebus_error *error);
  /* Writes at least one byte, and blocks until it fits; `size` is at least 1. */
  ssize_t (*write)(phoebus_connection *, const void *bytes, size_t size, struct phoebus_error *error);
  /* Ends this side's stream. May be NULL without PHOEBUS_HALF_CLOSE. */
  int (*shutdown)(phoebus_connection *, struct phoebus_error *error);
  /* The last call before close, after both directions have ended: blocks, for limit_ms at most, until everything written is
     delivered without further work of this process, and the peer will see close as a clean end. */
  int (*finish)(phoebus_connection *, uint32_t limit_ms, struct phoebus_error *error);
  /* Makes all blocked calls on the connection return, and later ones fail. Any thread may call it, more than once. May be NULL
     if every blocking call returns EAGAIN after at most a second without progress. */
  void (*interrupt)(phoebus_connection *);
  /* Returns -1 if the connection has failed. Called once a second while the receiver does not read. May be NULL. */
  int (*check)(phoebus_connection *, struct phoebus_error *error);
  /* The amount of written data that is not known to have arrived: in bytes, or in segments if the library counts those. -1 on
     failure. May be NULL: written data then counts as arrived. */
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
  /* Blocks until the next connection. */
  phoebus_connection *(*accept)(phoebus_listener *, struct phoebus_error *error);
  /* As `interrupt`; may be NULL under the same condition. */
  void (*interrupt_listener)(phoebus_listener *);
  /* The address that it listens on, with the port that was chosen for port 0. */
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
