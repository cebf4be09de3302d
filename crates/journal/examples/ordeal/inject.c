/* Fails the calls of a program that write to the files of one directory.
 *
 * Loaded before the C library. Calls on files under ORDEAL_DIR are numbered from 1 on; the one
 * with the number ORDEAL_AT fails as ORDEAL_KIND says (eio, enospc, short), and all later ones
 * too where ORDEAL_STICKY is set. ORDEAL_KIND=nosync fails nothing: a sync of a file whose name
 * ends in ORDEAL_ONLY says that it was done, and was not. Each failed call is told on the
 * standard output as one record, so that it stands in order among what the program tells.
 * ORDEAL_KIND=count fails nothing either: at its end, the program writes the number of its syncs
 * to the file ORDEAL_COUNT.
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
    const char *at = getenv("ORDEAL_AT"), *what = getenv("ORDEAL_KIND");
    dir = getenv("ORDEAL_DIR");
    only = getenv("ORDEAL_ONLY");
    dir_bytes = dir ? strlen(dir) : 0;
    only_bytes = only ? strlen(only) : 0;
    fail_at = at ? atol(at) : 0;
    sticky = getenv("ORDEAL_STICKY") != NULL;
    if (!what) kind = NONE;
    else if (!strcmp(what, "eio")) kind = EIO_KIND;
    else if (!strcmp(what, "enospc")) kind = ENOSPC_KIND;
    else if (!strcmp(what, "short")) kind = SHORT_KIND;
    else if (!strcmp(what, "nosync")) kind = NOSYNC_KIND;
    else if (!strcmp(what, "count")) kind = COUNT_KIND;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("ORDEAL_COUNT");
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

/* Numbers a call; whether it is to fail. */
static int fails(enum call call) {
    if (kind == NONE || kind == NOSYNC_KIND || kind == COUNT_KIND) return 0;
    /* Nothing but a write can be short. */
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

/* SQLite does not look at what came of the sync of a directory: it is told apart. */
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
