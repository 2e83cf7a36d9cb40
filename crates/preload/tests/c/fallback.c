// Direct connections after a gateway that is not there: they are as the kernel makes them.
#include "check.h"

static int domain;

struct server { int fd; struct sockaddr_storage at; socklen_t len; };

static struct server server(void) {
    struct server s = {.fd = socket(domain, SOCK_STREAM, 0), .len = sizeof s.at};
    v4 four = at4("127.0.0.1", 0);
    v6 six = at6("::1", 0);
    OK(domain == AF_INET ? bind(s.fd, ADDR(four)) : bind(s.fd, ADDR(six)));
    OK(listen(s.fd, 8));
    OK(getsockname(s.fd, (struct sockaddr *)&s.at, &s.len));
    return s;
}

static int connect_to(int fd, struct server s) {
    errno = 0;
    return connect(fd, (struct sockaddr *)&s.at, s.len);
}

static int begin(struct server s) {
    int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && (connect_to(fd, s) == 0 || errno == EINPROGRESS));
    return fd;
}

// A program may ask by another connect how its connect ended.
static void refused(void) {
    struct server s = server();
    close(s.fd);
    for (int asks_first = 0; asks_first < 2; asks_first++) {
        int fd = begin(s);
        CHECK(polled(fd, POLLOUT, 10000) == (POLLOUT | POLLERR | POLLHUP));
        if (asks_first) CHECK(so_error(fd) == ECONNREFUSED);
        CHECK(connect_to(fd, s) == -1 && errno == (asks_first ? ECONNABORTED : ECONNREFUSED));
        // The next one is a new one.
        CHECK(connect_to(fd, s) == -1 && errno == EINPROGRESS);
        CHECK(polled(fd, POLLOUT, 10000) == (POLLOUT | POLLERR | POLLHUP) && so_error(fd) == ECONNREFUSED);
        close(fd);
    }
}

// What arrived before the end can be read after it, whatever was asked in between.
static void ended(void) {
    struct server s = server();
    for (int blocking = 0; blocking < 2; blocking++) {
        int fd = begin(s);
        char got[5];
        // Until somebody asks for it, the socket connects to the gateway.
        CHECK(polled(fd, POLLOUT, 10000) == POLLOUT);
        int peer = accept(s.fd, NULL, NULL);
        CHECK(connect_to(fd, s) == 0 || errno == EISCONN);
        CHECK(connect_to(fd, s) == -1 && errno == EISCONN);
        OK(shutdown(fd, SHUT_WR));
        CHECK(recv(peer, got, 1, 0) == 0 && send(peer, "abc", 3, 0) == 3);
        close(peer);
        while (tcp_state(fd) != TCP_CLOSE) usleep(1000);
        set_nonblocking(fd, !blocking);
        CHECK(connect_to(fd, s) == -1 && errno == EISCONN);
        CHECK(recv(fd, got, sizeof got, 0) == 3 && memcmp(got, "abc", 3) == 0);
        CHECK(recv(fd, got, sizeof got, 0) == 0);
        close(fd);
    }
}

// The same for a connection that another program began.
static void accepted(void) {
    struct server s = server();
    int fd = begin(s);
    char got[5];
    CHECK(polled(fd, POLLOUT, 10000) == POLLOUT && send(fd, "abc", 3, 0) == 3);
    int peer = accept(s.fd, NULL, NULL);
    OK(shutdown(fd, SHUT_WR));
    OK(shutdown(peer, SHUT_WR));
    CHECK(polled(fd, POLLIN, 10000) & POLLIN && recv(fd, got, 1, 0) == 0);
    while (tcp_state(peer) != TCP_CLOSE) usleep(1000);
    CHECK(connect_to(peer, s) == -1 && errno == EISCONN);
    CHECK(recv(peer, got, sizeof got, 0) == 3);
}

// The descriptor in an epoll set lives on, if the program asks by a copy.
static void copied(void) {
    struct server s = server();
    int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 5};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    CHECK(connect_to(fd, s) == 0 || errno == EINPROGRESS);
    int copy = dup(fd);
    CHECK(polled(copy, POLLOUT, 10000) & POLLOUT);
    CHECK(epoll_wait(set, &e, 1, 10000) == 1 && e.data.u64 == 5 && e.events == EPOLLOUT);
    int peer = accept(s.fd, NULL, NULL);
    char got[5];
    CHECK(send(fd, "abc", 3, MSG_NOSIGNAL) == 3 && recv(peer, got, sizeof got, 0) == 3);
    // Without a set.
    fd = begin(s);
    copy = dup(fd);
    CHECK(polled(copy, POLLOUT, 10000) & POLLOUT);
    peer = accept(s.fd, NULL, NULL);
    CHECK(send(fd, "abc", 3, MSG_NOSIGNAL) == 3 && recv(peer, got, sizeof got, 0) == 3);
}

// No connection of TCP goes to many hosts.
static void many(void) {
    static const char *const four[] = {"224.0.0.1", "255.255.255.255"}, *const six[] = {"ff02::1", "::ffff:224.0.0.1"};
    for (int i = 0; i < 2; i++) {
        int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK, 0);
        v4 a = domain == AF_INET ? at4(four[i], 7) : at4("0.0.0.0", 7);
        v6 b = domain == AF_INET ? at6("::", 7) : at6(six[i], 7);
        FAILS(domain == AF_INET ? connect(fd, ADDR(a)) : connect(fd, ADDR(b)), ENETUNREACH);
        close(fd);
    }
}

// A socket of IPv6 that was connected directly to IPv4 connects where the settings send it through a gateway of IPv6.
static void mapped(void) {
    v6 nobody = at6("::ffff:127.0.0.1", 1);
    v4 four = at4("127.0.0.2", 0);
    socklen_t len = sizeof four;
    int listener = tcp(0);
    OK(bind(listener, ADDR(four)));
    OK(listen(listener, 1));
    OK(getsockname(listener, (struct sockaddr *)&four, &len));
    v6 near = at6("::ffff:127.0.0.2", ntohs(four.sin_port));
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    FAILS(connect(fd, ADDR(nobody)), ECONNREFUSED);
    OK(connect(fd, ADDR(near)));
    int peer = accept(listener, NULL, NULL);
    char got[5];
    CHECK(send(fd, "abc", 3, MSG_NOSIGNAL) == 3 && recv(peer, got, sizeof got, 0) == 3);
}

static void all(void) {
    refused();
    ended();
    accepted();
    copied();
    many();
}

static void four(void) { domain = AF_INET; all(); }
static void six(void) { domain = AF_INET6; all(); }

RULES({RULE(four), RULE(six), RULE(mapped)})
