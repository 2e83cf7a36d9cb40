// Sockets that several descriptors, processes or threads have while a session is opened: one function for each rule.
#include "check.h"

static void duplicated(void) {
    int fd = tcp(SOCK_NONBLOCK);
    int early = dup(fd), other = open("/dev/null", O_RDONLY);
    CHECK(early >= 0 && other >= 0);
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    int late = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(late >= 100);
    OK(close(fd));
    CHECK(polled(early, POLLIN | POLLOUT, 50) == 0);
    char b[1];
    FAILS(recv(late, b, 1, 0), EAGAIN);
    release();
    CHECK(polled(late, POLLOUT, -1) == POLLOUT);
    CHECK(so_error(early) == 0);
    peer_is(early, a);
    CHECK(dup2(late, other) == other);
    close(early);
    close(late);
    peer_is(other, a);
    echo(other);
    close(other);
    // A number that is used again is another socket.
    fd = tcp(SOCK_NONBLOCK);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    close(fd);
    int pipes[2];
    OK(pipe(pipes));
    CHECK(pipes[0] == fd || pipes[1] == fd);
    CHECK(write(pipes[1], "x", 1) == 1 && polled(pipes[0], POLLIN, -1) == POLLIN && read(pipes[0], b, 1) == 1);
}

static void forked(void) {
    v4 a = far(HELD);
    // The child finishes what the parent began.
    int fd = tcp(SOCK_NONBLOCK);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(polled(fd, POLLIN | POLLOUT, 50) == 0);
        release();
        CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
        CHECK(so_error(fd) == 0);
        peer_is(fd, a);
        char b[2];
        set_nonblocking(fd, 0);
        CHECK(send(fd, "ab", 2, 0) == 2 && recv(fd, b, 2, MSG_WAITALL) == 2 && b[0] == 'a');
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    peer_is(fd, a);
    echo(fd);
    close(fd);

    // The parent finishes, whatever the child closes.
    fd = tcp(SOCK_NONBLOCK);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    child = fork();
    if (child == 0) {
        close(fd);
        // And connects by itself.
        int own = tcp(0);
        v4 open = far(ECHO);
        OK(connect(own, ADDR(open)));
        peer_is(own, open);
        echo(own);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(polled(fd, POLLOUT, 0) == 0);
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    echo(fd);
    close(fd);

    // Both at once.
    fd = tcp(SOCK_NONBLOCK);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    child = fork();
    if (child == 0) {
        CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
        CHECK(so_error(fd) == 0);
        _exit(0);
    }
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    echo(fd);
}

static void vforked(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 42};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fd);
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    release();
    CHECK(epoll_wait(set, &e, 1, -1) == 1 && e.data.u64 == 42 && e.events == EPOLLOUT);
    CHECK(so_error(fd) == 0);
    echo(fd);
}

static void *session(void *seed) {
    unsigned state = (unsigned)(long)seed;
    for (int i = 0; i < 40; i++) {
        int refused = rand_r(&state) % 3 == 0, nonblocking = rand_r(&state) % 2;
        int fd = tcp(nonblocking ? SOCK_NONBLOCK : 0);
        v4 a = far(refused ? REFUSED : ECHO);
        int result = connect(fd, ADDR(a)) ? errno : 0;
        if (nonblocking) {
            CHECK(result == EINPROGRESS);
            CHECK(polled(fd, POLLOUT, -1) & POLLOUT);
            result = so_error(fd);
        }
        CHECK(result == (refused ? ECONNREFUSED : 0));
        if (!refused) {
            peer_is(fd, a);
            echo(fd);
        }
        OK(close(fd));
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[16];
    for (long i = 0; i < 16; i++) OK(pthread_create(&thread[i], NULL, session, (void *)(i + 1)));
    for (int i = 0; i < 16; i++) OK(pthread_join(thread[i], NULL));
}

// One socket, many threads that ask about it.
static int shared_fd;
static void *ask(void *unused) {
    while (!(polled(shared_fd, POLLOUT, 1) & POLLOUT)) {
        CHECK(so_error(shared_fd) == 0);
        char b[1];
        FAILS(recv(shared_fd, b, 1, MSG_DONTWAIT), EAGAIN);
    }
    return unused;
}

static void shared(void) {
    for (int i = 0; i < 20; i++) {
        shared_fd = tcp(SOCK_NONBLOCK);
        v4 a = far(HELD);
        FAILS(connect(shared_fd, ADDR(a)), EINPROGRESS);
        pthread_t thread[8];
        for (int j = 0; j < 8; j++) OK(pthread_create(&thread[j], NULL, ask, NULL));
        usleep(2000);
        release();
        for (int j = 0; j < 8; j++) OK(pthread_join(thread[j], NULL));
        peer_is(shared_fd, a);
        echo(shared_fd);
        close(shared_fd);
    }
}

RULES({
    RULE(duplicated), RULE(forked), RULE(vforked), RULE(threads), RULE(shared),
})
