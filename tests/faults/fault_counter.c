/* Preloaded into a process: counts the calls of the C library that touch files below FAULTS_UNDER,
   and lets one of them fail: the call FAULTS_AT of this process, or what `fault_choose` names. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *under;
static long seen, at;
static int code, armed;

__attribute__((constructor)) static void begin(void)
{
    const char *number = getenv("FAULTS_AT");
    under = getenv("FAULTS_UNDER");
    if (number) {
        at = atol(number), code = EIO, armed = 1;
        unsetenv("FAULTS_AT"); /* its children have no faults */
    }
}

void fault_choose(long number, int error) { seen = 0, at = number, code = error; }

void fault_count(int counts) { __atomic_store_n(&armed, counts, __ATOMIC_SEQ_CST); }

long fault_seen(void) { return __atomic_load_n(&seen, __ATOMIC_SEQ_CST); }

static int is_under(const char *path)
{
    size_t length = under ? strlen(under) : 0;
    return length && path && !strncmp(path, under, length) && (path[length] == '/' || !path[length]);
}

static int of_handle(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return is_under(path);
}

static int at_folder(int fd, const char *path)
{
    return path && path[0] == '/' ? is_under(path) : fd != AT_FDCWD && of_handle(fd);
}

static int fails(int touches)
{
    if (!touches || __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) != at)
        return 0;
    errno = code;
    return 1;
}

#define ARMED __atomic_load_n(&armed, __ATOMIC_SEQ_CST)
#define REAL(type, name, parameters)                                                               \
    static type(*real) parameters;                                                                 \
    if (!real)                                                                                     \
        *(void **)&real = dlsym(RTLD_NEXT, #name);
#define CALL(type, name, parameters, touches, failure, ...)                                        \
    type name parameters                                                                           \
    {                                                                                              \
        REAL(type, name, parameters)                                                               \
        if (ARMED && fails(touches))                                                               \
            return failure;                                                                        \
        return real(__VA_ARGS__);                                                                  \
    }
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        REAL(int, name, (const char *, int, ...))                                                  \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int mode = va_arg(rest, int);                                                              \
        va_end(rest);                                                                              \
        if (ARMED && fails(is_under(path)))                                                        \
            return -1;                                                                             \
        return real(path, flags, mode);                                                            \
    }
#define OPENAT(name)                                                                               \
    int name(int fd, const char *path, int flags, ...)                                             \
    {                                                                                              \
        REAL(int, name, (int, const char *, int, ...))                                             \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int mode = va_arg(rest, int);                                                              \
        va_end(rest);                                                                              \
        if (ARMED && fails(at_folder(fd, path)))                                                   \
            return -1;                                                                             \
        return real(fd, path, flags, mode);                                                        \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CALL(FILE *, fopen, (const char *p, const char *m), is_under(p), 0, p, m)
CALL(FILE *, fopen64, (const char *p, const char *m), is_under(p), 0, p, m)
CALL(DIR *, opendir, (const char *p), is_under(p), 0, p)
CALL(struct dirent *, readdir, (DIR * d), of_handle(dirfd(d)), 0, d)
CALL(struct dirent64 *, readdir64, (DIR * d), of_handle(dirfd(d)), 0, d)
CALL(ssize_t, read, (int f, void *b, size_t n), of_handle(f), -1, f, b, n)
CALL(ssize_t, pread, (int f, void *b, size_t n, off_t o), of_handle(f), -1, f, b, n, o)
CALL(ssize_t, pread64, (int f, void *b, size_t n, off64_t o), of_handle(f), -1, f, b, n, o)
CALL(ssize_t, readv, (int f, const struct iovec *v, int n), of_handle(f), -1, f, v, n)
CALL(ssize_t, write, (int f, const void *b, size_t n), of_handle(f), -1, f, b, n)
CALL(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), of_handle(f), -1, f, b, n, o)
CALL(ssize_t, pwrite64, (int f, const void *b, size_t n, off64_t o), of_handle(f), -1, f, b, n, o)
CALL(ssize_t, writev, (int f, const struct iovec *v, int n), of_handle(f), -1, f, v, n)
CALL(ssize_t, sendfile, (int o, int i, off_t *p, size_t n), of_handle(o) || of_handle(i), -1, o, i, p, n)
CALL(ssize_t, sendfile64, (int o, int i, off64_t *p, size_t n), of_handle(o) || of_handle(i), -1, o, i, p, n)
CALL(int, fchmod, (int f, mode_t m), of_handle(f), -1, f, m)
CALL(int, fstat, (int f, struct stat *s), of_handle(f), -1, f, s)
CALL(int, fstat64, (int f, struct stat64 *s), of_handle(f), -1, f, s)
CALL(int, stat, (const char *p, struct stat *s), is_under(p), -1, p, s)
CALL(int, stat64, (const char *p, struct stat64 *s), is_under(p), -1, p, s)
CALL(int, lstat, (const char *p, struct stat *s), is_under(p), -1, p, s)
CALL(int, lstat64, (const char *p, struct stat64 *s), is_under(p), -1, p, s)
CALL(int, fstatat, (int d, const char *p, struct stat *s, int f), at_folder(d, p), -1, d, p, s, f)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int f), at_folder(d, p), -1, d, p, s, f)
CALL(int, mkdir, (const char *p, mode_t m), is_under(p), -1, p, m)
CALL(int, mkdirat, (int d, const char *p, mode_t m), at_folder(d, p), -1, d, p, m)
CALL(int, rmdir, (const char *p), is_under(p), -1, p)
CALL(int, unlink, (const char *p), is_under(p), -1, p)
CALL(int, unlinkat, (int d, const char *p, int f), at_folder(d, p), -1, d, p, f)
CALL(int, rename, (const char *p, const char *q), is_under(p) || is_under(q), -1, p, q)
CALL(int, renameat, (int d, const char *p, int e, const char *q), at_folder(d, p) || at_folder(e, q), -1, d, p, e, q)
CALL(int, link, (const char *p, const char *q), is_under(p) || is_under(q), -1, p, q)
CALL(int, linkat, (int d, const char *p, int e, const char *q, int f), at_folder(d, p) || at_folder(e, q), -1, d, p, e, q, f)
CALL(int, symlink, (const char *p, const char *q), is_under(q), -1, p, q)
CALL(int, chmod, (const char *p, mode_t m), is_under(p), -1, p, m)
CALL(int, utimensat, (int d, const char *p, const struct timespec t[2], int f), at_folder(d, p), -1, d, p, t, f)

/* Nothing is brought to the disk, which would take most of the time. */
int fsync(int fd) { return ARMED && fails(of_handle(fd)) ? -1 : 0; }
int fdatasync(int fd) { return fsync(fd); }

int close(int fd)
{
    REAL(int, close, (int))
    int writes = ARMED && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && of_handle(fd);
    int done = real(fd); /* as on Linux: the handle is gone, whatever is reported */
    return ARMED && fails(writes) ? -1 : done;
}
