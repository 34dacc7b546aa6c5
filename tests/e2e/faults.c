/* Preloaded into jobs: the wall clock is off by CHAOS_CLOCK seconds, and while the file CHAOS_FULL
   exists no regular file can be written. Monotonic clocks are as they are. So is srun's clock: it
   waits for tasks with pthread_cond_timedwait() until a wall time, and the kernel, which has the
   true time, ended that wait at once on a node whose clock is behind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    const char *text = getenv("CHAOS_CLOCK");
    return text && strcmp(program_invocation_short_name, "srun") ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

ssize_t write(int file, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    const char *full = getenv("CHAOS_FULL");
    struct stat about;
    int before = errno;
    if (full && !access(full, F_OK) && !fstat(file, &about) && S_ISREG(about.st_mode)) {
        errno = EDQUOT;
        return -1;
    }
    errno = before;
    return real(file, data, size);
}
