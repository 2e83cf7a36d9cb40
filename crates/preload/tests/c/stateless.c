// A kernel that does not tell the state of TCP sockets (TCP_INFO), as with a seccomp filter.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/syscall.h>

long syscall(long number, ...) {
    long (*next)(long, ...) = dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_getsockopt && a[1] == IPPROTO_TCP && a[2] == TCP_INFO) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
