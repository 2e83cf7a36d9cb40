// Processes that are killed while they share a handshake. Nobody else is stopped by that, and there is never a session with
// bytes in it that nobody sent, or without some that somebody did.
#include "check.h"
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

// A connect that is under way.
static int begun(int port) {
    int fd = tcp(SOCK_NONBLOCK);
    v4 a = far(port);
    FAILS(connect(fd, ADDR(a)), EINPROGRESS);
    return fd;
}

// A handshake that waits for the gateway's answer is whole at any moment.
static void idle(void) {
    int fd = begun(HELD);
    // HELLO has come, and was taken.
    unsigned long long info[17] = {0}, *received = &info[16]; // tcpi_bytes_received, which the C library's tcp_info lacks
    for (int queued = 1; queued != 0 || *received == 0;) {
        CHECK(polled(fd, POLLOUT, 1) == 0);
        socklen_t len = sizeof info;
        OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len));
        OK(ioctl(fd, FIONREAD, &queued));
    }
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (;;) polled(fd, POLLOUT, 0);
        }
        for (int j = 0; j < i; j++) CHECK(polled(fd, POLLOUT, 0) == 0);
        OK(kill(child, SIGKILL));
        CHECK(waitpid(child, NULL, 0) == child);
        CHECK(polled(fd, POLLOUT, 0) == 0);
    }
    release();
    CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
    echo(fd);
}

// Lets a traced child go on until `stops` system calls have begun or ended, or so many of those that move bytes of the
// connection, and kills it there. Says by `moving` whether it was in one of these; returns whether it ended itself before.
static int kill_at(pid_t child, int stops, int only_moving, int *moving) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    OK(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    *moving = 0;
    int in_moving = 0;
    while (stops > 0) {
        OK(ptrace(PTRACE_SYSCALL, child, NULL, NULL));
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status)) return 1;
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80));
        struct __ptrace_syscall_info call;
        CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call) > 0);
        *moving = in_moving;
        if (call.op == PTRACE_SYSCALL_INFO_ENTRY) {
            unsigned long number = call.entry.nr, flags = call.entry.args[3];
            *moving = in_moving = number == SYS_sendto || (number == SYS_recvfrom && !(flags & MSG_PEEK));
        } else {
            in_moving = 0;
        }
        if (*moving || !only_moving) stops--;
    }
    OK(kill(child, SIGKILL));
    siginfo_t ended;
    OK(waitid(P_PID, child, &ended, WEXITED | WNOWAIT));
    return 0;
}

// A process that is killed at any system call of a whole handshake: where bytes were moving, what became of them is not
// known and the connect fails; everywhere else it goes on. Returns at how many calls that was.
static int kill_anywhere(int only_moving) {
    for (int stops = 1;; stops++) {
        int fd = begun(ECHO);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            OK(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
            OK(raise(SIGSTOP));
            polled(fd, POLLOUT, -1);
            _exit(0);
        }
        int moving;
        if (kill_at(child, stops, only_moving, &moving)) return stops - 1;
        // Also a parent that has not asked yet how its child has ended must not be stopped by it.
        if (stops % 2 == 0) CHECK(waitpid(child, NULL, 0) == child);
        CHECK(polled(fd, POLLOUT, -1) & POLLOUT);
        if (stops % 2 != 0) CHECK(waitpid(child, NULL, 0) == child);
        int error = so_error(fd);
        CHECK(error == (moving ? ECONNRESET : 0));
        if (error) {
            v4 a = far(ECHO);
            FAILS(connect(fd, ADDR(a)), EINPROGRESS);
            CHECK(polled(fd, POLLOUT, -1) == POLLOUT);
            OK(so_error(fd));
        }
        echo(fd);
        close(fd);
    }
}

static void anywhere(void) { CHECK(kill_anywhere(0) > 4); }

// HELLO and OPENED are received, and OPEN is sent unless it went with the SYN: each begins and ends.
static void moving(void) { CHECK(kill_anywhere(1) >= 4); }

static void *polls(void *at) {
    int *fd = at;
    CHECK(polled(*fd, POLLOUT, 0) == 0);
    *fd = -1;
    return NULL;
}

// A process that has the number of its parent, in a namespace of its own, and is stopped while it uses the handshake: its
// parent neither takes it for itself nor for dead, and waits.
static void namesake(void) {
    OK(unshare(CLONE_NEWPID));
    pid_t first = fork();
    CHECK(first >= 0);
    if (first == 0) {
        CHECK(getpid() == 1);
        int fd = begun(HELD), own = syscall(SYS_pidfd_open, 1, 0);
        CHECK(own >= 0);
        OK(unshare(CLONE_NEWPID));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(getpid() == 1);
            OK(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
            OK(raise(SIGSTOP));
            for (;;) polled(fd, POLLOUT, 0);
        }
        // The namespace is for children; threads are of this process's own.
        OK(setns(own, CLONE_NEWPID));
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        OK(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
        struct __ptrace_syscall_info call;
        do {
            OK(ptrace(PTRACE_SYSCALL, child, NULL, NULL));
            CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
            CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call) > 0);
        } while (call.op != PTRACE_SYSCALL_INFO_ENTRY || call.entry.nr != SYS_recvfrom);
        static int asked;
        asked = fd;
        pthread_t thread;
        OK(pthread_create(&thread, NULL, polls, &asked));
        usleep(200000);
        CHECK(asked == fd);
        OK(kill(child, SIGKILL));
        CHECK(waitpid(child, NULL, 0) == child);
        OK(pthread_join(thread, NULL));
        release();
        CHECK(polled(fd, POLLOUT, -1) == POLLOUT && so_error(fd) == 0);
        echo(fd);
        _exit(0);
    }
    int status;
    CHECK(waitpid(first, &status, 0) == first && status == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "idle") == 0) idle();
    else if (strcmp(argv[1], "anywhere") == 0) anywhere();
    else if (strcmp(argv[1], "moving") == 0) moving();
    else if (strcmp(argv[1], "namesake") == 0) namesake();
    else CHECK(!"a rule of this name");
}
