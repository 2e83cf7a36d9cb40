/*
 * A slow store: each read or write of a large block at an offset takes LATENCY, and all of them together move RATE bytes a second.
 * Loaded into a program by LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define RATE 200e6
#define LATENCY 5000000LL
/* Shorter ones are no blocks of a file. */
#define BLOCK 65536

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
/* When the store has moved all that it was asked for, in nanoseconds. */
static int64_t free_at;

static void take(ssize_t bytes)
{
	struct timespec at;
	int64_t now, end;

	if (bytes < BLOCK)
		return;
	clock_gettime(CLOCK_MONOTONIC, &at);
	now = at.tv_sec * 1000000000LL + at.tv_nsec;
	pthread_mutex_lock(&turn);
	if (free_at < now)
		free_at = now;
	free_at += (int64_t)(bytes * 1e9 / RATE);
	end = free_at + LATENCY;
	pthread_mutex_unlock(&turn);
	at.tv_sec = end / 1000000000LL;
	at.tv_nsec = end % 1000000000LL;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

ssize_t pread64(int fd, void *bytes, size_t len, off64_t offset)
{
	static ssize_t (*next)(int, void *, size_t, off64_t);
	ssize_t done;

	if (!next)
		next = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
	done = next(fd, bytes, len, offset);
	take(done);
	return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset)
{
	static ssize_t (*next)(int, const void *, size_t, off64_t);
	ssize_t done;

	if (!next)
		next = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
	done = next(fd, bytes, len, offset);
	take(done);
	return done;
}
