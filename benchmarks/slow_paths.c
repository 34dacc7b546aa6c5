/* Preloaded into processes: each call with a path below one of the directories in SLOW_UNDER
   (separated by colons) takes SLOW_US microseconds longer, as one that asks a file server, and is
   counted in the file SLOW_COUNT, which all processes share. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *under;
static long pause_us;
static unsigned long *count;

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("SLOW_COUNT"), *us = getenv("SLOW_US");
    under = getenv("SLOW_UNDER");
    pause_us = us ? atol(us) : 0;
    int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *page = mmap(0, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        count = page == MAP_FAILED ? 0 : page;
        close(fd);
    }
}

static void ask(const char *path)
{
    for (const char *dir = under; path && dir && *dir;) {
        size_t length = strcspn(dir, ":");
        if (!strncmp(path, dir, length) && (path[length] == '/' || !path[length])) {
            struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
            if (count)
                __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
            if (pause_us)
                nanosleep(&pause, 0);
            return;
        }
        dir += length + (dir[length] == ':');
    }
}

#define CALL(type, name, parameters, ...)                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        static type(*real) parameters;                                                             \
        if (!real)                                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        ask(path);                                                                                 \
        return real(__VA_ARGS__);                                                                  \
    }
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        static int (*real)(const char *, int, ...);                                                \
        va_list more;                                                                              \
        if (!real)                                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        va_start(more, flags);                                                                     \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;                          \
        va_end(more);                                                                              \
        ask(path);                                                                                 \
        return real(path, flags, mode);                                                            \
    }

OPEN(open)
OPEN(open64)
CALL(int, stat, (const char *path, struct stat *to), path, to)
CALL(int, stat64, (const char *path, struct stat64 *to), path, to)
CALL(int, lstat, (const char *path, struct stat *to), path, to)
CALL(int, lstat64, (const char *path, struct stat64 *to), path, to)
CALL(int, fstatat, (int at, const char *path, struct stat *to, int flags), at, path, to, flags)
CALL(int, fstatat64, (int at, const char *path, struct stat64 *to, int flags), at, path, to, flags)
CALL(int, access, (const char *path, int mode), path, mode)
CALL(ssize_t, readlink, (const char *path, char *to, size_t size), path, to, size)
CALL(DIR *, opendir, (const char *path), path)
CALL(int, mkdir, (const char *path, mode_t mode), path, mode)
CALL(int, chmod, (const char *path, mode_t mode), path, mode)
CALL(int, unlink, (const char *path), path)
CALL(int, link, (const char *path, const char *to), path, to)
CALL(int, rename, (const char *path, const char *to), path, to)
