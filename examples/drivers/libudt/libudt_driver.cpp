// libudt 4.11 as a loadable driver of Phoebus (U7, U9-U11), for comparison with the transport `udt` in measurements.
// UDT has no half-close, and a closed connection looks the same whether the peer finished, was killed or fell silent:
// sessions over it are framed. libudt gives up a connect after 3 s, and notices a killed peer after 5 to 50 s.
#include "phoebus_driver.h"
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <udt/udt.h>
#include <unistd.h>

static const phoebus_option options[] = {
    {"rate", "the most that is sent, headers included; default no bound", 0, int64_t(1) << 40, PHOEBUS_RATE, 0},
    {"mss", "packet size with its IP and UDP headers, bytes; default 1500", 76, 9000, PHOEBUS_NUMBER, 0},
    {"flow_window", "packets in flight at most; default 25600", 32, 1 << 24, PHOEBUS_NUMBER, 0},
    {"send_buffer", "bytes not yet acknowledged at most; default 12MB", 65536, 1 << 30, PHOEBUS_SIZE, 0},
    {"receive_buffer", "bytes not yet read at most; default 12MB", 65536, 1 << 30, PHOEBUS_SIZE, 0},
    {"udp_send_buffer", "kernel buffer of the UDP socket; default 64KiB", 4096, 1 << 30, PHOEBUS_SIZE, 0},
    {"udp_receive_buffer", "kernel buffer of the UDP socket; default 12MB", 4096, 1 << 30, PHOEBUS_SIZE, 0},
};
static const UDTOpt numbers[] = {UDT_MAXBW, UDT_MSS, UDT_FC, UDT_SNDBUF, UDT_RCVBUF, UDP_SNDBUF, UDP_RCVBUF};

// libudt creates a socket for one address family, which is known only at connect or bind: until then, values wait
// here; 0 is unset.
struct Values { int64_t of[7] = {}; };
struct phoebus_listener { UDTSOCKET u = UDT::INVALID_SOCK; };
struct phoebus_connection : phoebus_listener {
  Values values;
  std::atomic<bool> connected{false}, interrupted{false};
  std::atomic<uint64_t> written{0}, taken{0};
};

static int failed(phoebus_error *error, int code) { return error->code = code, error->text[0] = 0, -1; }
static int failed(phoebus_error *error) {
  int code = UDT::getlasterror_code();  // thousands give the category, units the case
  failed(error, code == 1001 ? ETIMEDOUT : code == 1002 ? ECONNREFUSED : code / 1000 == 2 || code == 5004 ? ECONNRESET : EIO);
  std::strncat(error->text, UDT::getlasterror_desc(), sizeof error->text - 1);
  return -1;
}
static int check(int result, phoebus_error *error) { return result == UDT::ERROR ? failed(error) : 0; }

static Values read_values(const phoebus_setting *settings, size_t count) {
  Values values;
  for (const phoebus_setting *s = settings; s < settings + count; s++)
    for (int o = 0; o < 7; o++)
      if (!std::strcmp(s->name, options[o].name)) values.of[o] = std::atoll(s->value);
  return values;
}
static int make(phoebus_listener *l, int family, const Values &values, phoebus_error *error) {
  linger at_once = {0, 0};  // finish() waits instead
  if ((l->u = UDT::socket(family, SOCK_STREAM, 0)) == UDT::INVALID_SOCK) return failed(error);
  int64_t rate = values.of[0] ? values.of[0] / 8 : -1;
  bool bad = UDT::setsockopt(l->u, 0, UDT_LINGER, &at_once, sizeof at_once) ||
             UDT::setsockopt(l->u, 0, numbers[0], &rate, sizeof rate);
  for (int o = 1; o < 7 && !bad; o++) {
    int value = int(values.of[o]);
    bad = value && UDT::setsockopt(l->u, 0, numbers[o], &value, sizeof value);
  }
  return bad ? failed(error) : 0;
}
static int start(phoebus_error *error) { return check(UDT::startup(), error); }
static phoebus_connection *open_it(const phoebus_setting *settings, size_t count, phoebus_error *error) {
  auto c = new (std::nothrow) phoebus_connection;
  if (c) c->values = read_values(settings, count);
  return c ? c : (failed(error, ENOMEM), nullptr);
}
static int connect_it(phoebus_connection *c, const sockaddr *to, socklen_t length, uint32_t, phoebus_error *error) {
  if (make(c, to->sa_family, c->values, error) || check(UDT::connect(c->u, to, int(length)), error)) return -1;
  c->connected = true;  // sets its flag before it reads the other's, as interrupt does: one of them sees the other
  return c->interrupted ? failed(error, ECANCELED) : 0;
}
static ssize_t read_it(phoebus_connection *c, void *buffer, size_t size, phoebus_error *error) {
  int n = UDT::recv(c->u, static_cast<char *>(buffer), int(size), 0);
  if (n == UDT::ERROR) return UDT::getlasterror_code() / 1000 == 2 ? 0 : failed(error);
  return c->taken += uint64_t(n), n;
}
static ssize_t write_it(phoebus_connection *c, const void *bytes, size_t size, phoebus_error *error) {
  int n = UDT::send(c->u, static_cast<const char *>(bytes), int(size), 0);
  return n == UDT::ERROR ? failed(error) : (c->written += uint64_t(n), n);
}
static int64_t pending(phoebus_connection *c, phoebus_error *error) {
  int packets = 0, length = sizeof packets;
  return check(UDT::getsockopt(c->u, 0, UDT_SNDDATA, &packets, &length), error) ? -1 : packets;
}
static int is_alive(phoebus_connection *c, phoebus_error *error) {
  return UDT::getsockstate(c->u) == CONNECTED ? 0 : failed(error, ECONNRESET);
}
static int finish(phoebus_connection *c, uint32_t limit_ms, phoebus_error *error) {
  for (uint32_t waited = 0; waited < limit_ms && !is_alive(c, error); waited += 2, usleep(2000))
    if (int64_t left = pending(c, error); left <= 0) return int(left);
  return failed(error, ETIMEDOUT);
}
static void interrupt(phoebus_connection *c) {  // a close would wait for a pending connect, which ends within 3 s
  c->interrupted = true;
  if (c->connected) UDT::close(c->u);
}
static int stats(phoebus_connection *c, phoebus_stats *s, phoebus_error *) {
  UDT::TRACEINFO info;
  int mss = 0, length = sizeof mss;
  s->bytes_sent = c->written;
  s->bytes_received = c->taken;
  if (UDT::perfmon(c->u, &info, false) || UDT::getsockopt(c->u, 0, UDT_MSS, &mss, &length)) return 0;  // the connection is closed
  s->segment_size = uint32_t(mss - 44);
  s->segments_sent = uint64_t(info.pktSentTotal);
  s->retransmits = uint64_t(info.pktRetransTotal);
  s->bytes_retransmitted = s->retransmits * s->segment_size;
  s->bytes_sent += s->bytes_retransmitted;
  s->in_flight = uint64_t(info.pktFlightSize);
  s->rtt_us = uint64_t(info.msRTT * 1e3);
  s->congestion_window = uint64_t(info.pktCongestionWindow);
  s->sending_period_ns = uint64_t(info.usPktSndPeriod * 1e3);
  return 0;
}
static int address(phoebus_connection *c, phoebus_end end, sockaddr_storage *to, phoebus_error *error) {
  int length = sizeof *to;
  return check((end == PHOEBUS_HERE ? UDT::getsockname : UDT::getpeername)(c->u, (sockaddr *)to, &length), error);
}
static void close_it(phoebus_connection *c) { UDT::close(c->u), delete c; }
static phoebus_listener *listen_it(const sockaddr *on, socklen_t length, const phoebus_setting *settings, size_t count,
                                   phoebus_error *error) {
  auto l = new (std::nothrow) phoebus_listener;
  if (!l) return failed(error, ENOMEM), nullptr;
  if (!make(l, on->sa_family, read_values(settings, count), error) && !check(UDT::bind(l->u, on, int(length)), error) &&
      !check(UDT::listen(l->u, 1024), error)) return l;
  return UDT::close(l->u), delete l, nullptr;
}
static phoebus_connection *accept_it(phoebus_listener *l, phoebus_error *error) {
  auto c = open_it(nullptr, 0, error);  // libudt passes the listener's settings on
  if (c) c->u = UDT::accept(l->u, nullptr, nullptr);
  if (c && c->u == UDT::INVALID_SOCK) return failed(error), delete c, nullptr;
  return c ? (c->connected = true, c) : nullptr;
}
static void interrupt_listener(phoebus_listener *l) { UDT::close(l->u); }
static int listener_address(phoebus_listener *l, sockaddr_storage *to, phoebus_error *error) {
  int length = sizeof *to;
  return check(UDT::getsockname(l->u, (sockaddr *)to, &length), error);
}
static void close_listener(phoebus_listener *l) { UDT::close(l->u), delete l; }

const phoebus_driver *phoebus_driver_v1(void) {
  static const phoebus_driver driver = {PHOEBUS_DRIVER_VERSION, sizeof driver, "libudt 4.11", 0, 7, options, start, open_it,
      connect_it, read_it, write_it, nullptr, finish, interrupt, is_alive, pending, nullptr, stats, address, close_it, listen_it,
      accept_it, interrupt_listener, listener_address, close_listener};
  return &driver;
}
