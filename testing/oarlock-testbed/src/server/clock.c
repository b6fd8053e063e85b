// Loaded before a server, it lets the server see a wall clock that is as many microseconds off as a shared file says. Other
// clocks stay as they are.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("OARLOCK_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    // A server whose clock cannot be moved must not start: the test would prove nothing.
    if (page == MAP_FAILED) _exit(71);
    close(file);
    offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, clock, at);
    // An allocator may ask before anything else runs.
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long micros = at->tv_sec * 1000000LL + at->tv_nsec / 1000 + *offset;
        at->tv_nsec = micros % 1000000 * 1000 + at->tv_nsec % 1000;
        at->tv_sec = micros / 1000000;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
