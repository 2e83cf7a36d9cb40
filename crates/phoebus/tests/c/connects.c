/* A static program whose connects `phoebus run` catches. Prints one line for each result, the same as without it.
   usage: connects CASE IPV4 PORT [...]. Only system calls that musl and glibc make alike. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in to;

static const char *name(int result)
{
    return result == 0 ? "0" : strerrorname_np(errno);
}

static void say(const char *what, int result)
{
    printf("%s: %s\n", what, name(result));
    fflush(stdout);
}

static int stream(void)
{
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int go(int fd)
{
    return connect(fd, (struct sockaddr *)&to, sizeof to);
}

/* Whether the peer answers a byte. */
static int answers(int fd)
{
    char byte = 'x';
    return send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'x' ? 0 : -1;
}

static void errors(void)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = to.sin_port};
    struct sockaddr none = {.sa_family = AF_UNSPEC}, odd = {.sa_family = 77};
    struct sockaddr_in wrong = to, closed = to;
    int fd = stream(), lengths[] = {-1, 129, 1 << 30, 0, 1, 2, 8, 15};
    say("no descriptor", connect(-1, (struct sockaddr *)&to, sizeof to));
    say("closed descriptor", connect(1000, (struct sockaddr *)&to, sizeof to));
    say("no socket", connect(0, (struct sockaddr *)&to, sizeof to));
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        printf("length %d ", lengths[i]);
        say("", syscall(SYS_connect, fd, &to, lengths[i]));
    }
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    memcpy(page + 4088, &to, 8);
    say("unmapped address", syscall(SYS_connect, fd, 8L, 16));
    say("null address", syscall(SYS_connect, fd, 0L, 16));
    say("address of the kernel", syscall(SYS_connect, fd, -4096L, 16));
    say("partly unmapped address", syscall(SYS_connect, fd, page + 4088, 16));
    say("other family", connect(fd, (struct sockaddr *)&six, sizeof six));
    say("unknown family", connect(fd, &odd, sizeof odd));
    say("no family", connect(fd, &none, sizeof none));
    wrong.sin_port = 0;
    say("port 0", connect(fd, (struct sockaddr *)&wrong, sizeof wrong));
    wrong = to;
    wrong.sin_addr.s_addr = 0xffffffff;
    say("broadcast", connect(fd, (struct sockaddr *)&wrong, sizeof wrong));
    closed.sin_port = htons(1);
    say("nobody listens", connect(fd, (struct sockaddr *)&closed, sizeof closed));
    say("the same socket again", connect(fd, (struct sockaddr *)&closed, sizeof closed));
    say("then one that answers", go(fd));
    say("it answers", answers(fd));
    say("connected already", go(fd));
    say("connected already, other address", connect(fd, (struct sockaddr *)&closed, sizeof closed));
    say("dissolved", connect(fd, &none, sizeof none));
    say("and connected again", go(fd));
    say("it answers", answers(fd));
    fd = stream();
    listen(fd, 1);
    say("listening", go(fd));
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    say("IPv4 on a socket of IPv6", go(fd));
    six.sin6_addr.s6_addr16[5] = 0xffff;
    memcpy(&six.sin6_addr.s6_addr[12], &to.sin_addr, 4);
    say("too short for IPv6", connect(fd, (struct sockaddr *)&six, 20));
    say("mapped address", connect(fd, (struct sockaddr *)&six, sizeof six));
    say("it answers", answers(fd));
}

static void kinds(const char *unix_socket)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in peer = {0};
    struct timeval second = {.tv_sec = 5};
    socklen_t len = sizeof peer;
    int error = -1, fd = stream(), copy = dup(fd);
    say("a copy connects", go(copy));
    say("the original answers", answers(fd));
    printf("flags %d %d, close-on-exec %d %d\n", fcntl(fd, F_GETFL), fcntl(copy, F_GETFL), fcntl(fd, F_GETFD), fcntl(copy, F_GETFD));
    len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    printf("error of the socket %d\n", error);
    fd = stream();
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    say("with a time limit", go(fd));
    say("it answers", answers(fd));
    for (int i = 0; i < 2; i++) {
        int on = 1;
        fd = stream();
        setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on);
        say("with fast open", go(fd));
        say("it answers", answers(fd));
    }
    fd = socket(AF_INET, SOCK_STREAM, 262);
    if (fd >= 0) {
        say("multipath", go(fd));
        say("it answers", answers(fd));
        say("it is connected", go(fd));
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct pollfd writable = {fd, POLLOUT, 0};
    int result = go(fd);
    if (result < 0 && errno == EINPROGRESS && poll(&writable, 1, -1) == 1)
        result = go(fd);
    say("non-blocking", result);
    say("it is connected", go(fd));
    fcntl(fd, F_SETFL, 0);
    say("it answers", answers(fd));
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    bind(fd, (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET}, sizeof peer);
    len = sizeof peer;
    getsockname(fd, (struct sockaddr *)&peer, &len);
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    say("a datagram socket", connect(fd, (struct sockaddr *)&peer, sizeof peer));
    say("it answers itself", answers(fd));
    strcpy(local.sun_path, unix_socket);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    say("nobody at a path", connect(fd, (struct sockaddr *)&local, sizeof local));
    bind(server, (struct sockaddr *)&local, sizeof local);
    listen(server, 1);
    say("a path", connect(fd, (struct sockaddr *)&local, sizeof local));
}

/* Ways to connect past connect(2). */
static void detours(void)
{
    int fd = stream();
    char ring[120] = {0};
    struct iovec byte = {"x", 1};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &byte, .msg_iovlen = 1};
    struct mmsghdr messages = {.msg_hdr = message};
    say("sendto", sendto(fd, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to) < 0 ? -1 : 0);
    say("sendmsg", sendmsg(fd, &message, MSG_FASTOPEN | MSG_NOSIGNAL) < 0 ? -1 : 0);
    say("sendmmsg", sendmmsg(fd, &messages, 1, MSG_FASTOPEN) < 0 ? -1 : 0);
    say("io_uring_setup", syscall(SYS_io_uring_setup, 4, ring) < 0 ? -1 : 0);
    say("io_uring_enter", syscall(SYS_io_uring_enter, 0, 1, 0, 0, 0, 0) < 0 ? -1 : 0);
#ifdef __x86_64__
    say("x32", syscall(0x40000000 + SYS_connect, fd, &to, sizeof to));
#endif
}

static void children(int count)
{
    int good = 0, status;
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            int fd = stream();
            if (go(fd) == 0 && answers(fd) == 0)
                _exit(0);
            say("child", -1);
            _exit(1);
        }
    while (wait(&status) > 0)
        good += status == 0;
    printf("%d\n", good);
}

static int fd_of_thread;

static void *connecting(void *unused)
{
    say("connect", go(fd_of_thread));
    return unused;
}

/* Another thread closes the socket amid the call, and a new one gets its number. */
static void swapped(void)
{
    pthread_t thread;
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    char line[8];
    fd_of_thread = stream();
    pthread_create(&thread, 0, connecting, 0);
    fgets(line, sizeof line, stdin);
    close(fd_of_thread);
    printf("the same number: %d\n", stream() == fd_of_thread);
    puts("swapped");
    fflush(stdout);
    pthread_join(thread, 0);
    say("the new socket", getpeername(fd_of_thread, (struct sockaddr *)&peer, &len));
}

static volatile int ticks;

static void tick(int number)
{
    ticks += number > 0;
}

/* Waits until signals have come, or one waits for the end of the call. */
static void *watch(void *unused)
{
    sigset_t pending;
    for (int i = 0; i < 20 && ticks < 20; i++) {
        usleep(1000);
        if (sigpending(&pending) != 0 || !sigismember(&pending, SIGALRM))
            i = 0;
    }
    puts("interrupted");
    fflush(stdout);
    return unused;
}

/* Waits until a connect that has failed with EINTR has ended, as many programs do. */
static int finished(int fd)
{
    struct pollfd writable = {fd, POLLOUT, 0};
    socklen_t len = sizeof errno;
    if (poll(&writable, 1, -1) < 0)
        return -1;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno, &len);
    return errno ? -1 : 0;
}

/* The socket waits no longer than this. Whoever believes that it connects, writes. */
static void impatient(void)
{
    struct timeval limit = {.tv_usec = 100000};
    int fd = stream();
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    say("connect", go(fd));
    say("then", finished(fd));
    say("send", send(fd, "too early", 9, MSG_NOSIGNAL) < 0 ? -1 : 0);
}

/* A timer's signals come amid the call, which is restarted if `flags` say so. */
static void signals(int flags)
{
    pthread_t thread;
    sigset_t alarm;
    int fd = stream();
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, 0);
    pthread_create(&thread, 0, watch, 0);
    sigprocmask(SIG_UNBLOCK, &alarm, 0);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = tick, .sa_flags = flags}, 0);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 2000}, {0, 2000}}, 0);
    int result = go(fd);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, 0);
    ticks += 20;
    if (result < 0 && errno == EINTR)
        result = finished(fd);
    say("connect", result);
    if (result == 0) {
        say("it answers", answers(fd));
        say("again", go(fd));
    }
    pthread_join(thread, 0);
}

static struct sockaddr_in flipping;
static int is_over;

static void *flip(void *other)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        flipping.sin_addr.s_addr = to.sin_addr.s_addr;
        flipping.sin_addr.s_addr = ((struct in_addr *)other)->s_addr;
    }
    return 0;
}

/* Another thread changes the address amid the calls, between `to` and `other`. Prints how many connects succeeded. */
static void flips(const char *other)
{
    pthread_t thread;
    struct in_addr address;
    int good = 0;
    inet_pton(AF_INET, other, &address);
    flipping = to;
    pthread_create(&thread, 0, flip, &address);
    for (int i = 0; i < 1000; i++) {
        int fd = stream();
        good += connect(fd, (struct sockaddr *)&flipping, sizeof flipping) == 0 && answers(fd) == 0;
        close(fd);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    pthread_join(thread, 0);
    printf("%d\n", good);
}

/* A socket of IPv6 alone, to this host. */
static void six(void)
{
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_port = to.sin_port, .sin6_addr = in6addr_loopback};
    int fd = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    say("connect", connect(fd, (struct sockaddr *)&own, sizeof own));
    say("it answers", answers(fd));
}

/* Does not let others of its user have its sockets. */
static void closed_to_others(void)
{
    prctl(PR_SET_DUMPABLE, 0);
    say("connect", go(stream()));
}

/* Tells who supervises it, and connects, whatever happens. */
static void orphaned(void)
{
    printf("%d\n", getppid());
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        say("connect", go(stream()));
    say("fresh process", fork() ? (wait(0), 0) : (say("child", go(stream())), _exit(0), 0));
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    to.sin_family = AF_INET;
    inet_pton(AF_INET, words[2], &to.sin_addr);
    to.sin_port = htons(atoi(words[3]));
    const char *wanted = words[1], *more = count > 4 ? words[4] : "";
    if (!strcmp(wanted, "errors"))
        errors();
    else if (!strcmp(wanted, "kinds"))
        kinds(more);
    else if (!strcmp(wanted, "detours"))
        detours();
    else if (!strcmp(wanted, "children"))
        children(atoi(more));
    else if (!strcmp(wanted, "swapped"))
        swapped();
    else if (!strcmp(wanted, "restarted"))
        signals(SA_RESTART);
    else if (!strcmp(wanted, "interrupted"))
        signals(0);
    else if (!strcmp(wanted, "impatient"))
        impatient();
    else if (!strcmp(wanted, "orphaned"))
        orphaned();
    else if (!strcmp(wanted, "flips"))
        flips(more);
    else if (!strcmp(wanted, "six"))
        six();
    else if (!strcmp(wanted, "closed"))
        closed_to_others();
    else
        return 2;
    return 0;
}
