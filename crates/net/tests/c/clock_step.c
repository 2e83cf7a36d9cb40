/* Preloaded: the wall clock is off by as many seconds as the file CLOCK_STEP_FILE says, from one call to the next. The clock that
 * only goes forward is the kernel's own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long *step;

__attribute__((constructor)) static void map(void) {
    const char *file = getenv("CLOCK_STEP_FILE");
    int fd = file ? open(file, O_RDONLY) : -1;
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) step = memory;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, id, at);
    if (result == 0 && step && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *step;
    return result;
}

time_t time(time_t *out) {
    struct timespec at = {0};
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec at = {0};
    clock_gettime(CLOCK_REALTIME, &at);
    out->tv_sec = at.tv_sec;
    out->tv_usec = at.tv_nsec / 1000;
    return 0;
}
