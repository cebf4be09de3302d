/* Fails calls of a program that write to files of a directory.
 *
 * Preloaded before the C library. Calls on files under CRASH_TEST_DIR are numbered from 1. The call
 * with number CRASH_TEST_AT fails with CRASH_TEST_KIND (eio, enospc, short), and with CRASH_TEST_STICKY all
 * later calls fail too. CRASH_TEST_KIND=nosync fails nothing: syncs of files with suffix CRASH_TEST_ONLY
 * report success without syncing. Each failed call is written as a record to the standard output,
 * in order with the records of the program. CRASH_TEST_KIND=count fails nothing either: at exit, the
 * number of syncs is written to the file CRASH_TEST_COUNT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <fcntl.h>
#include <unistd.h>

enum call { WRITE, PWRITE, FSYNC, FDATASYNC, FTRUNCATE, RENAME, FALLOCATE, UNLINK, DIRSYNC };
enum kind { NONE, EIO_KIND, ENOSPC_KIND, SHORT_KIND, NOSYNC_KIND, COUNT_KIND };

static const char *dir, *only;
static size_t dir_bytes, only_bytes;
static long fail_at;
static int sticky;
static enum kind kind;
static atomic_long calls;
static atomic_long syncs;

__attribute__((constructor)) static void start(void) {
    const char *at = getenv("CRASH_TEST_AT"), *what = getenv("CRASH_TEST_KIND");
    dir = getenv("CRASH_TEST_DIR");
    only = getenv("CRASH_TEST_ONLY");
    dir_bytes = dir ? strlen(dir) : 0;
    only_bytes = only ? strlen(only) : 0;
    fail_at = at ? atol(at) : 0;
    sticky = getenv("CRASH_TEST_STICKY") != NULL;
    if (!what) kind = NONE;
    else if (!strcmp(what, "eio")) kind = EIO_KIND;
    else if (!strcmp(what, "enospc")) kind = ENOSPC_KIND;
    else if (!strcmp(what, "short")) kind = SHORT_KIND;
    else if (!strcmp(what, "nosync")) kind = NOSYNC_KIND;
    else if (!strcmp(what, "count")) kind = COUNT_KIND;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("CRASH_TEST_COUNT");
    FILE *file = path && kind == COUNT_KIND ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld\n", atomic_load(&syncs));
    fclose(file);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int ours(const char *path) {
    size_t bytes = strlen(path);
    if (!dir || strncmp(path, dir, dir_bytes)) return 0;
    return !only || (bytes >= only_bytes && !strcmp(path + bytes - only_bytes, only));
}

static int ours_fd(int fd) {
    char link[64], path[4096];
    if (!dir) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (bytes <= 0) return 0;
    path[bytes] = 0;
    return ours(path);
}

/* Numbers a call and returns whether the call fails. */
static int fails(enum call call) {
    if (kind == NONE || kind == NOSYNC_KIND || kind == COUNT_KIND) return 0;
    /* Only a write can be short. */
    if (kind == SHORT_KIND && call != WRITE && call != PWRITE) return 0;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (number < fail_at || (number > fail_at && !sticky)) return 0;
    unsigned char told[16] = {'O', 8, 8, 0, call, 0, 0, 0};
    memcpy(told + 8, &number, sizeof number);
    if (REAL(write)(1, told, sizeof told) != sizeof told) abort();
    errno = kind == ENOSPC_KIND ? ENOSPC : EIO;
    return 1;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (fd > 2 && ours_fd(fd) && fails(WRITE)) {
        if (kind != SHORT_KIND) return -1;
        return count > 1 ? REAL(write)(fd, bytes, count / 2) : REAL(write)(fd, bytes, count);
    }
    return REAL(write)(fd, bytes, count);
}

static ssize_t pwrite_any(int fd, const void *bytes, size_t count, off64_t at) {
    if (ours_fd(fd) && fails(PWRITE)) {
        if (kind != SHORT_KIND) return -1;
        return REAL(pwrite64)(fd, bytes, count > 1 ? count / 2 : count, at);
    }
    return REAL(pwrite64)(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    return pwrite_any(fd, bytes, count, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return pwrite_any(fd, bytes, count, at);
}

/* SQLite ignores the result of a directory sync, so directory syncs get a separate index. */
static int is_dir(int fd) {
    struct stat about;
    return !fstat(fd, &about) && S_ISDIR(about.st_mode);
}

int fsync(int fd) {
    if (ours_fd(fd)) {
        if (kind == NOSYNC_KIND) return 0;
        if (fails(is_dir(fd) ? DIRSYNC : FSYNC)) return -1;
        atomic_fetch_add(&syncs, 1);
    }
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    if (ours_fd(fd)) {
        if (kind == NOSYNC_KIND) return 0;
        if (fails(FDATASYNC)) return -1;
        atomic_fetch_add(&syncs, 1);
    }
    return REAL(fdatasync)(fd);
}

int ftruncate64(int fd, off64_t bytes) {
    if (ours_fd(fd) && fails(FTRUNCATE)) return -1;
    return REAL(ftruncate64)(fd, bytes);
}

int ftruncate(int fd, off_t bytes) {
    if (ours_fd(fd) && fails(FTRUNCATE)) return -1;
    return REAL(ftruncate)(fd, bytes);
}

int rename(const char *from, const char *to) {
    if (ours(from) && fails(RENAME)) return -1;
    return REAL(rename)(from, to);
}

int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
    if (ours_fd(fd) && fails(FALLOCATE)) return -1;
    return REAL(fallocate64)(fd, mode, at, bytes);
}

int unlink(const char *path) {
    if (ours(path) && fails(UNLINK)) return -1;
    return REAL(unlink)(path);
}
