// What a program sees of a session that is opened while signals come, time-outs end, and threads are cancelled: one function for each rule.
#include "check.h"

// Signals that come while a handshake is waited for, and the masks of ppoll and pselect.
static volatile sig_atomic_t caught;
static void catch(int signal) { caught = signal; }
static void catch_and_release(int signal) { caught = signal; release(); }

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    OK(sigaction(signal, &action, NULL));
}

static void after(int milliseconds) {
    struct itimerval t = {.it_value = {0, milliseconds * 1000}};
    OK(setitimer(ITIMER_REAL, &t, NULL));
}

// Again and again: a signal that comes before the call it is to interrupt is followed by one that finds it.
static void every(int milliseconds) {
    struct timeval t = {0, milliseconds * 1000};
    OK(setitimer(ITIMER_REAL, &(struct itimerval){t, t}, NULL));
}

static void no_more(void) { OK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL)); }

static void interrupted(void) {
    handle(SIGALRM, catch, 0);
    int fd = tcp(0);
    v4 a = far(HELD);
    every(100);
    FAILS(connect(fd, ADDR(a)), EINTR);
    no_more();
    CHECK(caught == SIGALRM);
    // The connect goes on.
    set_nonblocking(fd, 1);
    FAILS(connect(fd, ADDR(a)), EALREADY);
    set_nonblocking(fd, 0);
    release();
    OK(connect(fd, ADDR(a)));
    echo(fd);
    close(fd);

    // A handler that asks for it has the call restarted, whether or not another signal's handler does.
    handle(SIGALRM, catch_and_release, SA_RESTART);
    for (int another = 0; another < 2; another++) {
        handle(SIGUSR1, another ? catch : SIG_DFL, 0);
        fd = tcp(0);
        after(100);
        OK(connect(fd, ADDR(a)));
        echo(fd);
        close(fd);
    }

    // poll never is.
    fd = tcp(SOCK_NONBLOCK);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    handle(SIGALRM, catch, SA_RESTART);
    every(100);
    FAILS(poll(&p, 1, -1), EINTR);
    no_more();
    // A signal that is blocked but for the call.
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    OK(sigprocmask(SIG_BLOCK, &blocked, NULL));
    CHECK(raise(SIGALRM) == 0);
    caught = 0;
    struct timespec t = {5, 0};
    FAILS(ppoll(&p, 1, &t, &none), EINTR);
    CHECK(caught == SIGALRM);
    release();
    CHECK(ppoll(&p, 1, NULL, &none) == 1 && p.revents == POLLOUT);
    echo(fd);
}

static void timed(void) {
    int fd = tcp(0);
    struct timeval t = {0, 100000};
    OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    FAILS(connect(fd, ADDR(a)), EALREADY);
    FAILS(send(fd, "x", 1, 0), EAGAIN);
    t = (struct timeval){0, 0};
    OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    OK(connect(fd, ADDR(a)));
    echo(fd);
}

// A blocking call on a descriptor whose connect did not wait waits for the session.
static void blocking_io(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    set_nonblocking(fd, 0);
    FAILS(send(fd, "x", 1, MSG_DONTWAIT), EAGAIN);
    struct timeval t = {0, 50000};
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    char b[1];
    FAILS(recv(fd, b, 1, 0), EAGAIN);
    t.tv_usec = 0;
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    handle(SIGALRM, catch_and_release, SA_RESTART);
    after(100);
    CHECK(write(fd, "h", 1) == 1);
    CHECK(read(fd, b, 1) == 1 && *b == 'h');
    echo(fd);
}

static sigjmp_buf out;
static void jump(int signal) { siglongjmp(out, signal); }

// Programs without poll leave a connect that takes too long by a jump, over and over, at any point of it.
static void jumps(void) {
    handle(SIGALRM, jump, SA_NODEFER);
    v4 a = far(HELD);
    for (volatile int i = 0; i < 200; i++) {
        volatile int fd = tcp(0);
        if (sigsetjmp(out, 1) == 0) {
            struct itimerval t = {.it_value = {0, 1 + i * 37 % 3000}};
            OK(setitimer(ITIMER_REAL, &t, NULL));
            connect(fd, ADDR(a));
            CHECK(!"connect returned");
        }
        // What was left behind is a connect under way, or none.
        int state = polled(fd, POLLOUT, 0);
        CHECK(state == 0 || state == (POLLOUT | POLLHUP));
        OK(close(fd));
    }
    int fd = tcp(0);
    a = far(ECHO);
    OK(connect(fd, ADDR(a)));
    echo(fd);
}

static int cancelled_fd;
static void *wait_connect(void *unused) {
    v4 a = far(HELD);
    connect(cancelled_fd, ADDR(a));
    return unused;
}
static void *wait_read(void *unused) {
    char b[1];
    CHECK(read(cancelled_fd, b, 1) == 1);
    return unused;
}
static void *wait_poll(void *unused) {
    polled(cancelled_fd, POLLOUT, -1);
    return unused;
}
static volatile int guarded, cleaned;
static void clean(void *unused) { (void)unused, cleaned++; }
static void *with_cleanup(void *work) {
    pthread_cleanup_push(clean, NULL);
    guarded++;
    ((void *(*)(void *))work)(NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(void) {
    void *(*const works[])(void *) = {wait_connect, wait_poll, wait_read};
    v4 a = far(HELD);
    for (int i = 0; i < 3; i++) {
        cancelled_fd = tcp(i == 1 ? SOCK_NONBLOCK : 0);
        if (i == 1) FAILS(connect(cancelled_fd, ADDR(a)), EINPROGRESS);
        if (i == 2) {
            v4 open = far(ECHO);
            OK(connect(cancelled_fd, ADDR(open)));
        }
        pthread_t thread;
        OK(pthread_create(&thread, NULL, with_cleanup, works[i]));
        while (guarded == i) usleep(1000);
        // The other two are cancelled as well if they do not wait yet, but a connect has to be under way to go on.
        while (i == 0 && tcp_state(cancelled_fd) != TCP_SYN_SENT) usleep(1000);
        usleep(50000);
        OK(pthread_cancel(thread));
        void *result;
        OK(pthread_join(thread, &result));
        CHECK(result == PTHREAD_CANCELED && cleaned == i + 1);
        if (i < 2) {
            release();
            CHECK(polled(cancelled_fd, POLLOUT, -1) == POLLOUT);
        }
        echo(cancelled_fd);
        close(cancelled_fd);
    }
}

RULES({
    RULE(interrupted), RULE(timed), RULE(blocking_io), RULE(jumps), RULE(cancelled),
})
