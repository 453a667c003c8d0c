/* LD_PRELOAD: the clock of the day jumps by CHAOS_JUMP_BY seconds, CHAOS_JUMP_AFTER seconds after the first look at it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) {
    struct timespec at;
    syscall(SYS_clock_gettime, clock, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static long jumped(void) {
    static double first;
    static int is_known;
    const char *after = getenv("CHAOS_JUMP_AFTER"), *by = getenv("CHAOS_JUMP_BY");
    if (!is_known) {
        first = now(CLOCK_MONOTONIC);
        is_known = 1;
    }
    return after && by && now(CLOCK_MONOTONIC) - first >= atof(after) ? atol(by) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int code = syscall(SYS_clock_gettime, clock, at);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += jumped();
    return code;
}

int gettimeofday(struct timeval *at, void *zone) {
    int code = syscall(SYS_gettimeofday, at, zone);
    if (code == 0 && at) at->tv_sec += jumped();
    return code;
}

time_t time(time_t *into) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (into) *into = at.tv_sec;
    return at.tv_sec;
}
