// What the C programs share. Every check that fails ends the program with the line and errno.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

// The ports of common/peer.rs.
enum { ECHO = 7, HELD = 9, REFUSED = 11, HELD_REFUSED = 12, TRICKLE = 13, HANG_UP = 14, GARBAGE = 15, CHALLENGE = 16,
       NOT_ALLOWED = 17, GREETING = 18, RESET = 19, HELD_HERE = 10009, HELD_REFUSED_HERE = 10012 };

#define CHECK(what) do { if (!(what)) { \
    fprintf(stderr, "%s:%d: %s failed (errno %d, %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
    _exit(1); } } while (0)
#define FAILS(call, with) do { errno = 0; CHECK((call) == -1); CHECK(errno == (with)); } while (0)
#define OK(call) CHECK((call) == 0)

typedef struct sockaddr_in v4;
typedef struct sockaddr_in6 v6;
#define ADDR(a) (struct sockaddr *)&(a), sizeof(a)

static inline v4 at4(const char *ip, int port) {
    v4 a = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
    return a;
}

static inline v6 at6(const char *ip, int port) {
    v6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    CHECK(inet_pton(AF_INET6, ip, &a.sin6_addr) == 1);
    return a;
}

// A destination that is nowhere: whoever reaches it does so through the gateway.
static inline v4 far(int port) { return at4("192.0.2.1", port); }

static inline int tcp(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    CHECK(fd >= 0);
    return fd;
}

// Lets the session that was held first go on. Async-signal-safe.
static inline void release(void) {
    int saved = errno;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    v4 a = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("CONTROL"))), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(sendto(fd, "go", 2, 0, ADDR(a)) == 2);
    close(fd);
    errno = saved;
}

static inline int so_error(int fd) {
    int e = -1;
    socklen_t len = sizeof e;
    OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    CHECK(len == sizeof e);
    return e;
}

static inline int tcp_state(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    return info.tcpi_state;
}

static inline int polled(int fd, int events, int timeout) {
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, timeout);
    CHECK(n >= 0);
    CHECK(n == (p.revents != 0));
    return p.revents;
}

static inline void set_nonblocking(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    OK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

// Sends, gets the same back, closes both ways.
static inline void echo(int fd) {
    set_nonblocking(fd, 0);
    char back[5];
    CHECK(send(fd, "hello", 5, 0) == 5);
    CHECK(recv(fd, back, 5, MSG_WAITALL) == 5);
    CHECK(memcmp(back, "hello", 5) == 0);
    OK(shutdown(fd, SHUT_WR));
    CHECK(recv(fd, back, 5, 0) == 0);
}

static inline void peer_is(int fd, v4 a) {
    v4 got;
    socklen_t len = sizeof got;
    OK(getpeername(fd, (struct sockaddr *)&got, &len));
    CHECK(len == sizeof got && got.sin_family == AF_INET);
    CHECK(got.sin_port == a.sin_port && got.sin_addr.s_addr == a.sin_addr.s_addr);
}

// The program: its argument names the rule that is tried.
struct rule { const char *name; void (*run)(void); };
#define RULE(name) {#name, name}
#define RULES(...) \
    int main(int argc, char **argv) { \
        const struct rule rules[] = __VA_ARGS__; \
        CHECK(argc == 2); \
        for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++) { \
            if (strcmp(argv[1], rules[i].name) == 0) { \
                rules[i].run(); \
                return 0; \
            } \
        } \
        CHECK(!"a rule of this name"); \
    }
