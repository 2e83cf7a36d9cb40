// epoll while a session is opened: what is hidden, what is restored, what a failure looks like.
#include "check.h"

static int set;

static void control(int operation, int fd, unsigned events, unsigned long data) {
    struct epoll_event e = {.events = events, .data.u64 = data};
    OK(epoll_ctl(set, operation, fd, &e));
}

// What epoll_wait says: nothing, or one event with this data, whose events are returned.
static unsigned waited(int timeout, unsigned long data) {
    struct epoll_event e[8];
    int n = epoll_wait(set, e, 8, timeout);
    CHECK(n >= 0 && n <= 1);
    CHECK(n == 0 || e[0].data.u64 == data);
    return n ? e[0].events : 0;
}

static int begun(int port, int added_before, unsigned events, unsigned long data) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(port);
    if (added_before) control(EPOLL_CTL_ADD, fd, events, data);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    if (!added_before) control(EPOLL_CTL_ADD, fd, events, data);
    return fd;
}

static void level(void) {
    for (int before = 0; before < 2; before++) {
        int fd = begun(HELD, before, EPOLLIN | EPOLLOUT | EPOLLRDHUP, -1UL);
        CHECK(waited(50, 0) == 0);
        // Both sides of the kernel's own rules.
        struct epoll_event e = {.events = EPOLLIN};
        FAILS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), EEXIST);
        FAILS(epoll_ctl(set, EPOLL_CTL_MOD, tcp(0), &e), ENOENT);
        release();
        CHECK(waited(-1, -1UL) == EPOLLOUT);
        CHECK(waited(-1, -1UL) == EPOLLOUT);
        CHECK(so_error(fd) == 0);
        CHECK(send(fd, "x", 1, 0) == 1);
        while (waited(-1, -1UL) != (EPOLLIN | EPOLLOUT)) {}
        char b[1];
        CHECK(recv(fd, b, 1, 0) == 1);
        control(EPOLL_CTL_MOD, fd, EPOLLIN, 7);
        CHECK(waited(0, 0) == 0);
        echo(fd);
        CHECK(waited(-1, 7) & EPOLLIN);
        OK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        close(fd);
    }
}

static void edge(void) {
    for (int before = 0; before < 2; before++) {
        int fd = begun(HELD, before, EPOLLIN | EPOLLOUT | EPOLLET, 5);
        CHECK(waited(50, 0) == 0);
        release();
        CHECK(waited(-1, 5) == EPOLLOUT);
        CHECK(waited(20, 0) == 0);
        CHECK(send(fd, "x", 1, 0) == 1);
        CHECK(waited(-1, 5) == (EPOLLIN | EPOLLOUT));
        CHECK(waited(20, 0) == 0);
        char b[1];
        CHECK(recv(fd, b, 1, 0) == 1);
        echo(fd);
        close(fd);
        CHECK(waited(0, 0) == 0);
    }
    // Bytes that come right behind OPENED are an edge of the program's own.
    int fd = begun(TRICKLE, 0, EPOLLIN | EPOLLET, 6);
    CHECK(waited(-1, 6) == EPOLLIN);
    char b[8];
    CHECK(recv(fd, b, 8, 0) == 5);
    close(fd);
}

static void once(void) {
    for (int before = 0; before < 2; before++) {
        int fd = begun(HELD, before, EPOLLOUT | EPOLLONESHOT, 5);
        // Before it is connected a socket is hung up: that one shot may have been fired before the connect.
        if (before) control(EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT, 8);
        CHECK(waited(50, 0) == 0);
        release();
        CHECK(waited(-1, before ? 8 : 5) == EPOLLOUT);
        CHECK(waited(20, 0) == 0);
        control(EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT, 9);
        CHECK(waited(-1, 9) == EPOLLOUT);
        CHECK(waited(20, 0) == 0);
        close(fd);
    }
}

static void exclusive(void) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(HELD);
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE, 5);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(waited(50, 0) == 0);
    release();
    CHECK(waited(-1, 5) == EPOLLOUT);
    // Still exclusive, and so not to be changed.
    struct epoll_event e = {.events = EPOLLIN};
    FAILS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e), EINVAL);
    OK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    close(fd);
}

static void failure(void) {
    static const unsigned all = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP;
    for (int how = 0; how < 4; how++) {
        unsigned manner = how & 1 ? EPOLLET : 0;
        int fd = begun(HELD_REFUSED, how & 2, EPOLLIN | EPOLLOUT | manner, 5);
        CHECK(waited(20, 0) == 0);
        release();
        CHECK(waited(-1, 5) == all);
        if (manner) CHECK(waited(20, 0) == 0);
        else CHECK(waited(-1, 5) == all);
        CHECK(so_error(fd) == ECONNREFUSED && so_error(fd) == 0);
        if (!manner) CHECK(waited(-1, 5) == (EPOLLOUT | EPOLLHUP));
        // The same socket once more, in the same set.
        v4 a = far(HELD);
        FAILS(connect(fd, ADDR(a)), EINPROGRESS);
        CHECK(waited(50, 0) == 0);
        release();
        CHECK(waited(-1, 5) == EPOLLOUT);
        if (manner) CHECK(waited(20, 0) == 0);
        echo(fd);
        close(fd);
    }
    // Only errors are of interest.
    int fd = begun(HELD_REFUSED, 0, 0, 5);
    release();
    CHECK(waited(-1, 5) == (EPOLLERR | EPOLLHUP));
    // Changed and taken out while failed.
    control(EPOLL_CTL_MOD, fd, EPOLLOUT, 6);
    CHECK(waited(-1, 6) == (EPOLLOUT | EPOLLERR | EPOLLHUP));
    OK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    CHECK(waited(20, 0) == 0);
    CHECK(so_error(fd) == ECONNREFUSED);
    // And to a direct destination after a failure.
    control(EPOLL_CTL_ADD, fd, EPOLLOUT, 7);
    v4 a = at4("127.0.0.1", atoi(getenv("DIRECT")));
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    while (waited(-1, 7) != EPOLLOUT) {}
    echo(fd);
    close(fd);
}

static void changed(void) {
    // Changed, taken out and put in again while pending.
    int fd = begun(HELD, 0, EPOLLIN, 1);
    control(EPOLL_CTL_MOD, fd, EPOLLOUT, 2);
    OK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    struct epoll_event e = {.events = EPOLLIN};
    FAILS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e), ENOENT);
    CHECK(waited(20, 0) == 0);
    control(EPOLL_CTL_ADD, fd, EPOLLOUT, 3);
    CHECK(waited(20, 0) == 0);
    release();
    CHECK(waited(-1, 3) == EPOLLOUT);
    echo(fd);
    close(fd);
    // In several sets at once, and in one that is inside another.
    int second = epoll_create1(0), outer = epoll_create1(0), first = set;
    fd = begun(HELD, 0, EPOLLOUT, 4);
    e = (struct epoll_event){.events = EPOLLOUT | EPOLLET, .data.u64 = 44};
    OK(epoll_ctl(second, EPOLL_CTL_ADD, fd, &e));
    e = (struct epoll_event){.events = EPOLLIN, .data.u64 = 99};
    OK(epoll_ctl(outer, EPOLL_CTL_ADD, second, &e));
    CHECK(waited(20, 0) == 0);
    release();
    do {
        CHECK(epoll_wait(outer, &e, 1, -1) == 1 && e.data.u64 == 99);
    } while (epoll_wait(second, &e, 1, 0) == 0);
    CHECK(e.data.u64 == 44 && e.events == EPOLLOUT);
    CHECK(waited(-1, 4) == EPOLLOUT);
    echo(fd);
    close(fd);
    // By another descriptor of the set, its number taken by a different set.
    fd = begun(HELD, 0, EPOLLOUT, 6);
    int other = dup(set);
    close(set);
    CHECK((second = epoll_create1(0)) == first);
    release();
    set = other;
    CHECK(waited(-1, 6) == EPOLLOUT);
    echo(fd);
}

// Other events are seen meanwhile, and times are kept.
static void others(void) {
    int pipes[2];
    OK(pipe(pipes));
    control(EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1);
    begun(HELD, 0, EPOLLOUT, 2);
    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(waited(-1, 1) == EPOLLIN);
    char b[1];
    CHECK(read(pipes[0], b, 1) == 1);
    struct timespec t0, t1, limit = {0, 100000000};
    clock_gettime(CLOCK_MONOTONIC, &t0);
    struct epoll_event e;
    CHECK(epoll_pwait2(set, &e, 1, &limit, NULL) == 0);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    CHECK((t1.tv_sec - t0.tv_sec) * 1000000000L + t1.tv_nsec - t0.tv_nsec >= 100000000L);
    release();
    CHECK(epoll_pwait(set, &e, 1, -1, NULL) == 1 && e.data.u64 == 2 && e.events == EPOLLOUT);
    FAILS(epoll_wait(set, &e, 0, 0), EINVAL);
    FAILS(epoll_wait(pipes[0], &e, 1, 0), EINVAL);
}

static void *wait_for_it(void *events) {
    CHECK(waited(-1, 5) == *(unsigned *)events);
    return NULL;
}

// A thread that waits already when another begins to connect; and many threads that wait together.
static void threads(void) {
    for (int i = 0; i < 30; i++) {
        unsigned expected = i % 3 ? EPOLLOUT : EPOLLOUT | EPOLLERR | EPOLLHUP;
        pthread_t thread;
        OK(pthread_create(&thread, NULL, wait_for_it, &expected));
        if (i % 2) usleep(3000);
        int fd = begun(i % 3 ? HELD : HELD_REFUSED, 0, EPOLLOUT | EPOLLONESHOT, 5);
        if (i % 5) usleep(1000 * (i % 5));
        release();
        OK(pthread_join(thread, NULL));
        close(fd);
    }
}

static void *connect_one(void *data) {
    unsigned long i = (unsigned long)data;
    for (int round = 0; round < 30; round++) {
        int refused = (round + i) % 3 == 0;
        int fd = begun(refused ? REFUSED : ECHO, round % 2, EPOLLOUT | EPOLLET, i << 32 | round);
        CHECK(fd >= 0);
    }
    return NULL;
}

// One set, connects in many threads, one that waits; then all of it again with shared sockets closed at random.
static void many(void) {
    pthread_t thread[8];
    for (long i = 0; i < 8; i++) OK(pthread_create(&thread[i], NULL, connect_one, (void *)(i + 1)));
    int opened = 0, failed = 0;
    while (opened + failed < 240) {
        struct epoll_event e[4];
        int n = epoll_wait(set, e, 4, -1);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            CHECK(e[i].data.u64 >> 32 >= 1 && e[i].data.u64 >> 32 <= 8);
            // A socket that was added before its connect may have been seen hung up.
            if (e[i].events & EPOLLERR) failed++;
            else if (e[i].events == EPOLLOUT) opened++;
        }
    }
    CHECK(opened == 160 && failed == 80);
    for (int i = 0; i < 8; i++) OK(pthread_join(thread[i], NULL));
}

static int connected(v4 a) {
    int fd = tcp(SOCK_NONBLOCK);
    CHECK(connect(fd, ADDR(a)) == 0 || errno == EINPROGRESS);
    CHECK(polled(fd, POLLOUT, 10000) == POLLOUT);
    return fd;
}

// The program learns of a reset by another connect, after which the socket may connect again.
static void learn_of_reset(int fd, v4 a) {
    for (;;) {
        int result = connect(fd, ADDR(a));
        if (result == -1 && errno == ECONNRESET) return;
        // The first call tells that the connection was made. The kernel then wants AF_UNSPEC.
        CHECK(result == -1 && errno == EISCONN);
        usleep(1000);
    }
}

// A socket that was added while it was connected, and whose connection then ends, is one that was added before its connect.
static void ended(int through_gateway, int is_reset, unsigned manner) {
    int listener = tcp(0);
    v4 near = at4("127.0.0.1", 0);
    socklen_t len = sizeof near;
    OK(bind(listener, ADDR(near)));
    OK(listen(listener, 1));
    OK(getsockname(listener, (struct sockaddr *)&near, &len));
    int fd = connected(through_gateway ? far(is_reset ? RESET : ECHO) : near);
    int peer = through_gateway ? -1 : accept(listener, NULL, NULL);
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | manner, 5);
    CHECK(waited(-1, 5) == EPOLLOUT);
    if (is_reset) {
        struct linger at_once = {1, 0};
        if (through_gateway) CHECK(send(fd, "x", 1, 0) == 1);
        else OK(setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        if (!through_gateway) close(peer);
        while (tcp_state(fd) != TCP_CLOSE) usleep(1000);
        learn_of_reset(fd, far(HELD));
    } else {
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        OK(connect(fd, &none, sizeof none));
    }
    while (waited(0, 5) && manner) {}
    v4 a = far(HELD);
    for (int i = 0; i < 2; i++) {
        FAILS(connect(fd, ADDR(a)), EINPROGRESS);
        CHECK(waited(50, 0) == 0);
        release();
        CHECK(waited(-1, 5) == EPOLLOUT && so_error(fd) == 0);
        peer_is(fd, a);
        CHECK(send(fd, "x", 1, 0) == 1);
        char b[1];
        while (waited(-1, 5) != (EPOLLIN | EPOLLOUT)) {}
        CHECK(recv(fd, b, 1, 0) == 1);
        // Once more, after a session.
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        OK(connect(fd, &none, sizeof none));
        while (waited(0, 5) && manner) {}
    }
    a = far(REFUSED);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(waited(-1, 5) & EPOLLERR && so_error(fd) == ECONNREFUSED);
    close(fd);
    close(listener);
    CHECK(waited(0, 0) == 0);
}

static void again(void) {
    for (int i = 0; i < 8; i++) ended(i & 1, i & 2, i & 4 ? EPOLLET : 0);
}

// A set with two descriptors is one set: what was registered by one is changed by the other.
static void copied_set(void) {
    int copy = dup(set), fd = begun(HELD, 0, EPOLLIN, 1);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 9};
    OK(epoll_ctl(copy, EPOLL_CTL_MOD, fd, &e));
    control(EPOLL_CTL_MOD, fd, EPOLLOUT, 2);
    release();
    CHECK(waited(-1, 2) == EPOLLOUT);
    echo(fd);
    close(fd);
    v4 a = far(HELD);
    fd = connected(far(ECHO));
    control(EPOLL_CTL_ADD, fd, EPOLLIN, 3);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    OK(connect(fd, &none, sizeof none));
    e = (struct epoll_event){.events = EPOLLIN, .data.u64 = 9};
    OK(epoll_ctl(copy, EPOLL_CTL_MOD, fd, &e));
    control(EPOLL_CTL_MOD, fd, EPOLLOUT, 4);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(waited(50, 0) == 0);
    release();
    CHECK(waited(-1, 4) == EPOLLOUT);
    OK(epoll_ctl(copy, EPOLL_CTL_DEL, fd, NULL));
    echo(fd);
    close(fd);
    close(copy);
}

// A set that was closed, and another that got its number: the socket is in that one only if the program adds it.
static void reused_set(void) {
    int closed = epoll_create1(0), fd = tcp(SOCK_NONBLOCK);
    struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 9};
    OK(epoll_ctl(closed, EPOLL_CTL_ADD, fd, &e));
    close(closed);
    int other = epoll_create1(0);
    CHECK(other == closed);
    v4 a = far(ECHO);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(polled(fd, POLLOUT, 10000) == POLLOUT);
    CHECK(epoll_wait(other, &e, 1, 50) == 0);
    e = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 7};
    OK(epoll_ctl(other, EPOLL_CTL_ADD, fd, &e));
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    OK(connect(fd, &none, sizeof none));
    a = far(HELD);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    CHECK(epoll_wait(other, &e, 1, 50) == 0);
    release();
    CHECK(epoll_wait(other, &e, 1, -1) == 1 && e.data.u64 == 7 && e.events == EPOLLOUT);
    echo(fd);
    close(fd);
}

__attribute__((constructor)) static void make(void) { set = epoll_create1(EPOLL_CLOEXEC); }

// Another descriptor keeps a failed socket in the set after the program has closed the one that it registered. What the set says of
// it then reaches the program, whatever the shim has forgotten.
static void failed_and_closed(void) {
    int fd = begun(REFUSED, 1, EPOLLIN, 8);
    while (polled(fd, POLLIN, -1) == 0) {}
    CHECK(dup(fd) >= 0);
    close(fd);
    for (int i = 0; i < 100; i++) {
        int other = tcp(SOCK_NONBLOCK);
        v4 a = far(REFUSED);
        FAILS(connect(other, ADDR(a)), EINPROGRESS);
        while (polled(other, POLLIN, -1) == 0) {}
        close(other);
    }
    CHECK(waited(5000, 8) & EPOLLHUP);
}

RULES({
    RULE(level), RULE(edge), RULE(once), RULE(exclusive), RULE(failure), RULE(changed), RULE(others), RULE(threads),
    RULE(many), RULE(failed_and_closed), RULE(again),
    RULE(copied_set), RULE(reused_set),
})
