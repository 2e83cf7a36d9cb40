// A gateway of the other address family: mapped addresses, and sockets that are replaced.
#include "check.h"

static void v6_peer_is(int fd, v6 a) {
    v6 got;
    socklen_t len = sizeof got;
    OK(getpeername(fd, (struct sockaddr *)&got, &len));
    CHECK(len == sizeof got && got.sin6_family == AF_INET6);
    CHECK(got.sin6_port == a.sin6_port && memcmp(&got.sin6_addr, &a.sin6_addr, 16) == 0);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    OK(getsockopt(fd, level, name, &value, &len));
    return value;
}

static void set_option(int fd, int level, int name, int value) {
    OK(setsockopt(fd, level, name, &value, sizeof value));
}

static int family(int fd) {
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(len == (own.ss_family == AF_INET ? sizeof(v4) : sizeof(v6)));
    return own.ss_family;
}

// The own address that a program sees is of the destination's protocol, or none.
static void own_is(int fd, int mapped) {
    v6 own;
    socklen_t len = sizeof own;
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(len == sizeof own && own.sin6_family == AF_INET6 && own.sin6_port != 0);
    CHECK(!IN6_IS_ADDR_V4MAPPED(&own.sin6_addr) == !mapped);
}

// An IPv6 socket, whatever the gateway has.
static void six(void) {
    for (int only = 0; only < 2; only++) {
        int fd = socket(AF_INET6, SOCK_STREAM, 0);
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, only);
        v6 a = at6("2001:db8::7", REFUSED);
        FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
        CHECK(option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == only);
        a = at6("2001:db8::7", ECHO);
        OK(connect(fd, ADDR(a)));
        v6_peer_is(fd, a);
        own_is(fd, 0);
        CHECK(family(fd) == AF_INET6 && option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
        echo(fd);
        close(fd);
    }
    // An IPv4 destination as an IPv6 socket has it.
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    v6 a = at6("::ffff:192.0.2.7", ECHO);
    OK(connect(fd, ADDR(a)));
    v6_peer_is(fd, a);
    own_is(fd, 1);
    echo(fd);
    close(fd);
    // Without waiting.
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
    a = at6("2001:db8::7", HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(polled(fd, POLLOUT, 20) == 0);
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT && so_error(fd) == 0);
    echo(fd);
    // Bound to an IPv6 address of its own.
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    v6 own = at6("::1", 0);
    OK(bind(fd, ADDR(own)));
    a = at6("2001:db8::7", ECHO);
    OK(connect(fd, ADDR(a)));
    v6_peer_is(fd, a);
    echo(fd);
}

// An IPv4 socket, whatever the gateway has.
static void four(void) {
    int fd = tcp(SOCK_CLOEXEC);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 12345);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 40000);
    struct timeval t = {60, 0};
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    int sndbuf = option(fd, SOL_SOCKET, SO_SNDBUF);
    v4 a = far(ECHO);
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    CHECK(family(fd) == AF_INET && option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET);
    CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY) == 1 && option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 77 && option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 12345);
    CHECK(option(fd, SOL_SOCKET, SO_SNDBUF) == sndbuf);
    socklen_t len = sizeof t;
    OK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    CHECK(t.tv_sec == 60 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
    echo(fd);
    close(fd);

    // In an epoll set from before, edge-triggered, with a failure and a direct connection after it.
    int set = epoll_create1(0);
    fd = tcp(SOCK_NONBLOCK);
    struct epoll_event e = {.events = EPOLLOUT | EPOLLET, .data.u64 = 5};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    a = far(HELD_REFUSED);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && !(fcntl(fd, F_GETFD) & FD_CLOEXEC));
    CHECK(epoll_wait(set, &e, 1, 50) == 0);
    release();
    CHECK(epoll_wait(set, &e, 1, -1) == 1 && e.data.u64 == 5 && e.events == (EPOLLOUT | EPOLLERR | EPOLLHUP));
    CHECK(so_error(fd) == ECONNREFUSED && so_error(fd) == 0);
    CHECK(family(fd) == AF_INET);
    a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    release();
    CHECK(epoll_wait(set, &e, 1, -1) == 1 && e.data.u64 == 5 && e.events == EPOLLOUT);
    peer_is(fd, a);
    echo(fd);
    close(fd);

    fd = tcp(0);
    a = far(REFUSED);
    FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
    a = at4("127.0.0.1", atoi(getenv("DIRECT")));
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    echo(fd);
    close(fd);

    // Bound to a port.
    fd = tcp(0);
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    v4 own = at4("0.0.0.0", 0);
    OK(bind(fd, ADDR(own)));
    len = sizeof own;
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    in_port_t port = own.sin_port;
    a = far(ECHO);
    OK(connect(fd, ADDR(a)));
    len = sizeof own;
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(own.sin_port == port);
    echo(fd);
}

// A gateway of IPv4 that is not there, and a destination of IPv6 that is: the fallback connects to it directly.
static void six_falls_back(void) {
    int listener = socket(AF_INET6, SOCK_STREAM, 0);
    v6 a = at6("::1", 0), got;
    socklen_t len = sizeof a;
    OK(bind(listener, ADDR(a)));
    OK(listen(listener, 8));
    OK(getsockname(listener, (struct sockaddr *)&a, &len));
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int fd = socket(AF_INET6, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
        if (nonblocking) {
            int result = connect(fd, ADDR(a));
            CHECK(result == 0 || errno == EINPROGRESS);
            CHECK(polled(fd, POLLOUT, 5000) == POLLOUT);
        } else {
            OK(connect(fd, ADDR(a)));
        }
        len = sizeof got;
        OK(getpeername(fd, (struct sockaddr *)&got, &len));
        CHECK(got.sin6_port == a.sin6_port);
        close(fd);
    }
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    close(listener);
    FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "four") == 0) four();
    else if (strcmp(argv[1], "six") == 0) six();
    else if (strcmp(argv[1], "six_falls_back") == 0) six_falls_back();
    else CHECK(!"a rule of this name");
}
