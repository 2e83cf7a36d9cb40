// A descriptor that one thread takes away while another waits on it for its session: no connection is made past the gateway,
// and none on the socket or file that has the descriptor's number afterwards. One function for each rule.
#include "check.h"
#include <dlfcn.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
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
    int on = 1;
    listener = tcp(SOCK_NONBLOCK);
    OK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(bind(listener, ADDR(a)));
    OK(listen(listener, 8));
    return a;
}

// Connections are accepted in the order in which they came, so one that is made past the shim now is the first there is.
static void nobody_came(void) {
    v4 to, own, from;
    socklen_t len = sizeof to;
    int fd = tcp(0);
    OK(getsockname(listener, (struct sockaddr *)&to, &len));
    OK(syscall(SYS_connect, fd, ADDR(to)));
    OK(getsockname(fd, (struct sockaddr *)&own, &len));
    CHECK(polled(listener, POLLIN, -1) == POLLIN);
    int got = accept(listener, (struct sockaddr *)&from, &len);
    CHECK(got >= 0);
    CHECK(from.sin_port == own.sin_port && from.sin_addr.s_addr == own.sin_addr.s_addr);
    close(got);
    close(fd);
}

static void is_unconnected(int fd) {
    v4 got;
    socklen_t len = sizeof got;
    FAILS(getpeername(fd, (struct sockaddr *)&got, &len), ENOTCONN);
}

// A thread inside a call that waits for the session of `fd`.
struct waiter {
    pthread_t thread;
    pid_t tid;
    int fd;
    v4 to;
    int result, error;
};

static void runs(struct waiter *w) { __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE); }

// Returns once the thread is inside the system call in which the shim waits (proc_pid_syscall(5)).
static void until_it_waits(struct waiter *w) {
    pid_t tid;
    while ((tid = __atomic_load_n(&w->tid, __ATOMIC_ACQUIRE)) == 0) sched_yield();
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    do {
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        ssize_t n = read(fd, line, sizeof line - 1);
        CHECK(n > 0);
        line[n] = 0;
        close(fd);
        sched_yield();
    } while (strncmp(line, "running", 7) == 0 || atoi(line) != SYS_ppoll);
}

static void *connects(void *at) {
    struct waiter *w = at;
    runs(w);
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
    until_it_waits(&w);
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

static void *takes_a_table_of_its_own(void *at) {
    struct waiter *w = at;
    OK(close_range(w->fd, w->fd, CLOSE_RANGE_UNSHARE));
    FAILS(fcntl(w->fd, F_GETFD), EBADF);
    return NULL;
}

// A thread that takes a table of descriptors of its own closes nothing for the others.
static void closed_in_a_table_of_its_own(void) {
    struct waiter *w = start(HELD_HERE);
    pthread_t other;
    OK(pthread_create(&other, NULL, takes_a_table_of_its_own, w));
    OK(pthread_join(other, NULL));
    release();
    OK(pthread_join(w->thread, NULL));
    errno = w->error;
    CHECK(w->result == 0);
    peer_is(w->fd, w->to);
    echo(w->fd);
    nobody_came();
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
    runs(w);
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
    until_it_waits(&w);
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
        nobody_came();
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

// A gateway of the other family goes away while several threads wait for it, and what another thread asks about their sockets
// begins their connections to the destination. They are there for those who wait, too. First run with the rule's name alone, this
// makes the gateway and begins anew with it.
static void fell_back_elsewhere(void) {
    enum { WAITERS = 8 };
    const char *given = getenv("LISTENER");
    if (given == NULL) {
        v6 own = at6("::1", 0);
        socklen_t len = sizeof own;
        int gateway = socket(AF_INET6, SOCK_STREAM, 0), first = socket(AF_INET6, SOCK_STREAM, 0);
        OK(bind(gateway, ADDR(own)));
        OK(listen(gateway, 0));
        OK(getsockname(gateway, (struct sockaddr *)&own, &len));
        // It has room for one connection that nobody accepts: those that come later hear nothing.
        OK(connect(first, ADDR(own)));
        char text[32];
        snprintf(text, sizeof text, "::1/%d", ntohs(own.sin6_port));
        setenv("PHOEBUS_GW", text, 1);
        snprintf(text, sizeof text, "%d", gateway);
        setenv("LISTENER", text, 1);
        char *arguments[] = {"races", "fell_back_elsewhere", NULL};
        execv("/proc/self/exe", arguments);
        CHECK(!"execv");
    }
    static struct waiter w[WAITERS];
    v4 a = listen_at(HELD_HERE + 100);
    for (int i = 0; i < WAITERS; i++) {
        w[i] = (struct waiter){.fd = tcp(0), .to = a};
        OK(pthread_create(&w[i].thread, NULL, connects, &w[i]));
        until_it_waits(&w[i]);
        CHECK(tcp_state(w[i].fd) == TCP_SYN_SENT);
    }
    OK(close(atoi(given)));
    // The kernel hears of it when it asks the gateway again, after a second.
    struct pollfd asked[WAITERS];
    for (int there = 0; there < WAITERS;) {
        for (int i = 0; i < WAITERS; i++) asked[i] = (struct pollfd){.fd = w[i].fd, .events = POLLOUT};
        CHECK(poll(asked, WAITERS, 0) >= 0);
        int one = accept(listener, NULL, NULL);
        if (one >= 0) there++;
    }
    for (int i = 0; i < WAITERS; i++) {
        OK(pthread_join(w[i].thread, NULL));
        errno = w[i].error;
        CHECK(w[i].result == 0);
        peer_is(w[i].fd, a);
    }
}

static void *sends(void *at) {
    struct waiter *w = at;
    sem_t *connected = dlsym(RTLD_DEFAULT, "gateway_connected"), *go_on = dlsym(RTLD_DEFAULT, "connect_goes_on");
    CHECK(connected && go_on);
    OK(sem_wait(connected));
    w->result = send(w->fd, "x", 1, MSG_DONTWAIT);
    w->error = errno;
    OK(sem_post(go_on));
    return NULL;
}

// What another thread sends while a connect begins does not get into the handshake. The connection to the gateway is there before
// the call that makes it is over (dialled.c), and the other thread sends just then, or waits until it may.
static void sent_while_it_begins(void) {
    v4 a = listen_at(HELD_HERE + 100);
    static struct waiter w;
    w = (struct waiter){.fd = tcp(0), .to = a};
    OK(pthread_create(&w.thread, NULL, sends, &w));
    OK(connect(w.fd, ADDR(a)));
    OK(pthread_join(w.thread, NULL));
    peer_is(w.fd, a);
    errno = w.error;
    CHECK(w.result == 1 || errno == EAGAIN);
    char b[1];
    if (w.result == 1) CHECK(recv(w.fd, b, 1, 0) == 1 && b[0] == 'x');
    echo(w.fd);
    nobody_came();
}

// The gateway's name is being looked up (slow.c); meanwhile the number goes to another socket.
static void closed_while_looking_up(void) {
    static struct waiter w;
    w = (struct waiter){.fd = tcp(0), .to = listen_at(HELD_HERE + 100)};
    sem_t *begun = dlsym(RTLD_DEFAULT, "lookup_begun"), *go_on = dlsym(RTLD_DEFAULT, "lookup_goes_on");
    CHECK(begun && go_on);
    OK(pthread_create(&w.thread, NULL, connects, &w));
    OK(sem_wait(begun));
    OK(close(w.fd));
    int other = tcp(0);
    CHECK(other == w.fd);
    OK(sem_post(go_on));
    GIVEN_UP(&w);
    is_unconnected(other);
    connects_again(other);
}

// A thread connects to a number again and again while another opens and closes sockets. No socket that gets the number is
// connected past the gateway.
static int given, over;
static v4 wanted;
static void *connects_for_ever(void *at) {
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) connect(given, ADDR(wanted));
    return at;
}

static void number_given_on(void) {
    wanted = listen_at(HELD_HERE + 100);
    given = tcp(0);
    OK(close(given));
    pthread_t thread;
    OK(pthread_create(&thread, NULL, connects_for_ever, NULL));
    for (int i = 0; i < 3000; i++) {
        // The shim itself has the number for moments, for files that it reads.
        int fd = tcp(0);
        for (int j = 0; j < i % 50; j++) sched_yield();
        OK(close(fd));
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    OK(pthread_join(thread, NULL));
    nobody_came();
}

static sigjmp_buf out;
static void jump(int signal) { (void)signal, siglongjmp(out, 1); }

static void *interrupts(void *main_thread) {
    sem_t *begun = dlsym(RTLD_DEFAULT, "lookup_begun"), *go_on = dlsym(RTLD_DEFAULT, "lookup_goes_on");
    CHECK(begun && go_on);
    OK(sem_wait(begun));
    OK(pthread_kill(*(pthread_t *)main_thread, SIGALRM));
    OK(sem_post(go_on));
    return NULL;
}

// A signal handler jumps while the gateway's name is looked up (slow.c), as wget's does at its time-out. What the thread connects
// afterwards goes through the gateway.
static void jumped_out_of_lookup(void) {
    static v4 a;
    a = listen_at(HELD_HERE + 100);
    OK(signal(SIGALRM, jump) == SIG_ERR);
    pthread_t self = pthread_self(), thread;
    OK(pthread_create(&thread, NULL, interrupts, &self));
    if (sigsetjmp(out, 1) == 0) {
        connect(tcp(0), ADDR(a));
        CHECK(!"connect returned");
    }
    OK(pthread_join(thread, NULL));
    int fd = tcp(0);
    OK(connect(fd, ADDR(a)));
    peer_is(fd, a);
    echo(fd);
    nobody_came();
}

// A socket of IPv4 cannot be replaced by one of IPv6, for want of a descriptor. That says nothing about the gateway, and so the
// fallback does not go past it.
static void without_descriptors(void) {
    v4 a = listen_at(HELD_HERE + 100);
    int fd = tcp(0), last = 0;
    struct rlimit few = {64, 64};
    OK(setrlimit(RLIMIT_NOFILE, &few));
    for (int other; (other = dup(fd)) >= 0;) last = other;
    CHECK(errno == EMFILE);
    FAILS(connect(fd, ADDR(a)), EMFILE);
    for (int i = 0; i < 4; i++) close(last - i);
    is_unconnected(fd);
    nobody_came();
}

// The kernel does not tell a socket's state (stateless.c): it is not connected directly.
static void without_states(void) {
    v4 a = listen_at(HELD_HERE + 100);
    FAILS(connect(tcp(0), ADDR(a)), EOPNOTSUPP);
    nobody_came();
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
        until_it_waits(&w);
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    connects_again(tcp(0));
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
    RULE(closed_in_a_table_of_its_own), RULE(number_given_on), RULE(jumped_out_of_lookup), RULE(without_states), RULE(without_descriptors),
    RULE(fell_back_elsewhere), RULE(sent_while_it_begins),
    RULE(read_elsewhere), RULE(error_taken), RULE(closed_while_looking_up), RULE(dissolved_elsewhere),
    RULE(fast_open_of_several), RULE(executed), RULE(rings),
})
