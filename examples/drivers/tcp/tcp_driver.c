/*
 * TCP with blocking calls as a loadable driver: the example of docs/guide/drivers.md. In production, use the transport `tcp`.
 *
 * shutdown(2) would end a blocked call, but would also send the peer a false end of stream. So this driver has no
 * `interrupt`: its calls return EAGAIN twice a second.
 */
#define _GNU_SOURCE
#include "phoebus_driver.h"
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

struct phoebus_connection { int fd, send_buffer; };
struct phoebus_listener { int fd, send_buffer; };

static int failed(struct phoebus_error *error) {
  error->code = errno;
  error->text[0] = 0; /* the errno says it all */
  return -1;
}

/* Until `finish`, any close resets the connection, including the one at process death: PHOEBUS_TRUE_ENDS. */
static int set_linger(int fd, int reset) {
  struct linger how = {.l_onoff = reset};
  return setsockopt(fd, SOL_SOCKET, SO_LINGER, &how, sizeof how);
}

static int open_socket(int family, int send_buffer) {
  struct timeval half = {.tv_usec = 500000};
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (set_linger(fd, 1) || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half) ||
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &half, sizeof half) ||
      (send_buffer && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer)))
    return close(fd), -1;
  return fd;
}

static int send_buffer_of(const struct phoebus_setting *settings, size_t count) {
  return count ? atoi(settings[0].value) : 0; /* there is only one option */
}

static phoebus_connection *open_it(const struct phoebus_setting *settings, size_t count, struct phoebus_error *error) {
  phoebus_connection *c = malloc(sizeof *c);
  if (!c) return failed(error), NULL;
  c->fd = -1; /* its family is known when it connects */
  c->send_buffer = send_buffer_of(settings, count);
  return c;
}

static int connect_it(phoebus_connection *c, const struct sockaddr *to, socklen_t length, uint32_t limit_ms,
                      struct phoebus_error *error) {
  (void)limit_ms; /* Phoebus stops asking when the time is up */
  if (c->fd < 0) c->fd = open_socket(to->sa_family, c->send_buffer);
  if (c->fd < 0) return failed(error);
  if (!connect(c->fd, to, length)) return 0;
  if (errno == EINPROGRESS || errno == EALREADY) errno = EAGAIN;
  return failed(error);
}

static ssize_t read_it(phoebus_connection *c, void *buffer, size_t size, struct phoebus_error *error) {
  ssize_t n = recv(c->fd, buffer, size, 0);
  return n < 0 ? failed(error) : n;
}

static ssize_t write_it(phoebus_connection *c, const void *bytes, size_t size, struct phoebus_error *error) {
  ssize_t n = send(c->fd, bytes, size, MSG_NOSIGNAL);
  return n < 0 ? failed(error) : n;
}

static int shutdown_it(phoebus_connection *c, struct phoebus_error *error) {
  return shutdown(c->fd, SHUT_WR) ? failed(error) : 0;
}

/* After a close without a reset, the kernel still delivers the remaining bytes. */
static int finish(phoebus_connection *c, uint32_t limit_ms, struct phoebus_error *error) {
  (void)limit_ms;
  return set_linger(c->fd, 0) ? failed(error) : 0;
}

static int check(phoebus_connection *c, struct phoebus_error *error) {
  int why = 0;
  socklen_t length = sizeof why;
  if (!getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &why, &length) && !why) return 0;
  if (why) errno = why;
  return failed(error);
}

static int64_t pending(phoebus_connection *c, struct phoebus_error *error) {
  int bytes = 0;
  return ioctl(c->fd, SIOCOUTQ, &bytes) ? failed(error) : bytes;
}

static int stats(phoebus_connection *c, struct phoebus_stats *s, struct phoebus_error *error) {
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &length)) return failed(error);
  s->segment_size = info.tcpi_snd_mss;
  s->retransmits = info.tcpi_total_retrans;
  s->in_flight = info.tcpi_unacked;
  s->rtt_us = info.tcpi_rtt;
  s->rtt_var_us = info.tcpi_rttvar;
  s->congestion_window = info.tcpi_snd_cwnd;
  return 0;
}

static int address(phoebus_connection *c, enum phoebus_end end, struct sockaddr_storage *to, struct phoebus_error *error) {
  socklen_t length = sizeof *to;
  int (*ask)(int, struct sockaddr *, socklen_t *) = end == PHOEBUS_HERE ? getsockname : getpeername;
  return ask(c->fd, (struct sockaddr *)to, &length) ? failed(error) : 0;
}

static void close_it(phoebus_connection *c) {
  if (c->fd >= 0) close(c->fd);
  free(c);
}

static phoebus_listener *listen_it(const struct sockaddr *on, socklen_t length, const struct phoebus_setting *settings,
                                   size_t count, struct phoebus_error *error) {
  int one = 1;
  phoebus_listener *l = malloc(sizeof *l);
  if (!l) return failed(error), NULL;
  l->fd = open_socket(on->sa_family, send_buffer_of(settings, count)); /* accepted sockets inherit all of it */
  if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(l->fd, on, length) ||
      listen(l->fd, 1024)) {
    failed(error);
    if (l->fd >= 0) close(l->fd);
    return free(l), NULL;
  }
  return l;
}

static phoebus_connection *accept_it(phoebus_listener *l, struct phoebus_error *error) {
  phoebus_connection *c = malloc(sizeof *c);
  if (!c) return failed(error), NULL;
  c->fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
  if (c->fd < 0) return failed(error), free(c), NULL;
  return c;
}

static int listener_address(phoebus_listener *l, struct sockaddr_storage *to, struct phoebus_error *error) {
  socklen_t length = sizeof *to;
  return getsockname(l->fd, (struct sockaddr *)to, &length) ? failed(error) : 0;
}

static void close_listener(phoebus_listener *l) {
  close(l->fd);
  free(l);
}

static const struct phoebus_option options[] = {
    {"send_buffer", "kernel send buffer, bytes; by default the kernel sizes it", 4096, 1 << 30, PHOEBUS_SIZE, 0},
};

const struct phoebus_driver *phoebus_driver_v1(void) {
  static const struct phoebus_driver driver = {
      .version = PHOEBUS_DRIVER_VERSION, .size = sizeof driver, .name = "blocking TCP",
      .abilities = PHOEBUS_HALF_CLOSE | PHOEBUS_TRUE_ENDS, .options = options, .option_count = 1,
      .open = open_it, .connect = connect_it, .read = read_it, .write = write_it, .shutdown = shutdown_it, .finish = finish,
      .check = check, .pending = pending, .stats = stats, .address = address, .close = close_it, .listen = listen_it,
      .accept = accept_it, .listener_address = listener_address, .close_listener = close_listener,
  };
  return &driver;
}
