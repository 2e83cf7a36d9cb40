// What a program sees of its sockets while a session is opened, and after: one function for each rule.
#include "check.h"

static void blocking(void) {
    int fd = tcp(0);
    v4 a = far(ECHO);
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    // As after every connect that waited.
    FAILS(connect(fd, ADDR(a)), EISCONN);
    CHECK(so_error(fd) == 0);
    CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    char cut[8];
    socklen_t len = 4;
    OK(getpeername(fd, (struct sockaddr *)cut, &len));
    CHECK(len == sizeof(v4));
    v4 own;
    len = sizeof own;
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(own.sin_family == AF_INET && own.sin_port != 0);
    echo(fd);
    OK(close(fd));
}

static void pending(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD), got;
    socklen_t len = sizeof got;
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    char b[16] = "x";
    struct iovec v = {b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr mm = {.msg_hdr = m};
    int pipes[2];
    OK(pipe(pipes));
    CHECK(write(pipes[1], "x", 1) == 1);
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK(file >= 0);
    // Long enough for the gateway's greeting to have come, which nobody may read but the handshake.
    for (int i = 0; i < 20; i++) {
        CHECK(so_error(fd) == 0);
        FAILS(getpeername(fd, (struct sockaddr *)&got, &len), ENOTCONN);
        FAILS(connect(fd, ADDR(a)), EALREADY);
        FAILS(send(fd, b, 1, 0), EAGAIN);
        FAILS(sendto(fd, b, 1, 0, NULL, 0), EAGAIN);
        FAILS(sendmsg(fd, &m, 0), EAGAIN);
        FAILS(sendmmsg(fd, &mm, 1, 0), EAGAIN);
        FAILS(write(fd, b, 1), EAGAIN);
        FAILS(writev(fd, &v, 1), EAGAIN);
        FAILS(sendfile(fd, file, NULL, 1), EAGAIN);
        FAILS(splice(pipes[0], NULL, fd, NULL, 1, 0), EAGAIN);
        FAILS(recv(fd, b, 1, 0), EAGAIN);
        FAILS(recv(fd, b, 1, MSG_PEEK), EAGAIN);
        FAILS(recvfrom(fd, b, 1, 0, NULL, NULL), EAGAIN);
        FAILS(recvmsg(fd, &m, 0), EAGAIN);
        FAILS(recvmmsg(fd, &mm, 1, 0, NULL), EAGAIN);
        FAILS(read(fd, b, 1), EAGAIN);
        FAILS(readv(fd, &v, 1), EAGAIN);
        FAILS(splice(fd, NULL, pipes[1], NULL, 1, 0), EAGAIN);
        CHECK(polled(fd, POLLIN | POLLOUT | POLLRDHUP, 5) == 0);
        CHECK(tcp_state(fd) == TCP_SYN_SENT);
        len = sizeof got;
    }
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    CHECK(so_error(fd) == 0);
    peer_is(fd, a);
    // As the kernel does after a connect that did not wait: once more success, then an error.
    OK(connect(fd, ADDR(a)));
    FAILS(connect(fd, ADDR(a)), EISCONN);
    CHECK(splice(pipes[0], NULL, fd, NULL, 1, 0) == 1);
    CHECK(polled(fd, POLLIN, -1) == POLLIN);
    CHECK(splice(fd, NULL, pipes[1], NULL, 16, 0) == 1);
    CHECK(sendfile(fd, file, NULL, 4) == 4);
    CHECK(polled(fd, POLLIN, -1) == POLLIN);
    CHECK(read(fd, b, 4) == 4 && memcmp(b, "\177ELF", 4) == 0);
    echo(fd);
}

// OPENED comes in single bytes, and bytes of the stream are right behind it.
static void exact(void) {
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int fd = tcp(nonblocking ? SOCK_NONBLOCK : 0);
        v4 a = far(TRICKLE);
        if (nonblocking) {
            FAILS(connect(fd, ADDR(a)), EINPROGRESS);
            CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
        } else {
            OK(connect(fd, ADDR(a)));
        }
        CHECK(polled(fd, POLLIN, -1) == POLLIN);
        char b[16];
        CHECK(recv(fd, b, sizeof b, MSG_DONTWAIT) == 5 && memcmp(b, "hello", 5) == 0);
        echo(fd);
        close(fd);
    }
    int fd = tcp(0);
    v4 a = far(GREETING);
    OK(connect(fd, ADDR(a)));
    char b[16];
    CHECK(recv(fd, b, sizeof b, MSG_WAITALL) == 11 && memcmp(b, "220 ready\r\n", 11) == 0);
    CHECK(recv(fd, b, sizeof b, 0) == 0);
}

static void refusals(void) {
    static const int with[][2] = {{REFUSED, ECONNREFUSED}, {NOT_ALLOWED, EACCES}, {GARBAGE, EPROTO},
                                  {CHALLENGE, EACCES}, {HANG_UP, ECONNABORTED}};
    for (unsigned i = 0; i < sizeof with / sizeof *with; i++) {
        int fd = tcp(0);
        v4 a = far(with[i][0]);
        errno = 0;
        int result = connect(fd, ADDR(a));
        // A gateway that hangs up with the request unread resets the connection.
        int reset = with[i][0] == HANG_UP && errno == ECONNRESET;
        CHECK(result == -1 && (errno == with[i][1] || reset));
        CHECK(so_error(fd) == 0);
        v4 got;
        socklen_t len = sizeof got;
        FAILS(getpeername(fd, (struct sockaddr *)&got, &len), ENOTCONN);
        // The same socket may try elsewhere.
        a = far(ECHO);
        OK(connect(fd, ADDR(a)));
        peer_is(fd, a);
        echo(fd);
        close(fd);
    }
}

static void refused_later(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD_REFUSED);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(polled(fd, POLLOUT, 50) == 0);
    release();
    CHECK(polled(fd, POLLIN | POLLOUT, -1) == (POLLIN | POLLOUT | POLLERR | POLLHUP));
    CHECK(polled(fd, 0, -1) == (POLLERR | POLLHUP));
    CHECK(so_error(fd) == ECONNREFUSED);
    CHECK(so_error(fd) == 0);
    CHECK(polled(fd, POLLOUT, -1) == (POLLOUT | POLLHUP));
    char b[1];
    FAILS(recv(fd, b, 1, 0), ENOTCONN);
    FAILS(send(fd, b, 1, MSG_NOSIGNAL), EPIPE);
    a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    echo(fd);
    close(fd);

    // The error is told once, by whichever call comes first.
    for (int how = 0; how < 3; how++) {
        fd = tcp(SOCK_NONBLOCK);
        a = far(HELD_REFUSED);
        FAILS(connect(fd, ADDR(a)), EINPROGRESS);
        release();
        CHECK(polled(fd, POLLOUT, -1) & POLLERR);
        if (how == 0) FAILS(recv(fd, b, 1, 0), ECONNREFUSED);
        if (how == 1) FAILS(send(fd, b, 1, 0), ECONNREFUSED);
        if (how == 2) FAILS(connect(fd, ADDR(a)), ECONNREFUSED);
        CHECK(so_error(fd) == 0);
        close(fd);
    }
}

static void selects(void) {
    int fd = tcp(SOCK_NONBLOCK);
    int other[2];
    OK(pipe(other));
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    int count = (fd > other[0] ? fd : other[0]) + 1;
    fd_set r, w, e;
#define SETS() do { FD_ZERO(&r); FD_ZERO(&w); FD_ZERO(&e); \
    FD_SET(fd, &r); FD_SET(fd, &w); FD_SET(fd, &e); FD_SET(other[0], &r); } while (0)
    SETS();
    struct timeval t = {0, 50000};
    CHECK(select(count, &r, &w, &e, &t) == 0);
    CHECK(!FD_ISSET(fd, &r) && !FD_ISSET(fd, &w) && !FD_ISSET(fd, &e) && t.tv_sec == 0 && t.tv_usec == 0);
    // Other descriptors are seen meanwhile.
    CHECK(write(other[1], "x", 1) == 1);
    SETS();
    t = (struct timeval){1000, 0};
    CHECK(select(count, &r, &w, &e, &t) == 1 && FD_ISSET(other[0], &r) && !FD_ISSET(fd, &r) && !FD_ISSET(fd, &w));
    CHECK(t.tv_sec <= 1000 && t.tv_sec > 900);
    CHECK(read(other[0], &t, 1) == 1);
    release();
    SETS();
    CHECK(select(count, &r, &w, &e, NULL) == 1 && FD_ISSET(fd, &w) && !FD_ISSET(fd, &r) && !FD_ISSET(fd, &e));
    CHECK(so_error(fd) == 0);
    echo(fd);
    close(fd);

    fd = tcp(SOCK_NONBLOCK);
    count = (fd > other[0] ? fd : other[0]) + 1;
    a = far(HELD_REFUSED);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    release();
    SETS();
    sigset_t none;
    sigemptyset(&none);
    CHECK(pselect(count, &r, &w, &e, NULL, &none) == 2 && FD_ISSET(fd, &w) && FD_ISSET(fd, &r) && !FD_ISSET(fd, &e));
    CHECK(so_error(fd) == ECONNREFUSED);
}

// Descriptors beyond FD_SETSIZE, in sets that the program allocated.
static void selects_many(void) {
    struct rlimit limit = {4096, 4096};
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = fcntl(tcp(SOCK_NONBLOCK), F_DUPFD, 3000);
    CHECK(fd >= 3000);
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    unsigned long r[64] = {0}, w[64] = {0};
    // Bits beyond those that the call is about are not looked at.
    w[(fd + 1) / 64] |= 1UL << (fd + 1) % 64;
    r[fd / 64] |= 1UL << fd % 64;
    w[fd / 64] |= 1UL << fd % 64;
    release();
    CHECK(select(fd + 1, (fd_set *)r, (fd_set *)w, NULL, NULL) == 1);
    CHECK(w[fd / 64] >> fd % 64 & 1);
    echo(fd);
    // And many entries of poll.
    static struct pollfd many[2000];
    for (int i = 0; i < 2000; i++) many[i] = (struct pollfd){.fd = -1 - i, .events = POLLIN};
    many[1500] = (struct pollfd){.fd = tcp(SOCK_NONBLOCK), .events = POLLOUT};
    FAILS(connect(many[1500].fd, ADDR(a)), EINPROGRESS);
    CHECK(poll(many, 2000, 20) == 0);
    release();
    CHECK(poll(many, 2000, -1) == 1 && many[1500].revents == POLLOUT);
    for (int i = 0; i < 2000; i++) CHECK(i == 1500 || (many[i].revents == 0 && many[i].fd == -1 - i));
    echo(many[1500].fd);
}

static void untouched(void) {
    // Datagrams, other families, this host, the gateway itself.
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    v4 a = far(ECHO);
    if (connect(fd, ADDR(a)) == 0) peer_is(fd, a);
    close(fd);
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    char b[1];
    CHECK(write(pair[0], "x", 1) == 1 && read(pair[1], b, 1) == 1);
    struct sockaddr_un u = {.sun_family = AF_UNIX, .sun_path = "/nonexistent/socket"};
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(connect(fd, ADDR(u)), ENOENT);
    close(fd);
    fd = tcp(0);
    a = at4("127.0.0.1", atoi(getenv("DIRECT")));
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    echo(fd);
    close(fd);
    fd = tcp(0);
    a = at4("127.0.0.1", atoi(getenv("GATEWAY_PORT")));
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    CHECK(write(fd, "x", 1) == 1);
    close(fd);
    // Wrong arguments are for the kernel to refuse.
    fd = tcp(0);
    a = far(ECHO);
    FAILS(connect(fd, (struct sockaddr *)&a, 4), EINVAL);
    FAILS(connect(fd, NULL, sizeof a), EFAULT);
    FAILS(connect(-1, ADDR(a)), EBADF);
    FAILS(connect(pair[0], ADDR(a)), EINVAL);
    v6 mapped = at6("::ffff:192.0.2.1", ECHO);
    FAILS(connect(fd, ADDR(mapped)), EAFNOSUPPORT);
    int six = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
    FAILS(connect(six, ADDR(a)), EINVAL);
    OK(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
    FAILS(connect(six, ADDR(mapped)), ENETUNREACH);
    close(six);
    // Such a call connects no datagram socket.
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    v4 here = at4("127.0.0.1", 9), peer;
    socklen_t len = sizeof peer;
    CHECK(sendto(datagrams, "x", 1, MSG_FASTOPEN, ADDR(here)) == 1);
    FAILS(getpeername(datagrams, (struct sockaddr *)&peer, &len), ENOTCONN);
    close(datagrams);
    OK(connect(fd, ADDR(a)));
    echo(fd);
}

static void given_up(void) {
    // shutdown and AF_UNSPEC end a connect that is under way.
    v4 a = far(HELD);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    for (int how = 0; how < 2; how++) {
        int fd = tcp(SOCK_NONBLOCK);
        FAILS(connect(fd, ADDR(a)), EINPROGRESS);
        if (how == 0) OK(shutdown(fd, SHUT_RDWR));
        else OK(connect(fd, &none, sizeof none));
        CHECK(polled(fd, POLLOUT, 0) == (POLLOUT | POLLHUP));
        CHECK(so_error(fd) == 0);
        v4 open = far(ECHO);
        FAILS(connect(fd, ADDR(open)), EINPROGRESS);
        CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
        // And a session that is over.
        OK(connect(fd, ADDR(open)));
        OK(connect(fd, &none, sizeof none));
        set_nonblocking(fd, 0);
        OK(connect(fd, ADDR(open)));
        peer_is(fd, open);
        echo(fd);
        close(fd);
    }
}

static void fast_open(void) {
    v4 a = far(ECHO);
    int fd = tcp(0);
    CHECK(sendto(fd, "hi", 2, MSG_FASTOPEN, ADDR(a)) == 2);
    char b[2];
    CHECK(recv(fd, b, 2, MSG_WAITALL) == 2 && memcmp(b, "hi", 2) == 0);
    peer_is(fd, a);
    echo(fd);
    close(fd);
    fd = tcp(SOCK_NONBLOCK);
    struct iovec v = {"hi", 2};
    struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &v, .msg_iovlen = 1};
    FAILS(sendmsg(fd, &m, MSG_FASTOPEN), EINPROGRESS);
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    echo(fd);
    close(fd);
    fd = tcp(0);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one);
    OK(connect(fd, ADDR(a)));
    echo(fd);
}

// Buffers whose size the compiler knows, as FORTIFY_SOURCE has them.
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

static void fortified(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    char b[4];
    FAILS(__read_chk(fd, b, 1, sizeof b), EAGAIN);
    FAILS(__recv_chk(fd, b, 1, sizeof b, 0), EAGAIN);
    FAILS(__recvfrom_chk(fd, b, 1, sizeof b, 0, NULL, NULL), EAGAIN);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    struct timespec t = {0, 10000000};
    CHECK(__ppoll_chk(&p, 1, &t, NULL, sizeof p) == 0);
    release();
    CHECK(__poll_chk(&p, 1, -1, sizeof p) == 1 && p.revents == POLLOUT);
    CHECK(send(fd, "abc", 3, 0) == 3);
    CHECK(polled(fd, POLLIN, -1) == POLLIN);
    CHECK(__read_chk(fd, b, 1, sizeof b) == 1 && __recv_chk(fd, b, 1, sizeof b, 0) == 1);
    CHECK(__recvfrom_chk(fd, b, 1, sizeof b, 0, NULL, NULL) == 1 && b[0] == 'c');
    echo(fd);
}

RULES({
    RULE(blocking), RULE(pending), RULE(exact), RULE(refusals), RULE(refused_later), RULE(selects),
    RULE(selects_many), RULE(untouched), RULE(given_up), RULE(fast_open), RULE(fortified),
})
