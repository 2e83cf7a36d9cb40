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

static int listen6(v6 *a) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    socklen_t len = sizeof *a;
    *a = at6("::1", 0);
    OK(bind(fd, ADDR(*a)));
    OK(listen(fd, 8));
    OK(getsockname(fd, (struct sockaddr *)a, &len));
    return fd;
}

// The socket connects to an address of this host, past the gateway.
static void connects_directly(int fd, v6 a) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    int result = connect(fd, ADDR(a));
    CHECK(result == 0 || errno == EINPROGRESS);
    CHECK(polled(fd, POLLOUT, 10000) == POLLOUT && so_error(fd) == 0);
    v6_peer_is(fd, a);
    own_is(fd, 0);
}

// A socket that was connected to a gateway of IPv4 connects to IPv6 afterwards.
static void six_again(void) {
    v6 near, a = at6("2001:db8::7", REFUSED);
    int listener = listen6(&near);
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
    connects_directly(fd, near);
    close(fd);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    a = at6("2001:db8::7", ECHO);
    OK(connect(fd, ADDR(a)));
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    OK(connect(fd, &none, sizeof none));
    connects_directly(fd, near);
    close(fd);
    close(listener);
}

// An IPv6 socket, whatever the gateway has.
static void six(void) {
    six_again();
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

// What the program has set is still set when the fallback has replaced the socket.
static void six_keeps(v6 a, int is_bound) {
    static const int options[][3] = {
        {IPPROTO_IPV6, IPV6_TCLASS, 40}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 255}, {IPPROTO_IPV6, IPV6_V6ONLY, 1},
        {IPPROTO_IPV6, IPV6_RECVERR, 1}, {IPPROTO_IPV6, IPV6_DONTFRAG, 1}, {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1},
        {IPPROTO_IPV6, IPV6_FREEBIND, 1}, {IPPROTO_TCP, TCP_NODELAY, 1}, {SOL_SOCKET, SO_PRIORITY, 3},
        {SOL_SOCKET, SO_TIMESTAMP, 1},
    };
    int fd = socket(AF_INET6, SOCK_STREAM, 0), usual = option(fd, IPPROTO_IP, IP_TOS);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) set_option(fd, options[i][0], options[i][1], options[i][2]);
    struct f_owner_ex owner = {F_OWNER_PID, getppid()}, owned;
    OK(fcntl(fd, F_SETOWN_EX, &owner));
    OK(fcntl(fd, F_SETSIG, SIGWINCH));
    // Of the ports below those that the kernel gives out.
    v6 own = at6(is_bound ? "::1" : "::", 0), got;
    socklen_t len = sizeof own;
    int port = 20000 + getpid() % 10000;
    do own.sin6_port = htons(port++);
    while (bind(fd, ADDR(own)) != 0 && errno == EADDRINUSE && port < 32000);
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(own.sin6_port != 0);
    connects_directly(fd, a);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) CHECK(option(fd, options[i][0], options[i][1]) == options[i][2]);
    CHECK(option(fd, IPPROTO_IP, IP_TOS) == usual && option(fd, SOL_SOCKET, SO_REUSEADDR) == 0);
    OK(fcntl(fd, F_GETOWN_EX, &owned));
    CHECK(owned.type == owner.type && owned.pid == owner.pid && fcntl(fd, F_GETSIG) == SIGWINCH);
    OK(getsockname(fd, (struct sockaddr *)&got, &len));
    CHECK(got.sin6_port == own.sin6_port);
    close(fd);
}

// Without a descriptor for another socket, the fallback is an error. It does not connect the socket that is there.
static void six_has_no_descriptor(v6 a) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct rlimit had, none;
    OK(getrlimit(RLIMIT_NOFILE, &had));
    none = had;
    none.rlim_cur = fd + 1;
    OK(setrlimit(RLIMIT_NOFILE, &none));
    FAILS(connect(fd, ADDR(a)), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &had));
    connects_directly(fd, a);
    close(fd);
}

// An epoll set has a socket through all its connects.
static void six_stays_registered(v6 near) {
    for (int late = 0; late < 2; late++) {
        int set = epoll_create1(0), fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 5};
        if (!late) OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
        v6 nobody = at6("::1", 1);
        for (int i = 0; i < 4; i++) {
            v6 a = i == 3 ? near : nobody;
            int result = connect(fd, ADDR(a));
            // The kernel reports once that the connect is over whose error was read.
            if (result == -1 && errno == ECONNABORTED) result = connect(fd, ADDR(a));
            CHECK(result == 0 || errno == EINPROGRESS || errno == ECONNREFUSED);
            if (late && i == 0) OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
            if (i < 3) {
                while (polled(fd, POLLOUT, 10000) == POLLOUT) {}
                so_error(fd);
            }
        }
        do {
            CHECK(epoll_wait(set, &e, 1, 10000) == 1 && e.data.u64 == 5);
        } while (e.events & EPOLLHUP);
        CHECK(e.events == EPOLLOUT && so_error(fd) == 0);
        v6_peer_is(fd, near);
        close(fd);
        close(set);
    }
}

// A gateway of IPv4 that is not there, and a destination of IPv6 that is: the fallback connects to it directly.
static void six_falls_back(void) {
    v6 a, got;
    socklen_t len = sizeof a;
    int listener = listen6(&a);
    six_keeps(a, 0);
    six_keeps(a, 1);
    six_has_no_descriptor(a);
    six_stays_registered(a);
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
    // MPTCP, where the kernel has it.
    int fd = socket(AF_INET6, SOCK_STREAM, IPPROTO_MPTCP);
    CHECK(fd >= 0 || errno == ENOPROTOOPT || errno == EPROTONOSUPPORT);
    if (fd >= 0) OK(connect(fd, ADDR(a)));
    close(fd);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    close(listener);
    FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
}

static int reported(int set) {
    struct epoll_event e;
    CHECK(epoll_wait(set, &e, 1, 10000) == 1 && e.data.u64 == 5);
    return e.events;
}

// A socket is as it was when the session through the gateway is over: its family, its address, its options, its epoll sets.
static void connects_again(int domain) {
    v4 near, far4 = far(RESET);
    v6 near6, far6 = at6("2001:db8::7", RESET);
    int listener = tcp(0), listener6 = listen6(&near6);
    socklen_t len = sizeof near;
    near = at4("127.0.0.1", 0);
    OK(bind(listener, ADDR(near)));
    OK(listen(listener, 8));
    OK(getsockname(listener, (struct sockaddr *)&near, &len));
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        for (int direct = 0; direct < 2; direct++) {
            int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
            set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
            v4 own = at4("127.0.0.5", 0);
            if (domain == AF_INET) {
                set_option(fd, IPPROTO_IP, IP_TOS, 40);
                OK(bind(fd, ADDR(own)));
            } else {
                set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, 40);
                set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
            }
            char had[2][16] = {0};
            len = sizeof *had;
            OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, had[0], &len));
            CHECK((domain == AF_INET ? connect(fd, ADDR(far4)) : connect(fd, ADDR(far6))) == -1 && errno == EINPROGRESS);
            CHECK(polled(fd, POLLOUT, 10000) == POLLOUT);
            int set = epoll_create1(0);
            struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 5};
            OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
            if (is_reset) {
                CHECK(send(fd, "x", 1, 0) == 1);
                while (tcp_state(fd) != TCP_CLOSE) usleep(1000);
                FAILS(domain == AF_INET ? connect(fd, ADDR(far4)) : connect(fd, ADDR(far6)), ECONNRESET);
            } else {
                struct sockaddr none = {.sa_family = AF_UNSPEC};
                OK(connect(fd, &none, sizeof none));
            }
            CHECK(family(fd) == domain && option(fd, SOL_SOCKET, SO_DOMAIN) == domain);
            len = sizeof *had;
            OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, had[1], &len));
            CHECK(memcmp(had[0], had[1], sizeof *had) == 0);
            if (domain == AF_INET6) CHECK(option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1);
            set_nonblocking(fd, 0);
            v4 to = direct ? near : far(ECHO);
            v6 to6 = direct ? near6 : at6("2001:db8::7", ECHO);
            OK(domain == AF_INET ? connect(fd, ADDR(to)) : connect(fd, ADDR(to6)));
            if (domain == AF_INET) peer_is(fd, to);
            else v6_peer_is(fd, to6);
            CHECK(family(fd) == domain && option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 77);
            CHECK(reported(set) == EPOLLOUT);
            if (direct) {
                len = sizeof own;
                if (domain == AF_INET) OK(getsockname(fd, (struct sockaddr *)&own, &len));
                CHECK(own.sin_addr.s_addr == at4("127.0.0.5", 0).sin_addr.s_addr);
                CHECK(domain == AF_INET ? option(fd, IPPROTO_IP, IP_TOS) == 40 : option(fd, IPPROTO_IPV6, IPV6_TCLASS) == 40);
            } else {
                echo(fd);
            }
            close(fd);
            close(set);
        }
    }
    close(listener);
    close(listener6);
}

static int watched;
static _Atomic unsigned seen;

static void *watch(void *none) {
    struct epoll_event e;
    while (epoll_wait(watched, &e, 1, -1) == 1 && e.data.u64 == 5) seen |= e.events;
    return none;
}

// Threads that wait meanwhile see nothing of the socket that replaces another.
static void in_silence(int domain) {
    watched = epoll_create1(0);
    pthread_t thread;
    for (int i = 0; i < 3; i++) OK(pthread_create(&thread, NULL, watch, NULL));
    for (int i = 0; i < 200; i++) {
        int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct epoll_event e = {.events = EPOLLOUT | EPOLLET, .data.u64 = 5};
        OK(epoll_ctl(watched, EPOLL_CTL_ADD, fd, &e));
        // The kernel reports a socket that is not connected.
        while (seen != (EPOLLOUT | EPOLLHUP)) usleep(100);
        seen = 0;
        v4 a = far(ECHO);
        v6 a6 = at6("2001:db8::7", ECHO);
        CHECK((domain == AF_INET ? connect(fd, ADDR(a)) : connect(fd, ADDR(a6))) == -1 && errno == EINPROGRESS);
        while (!(seen & EPOLLOUT)) usleep(100);
        CHECK(seen == EPOLLOUT && polled(fd, POLLOUT, 10000) == POLLOUT);
        close(fd);
        seen = 0;
    }
}

static void four_in_silence(void) { in_silence(AF_INET); }
static void six_in_silence(void) { in_silence(AF_INET6); }

static void four_again(void) { connects_again(AF_INET); }

static void six_again_after_sessions(void) {
    connects_again(AF_INET6);
    // After a direct connect to IPv4, which is refused. No gateway is asked.
    v6 near, nobody = at6("::ffff:127.0.0.1", 1);
    int listener = listen6(&near), fd = socket(AF_INET6, SOCK_STREAM, 0), set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 5};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    FAILS(connect(fd, ADDR(nobody)), ECONNREFUSED);
    // A child has the socket, too. What the set reports of that one is nothing to the parent.
    int held[2];
    OK(pipe(held));
    if (fork() == 0) {
        close(held[1]);
        char b[1];
        _exit(read(held[0], b, 1));
    }
    OK(connect(fd, ADDR(near)));
    v6_peer_is(fd, near);
    for (int i = 0; i < 10; i++) CHECK(reported(set) == EPOLLOUT);
    close(held[1]);
    CHECK(wait(NULL) > 0);
    close(fd);
    close(set);
    close(listener);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "four") == 0) four();
    else if (strcmp(argv[1], "six") == 0) six();
    else if (strcmp(argv[1], "six_falls_back") == 0) six_falls_back();
    else if (strcmp(argv[1], "four_again") == 0) four_again();
    else if (strcmp(argv[1], "four_in_silence") == 0) four_in_silence();
    else if (strcmp(argv[1], "six_in_silence") == 0) six_in_silence();
    else if (strcmp(argv[1], "six_again_after_sessions") == 0) six_again_after_sessions();
    else CHECK(!"a rule of this name");
}
