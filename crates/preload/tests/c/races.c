// A descriptor that one thread takes away while another waits on it for its session: no connection is made past the gateway,
// and none on the socket or file that has the descriptor's number afterwards. One function for each rule.
#include "check.h"
#include <sys/syscall.h>

// Sees every connection that is made past the gateway.
static int listener;
static v4 here(int port) {
    char ip[32];
    pid_t pid = getpid();
    snprintf(ip, sizeof ip, "127.%d.%d.77", 100 + (pid >> 8) % 64, pid & 255);
    return at4(ip, port);
}

static v4 listen_at(int port) {
    v4 a = here(port);
    listener = tcp(SOCK_NONBLOCK);
    OK(bind(listener, ADDR(a)));
    OK(listen(listener, 8));
    return a;
}

static void nobody_came(void) {
    usleep(20000);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
}

static void is_unconnected(int fd) {
    v4 got;
    socklen_t len = sizeof got;
    FAILS(getpeername(fd, (struct sockaddr *)&got, &len), ENOTCONN);
}

// A thread inside a call that waits for the session of `fd`.
struct waiter {
    pthread_t thread;
    int fd;
    v4 to;
    int result, error;
};

static void *connects(void *at) {
    struct waiter *w = at;
    w->result = connect(w->fd, ADDR(w->to));
    w->error = errno;
    return NULL;
}

// The call has failed as one does whose connection was given up.
#define GIVEN_UP(w) do { \
    OK(pthread_join((w)->thread, NULL)); \
    errno = (w)->error; \
    CHECK((w)->result == -1); \
    CHECK((w)->error == ECONNABORTED); \
    nobody_came(); } while (0)

static struct waiter *start(int port) {
    static struct waiter w;
    w = (struct waiter){.fd = tcp(0), .to = listen_at(port)};
    OK(pthread_create(&w.thread, NULL, connects, &w));
    while (tcp_state(w.fd) != TCP_SYN_SENT) usleep(1000);
    usleep(20000);
    return &w;
}

// A socket that was given up can be connected again.
static void connects_again(int fd) {
    v4 a = far(ECHO);
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    echo(fd);
}

static void shut_down(void) {
    struct waiter *w = start(HELD_HERE);
    OK(shutdown(w->fd, SHUT_RDWR));
    GIVEN_UP(w);
    is_unconnected(w->fd);
    connects_again(w->fd);
}

static void dissolved(void) {
    struct waiter *w = start(HELD_HERE);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    OK(connect(w->fd, &none, sizeof none));
    GIVEN_UP(w);
    is_unconnected(w->fd);
    connects_again(w->fd);
}

static void closed(void) {
    struct waiter *w = start(HELD_HERE);
    OK(close(w->fd));
    int other = tcp(0);
    CHECK(other == w->fd);
    GIVEN_UP(w);
    is_unconnected(other);
    connects_again(other);
}

static void replaced(void) {
    for (int how = 0; how < 2; how++) {
        struct waiter *w = start(HELD_HERE);
        int other = tcp(SOCK_CLOEXEC);
        CHECK((how ? dup2(other, w->fd) : dup3(other, w->fd, O_CLOEXEC)) == w->fd);
        GIVEN_UP(w);
        is_unconnected(other);
        connects_again(other);
        close(listener);
    }
}

static void closed_in_a_range(void) {
    struct waiter *w = start(HELD_HERE);
    OK(close_range(w->fd, w->fd, 0));
    int other = tcp(0);
    CHECK(other == w->fd);
    GIVEN_UP(w);
    is_unconnected(other);
    connects_again(other);
}

// Another descriptor of a socket keeps its session.
static void closed_of_two(void) {
    struct waiter *w = start(HELD_HERE);
    int other = dup(w->fd);
    OK(close(w->fd));
    release();
    OK(pthread_join(w->thread, NULL));
    set_nonblocking(other, 1);
    CHECK(polled(other, POLLOUT, -1) == POLLOUT);
    CHECK(so_error(other) == 0);
    peer_is(other, w->to);
    echo(other);
    nobody_came();
}

static void *reads(void *at) {
    struct waiter *w = at;
    char b[1];
    w->result = read(w->fd, b, 1);
    w->error = errno;
    return NULL;
}

// What the number is used for afterwards is not read.
static void read_elsewhere(void) {
    static struct waiter w;
    w.to = listen_at(HELD_HERE);
    w.fd = tcp(SOCK_NONBLOCK);
    int pipes[2];
    OK(pipe(pipes));
    CHECK(write(pipes[1], "x", 1) == 1);
    FAILS(connect(w.fd, ADDR(w.to)), EINPROGRESS);
    set_nonblocking(w.fd, 0);
    OK(pthread_create(&w.thread, NULL, reads, &w));
    usleep(50000);
    CHECK(dup2(pipes[0], w.fd) == w.fd);
    OK(pthread_join(w.thread, NULL));
    CHECK(w.result == -1 && w.error == EBADF);
    char b[1];
    CHECK(read(w.fd, b, 1) == 1 && b[0] == 'x');
    nobody_came();
}

// Whoever takes the error, a connect that failed says so.
static void error_taken(void) {
    for (int i = 0; i < 40; i++) {
        struct waiter *w = start(HELD_REFUSED_HERE);
        release();
        int taken = 0;
        for (int j = 0; j < 2000 && taken == 0 && tcp_state(w->fd) == TCP_SYN_SENT; j++) taken = so_error(w->fd);
        OK(pthread_join(w->thread, NULL));
        CHECK(w->result == -1);
        CHECK(w->error == ECONNREFUSED || w->error == ECONNABORTED);
        is_unconnected(w->fd);
        FAILS(accept(listener, NULL, NULL), EAGAIN);
        close(w->fd);
        close(listener);
    }
    // As a thread does that only asks, and is always first.
    struct waiter *w = start(HELD_REFUSED_HERE);
    release();
    while (so_error(w->fd) == 0 && tcp_state(w->fd) == TCP_SYN_SENT) {}
    OK(pthread_join(w->thread, NULL));
    CHECK(w->result == -1);
    nobody_came();
}

// The gateway's name takes long to be looked up (slow.c); meanwhile the number goes to another socket.
static void closed_while_looking_up(void) {
    static struct waiter w;
    w = (struct waiter){.fd = tcp(0), .to = listen_at(HELD_HERE + 100)};
    OK(pthread_create(&w.thread, NULL, connects, &w));
    usleep(150000);
    OK(close(w.fd));
    int other = tcp(0);
    CHECK(other == w.fd);
    GIVEN_UP(&w);
    is_unconnected(other);
    connects_again(other);
}

// A session that another process has dissolved is opened anew, and not as a direct connection.
static void dissolved_elsewhere(void) {
    v4 a = listen_at(HELD_HERE + 100);
    int fd = tcp(0);
    OK(connect(fd, ADDR(a)));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        OK(connect(fd, &none, sizeof none));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(connect(fd, ADDR(a)));
    echo(fd);
    nobody_came();
}

// Every call that connects and sends.
static void fast_open_of_several(void) {
    v4 a = listen_at(HELD_HERE + 100);
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int fd = tcp(nonblocking ? SOCK_NONBLOCK : 0);
        struct iovec parts[2] = {{"he", 2}, {"llo", 3}};
        struct mmsghdr m[2];
        memset(m, 0, sizeof m);
        for (int i = 0; i < 2; i++) {
            m[i].msg_hdr = (struct msghdr){.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &parts[i], .msg_iovlen = 1};
        }
        if (nonblocking) {
            FAILS(sendmmsg(fd, m, 2, MSG_FASTOPEN), EINPROGRESS);
            CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
        } else {
            CHECK(sendmmsg(fd, m, 2, MSG_FASTOPEN) >= 1 && m[0].msg_len == 2);
            char b[2];
            CHECK(recv(fd, b, 2, MSG_WAITALL) == 2 && memcmp(b, "he", 2) == 0);
        }
        peer_is(fd, a);
        close(fd);
    }
    nobody_came();
}

// A program that is replaced while one of its threads connects.
static void executed(void) {
    v4 a = listen_at(HELD_HERE);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static struct waiter w;
        w = (struct waiter){.fd = tcp(SOCK_CLOEXEC), .to = a};
        OK(pthread_create(&w.thread, NULL, connects, &w));
        while (tcp_state(w.fd) != TCP_SYN_SENT) usleep(1000);
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    nobody_came();
}

// Without rings a program does what it did before there were any.
static void rings(void) {
    char parameters[256] = {0};
    FAILS(syscall(SYS_io_uring_setup, 8, parameters), ENOSYS);
    FAILS(syscall(SYS_io_uring_setup, 8, parameters), ENOSYS);
    CHECK(syscall(SYS_getpid) == getpid());
    FAILS(syscall(SYS_close, -1), EBADF);
    v4 a = far(ECHO);
    int fd = tcp(0);
    OK(connect(fd, ADDR(a)));
    echo(fd);
}

RULES({
    RULE(shut_down), RULE(dissolved), RULE(closed), RULE(replaced), RULE(closed_in_a_range), RULE(closed_of_two),
    RULE(read_elsewhere), RULE(error_taken), RULE(closed_while_looking_up), RULE(dissolved_elsewhere),
    RULE(fast_open_of_several), RULE(executed), RULE(rings),
})
