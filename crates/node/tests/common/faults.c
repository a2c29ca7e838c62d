// Faults under a program, for LD_PRELOAD: failed calls, a disk that is full, and what a disk has after each sync.
//
// Calls on files below ROWS_ROOT are counted. Those from number ROWS_FAIL_AT on, ROWS_FAIL_COUNT of them, fail with
// ROWS_FAIL_ERRNO; a failed write of more than a byte writes half of it first. ROWS_FREE names a file with the number
// of free bytes that statvfs tells. Below ROWS_SHADOW lies what each file and folder had when it was last synced, by
// inode. The process ends before sync number ROWS_EXIT_AT.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls, syncs;
static pthread_mutex_t shadow_lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? atol(value) : otherwise;
}

static int is_below(const char *path) {
    const char *root = getenv("ROWS_ROOT");
    return root && strncmp(path, root, strlen(root)) == 0;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

// Whether this call is to fail.
static int fails(void) {
    long call = atomic_fetch_add(&calls, 1) + 1;
    long first = number("ROWS_FAIL_AT", 0);
    if (first == 0 || call < first || call >= first + number("ROWS_FAIL_COUNT", 1)) return 0;
    errno = (int)number("ROWS_FAIL_ERRNO", EIO);
    return 1;
}

static int counts(int fd) {
    char path[PATH_MAX];
    return path_of(fd, path);
}

long rows_calls(void) { return atomic_load(&calls); }

ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t (*real)(int, const void *, size_t) = REAL("write", ssize_t (*)(int, const void *, size_t));
    if (counts(fd) && fails()) {
        int error = errno;
        if (count > 1) real(fd, bytes, count / 2);
        errno = error;
        return -1;
    }
    return real(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t (*real)(int, const struct iovec *, int) = REAL("writev", ssize_t (*)(int, const struct iovec *, int));
    if (counts(fd) && fails()) return -1;
    return real(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) =
        REAL("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t));
    if (counts(fd) && fails()) return -1;
    return real(fd, bytes, count, at);
}

int ftruncate64(int fd, off64_t length) {
    int (*real)(int, off64_t) = REAL("ftruncate64", int (*)(int, off64_t));
    if (counts(fd) && fails()) return -1;
    return real(fd, length);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = REAL("rename", int (*)(const char *, const char *));
    if (is_below(to) && fails()) return -1;
    return real(from, to);
}

int unlink(const char *path) {
    int (*real)(const char *) = REAL("unlink", int (*)(const char *));
    if (is_below(path) && fails()) return -1;
    return real(path);
}

int statvfs64(const char *path, struct statvfs64 *told) {
    int (*real)(const char *, struct statvfs64 *) = REAL("statvfs64", int (*)(const char *, struct statvfs64 *));
    int done = real(path, told);
    const char *name = getenv("ROWS_FREE");
    FILE *file = name ? fopen(name, "r") : NULL;
    long free_bytes;
    if (done == 0 && file && fscanf(file, "%ld", &free_bytes) == 1) {
        told->f_frsize = 1;
        told->f_bavail = (fsblkcnt64_t)free_bytes;
    }
    if (file) fclose(file);
    return done;
}

int statvfs(const char *path, struct statvfs *told) { return statvfs64(path, (struct statvfs64 *)told); }

// Copies the content of a file, without its holes.
static void keep_file(const char *path, const struct stat *found, const char *shadow) {
    static char buffer[1 << 16];
    char kept[PATH_MAX + 64], scratch[PATH_MAX + 128];
    ssize_t (*real_write)(int, const void *, size_t, off64_t) =
        REAL("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t));
    snprintf(kept, sizeof kept, "%s/%lu", shadow, (unsigned long)found->st_ino);
    snprintf(scratch, sizeof scratch, "%s.new", kept);
    int in = open(path, O_RDONLY), out = open(scratch, O_RDWR | O_CREAT | O_TRUNC, 0600);
    off_t at = 0;
    while (in >= 0 && (at = lseek(in, at, SEEK_DATA)) >= 0) {
        off_t end = lseek(in, at, SEEK_HOLE);
        while (at < end) {
            size_t want = (size_t)(end - at) < sizeof buffer ? (size_t)(end - at) : sizeof buffer;
            ssize_t got = pread(in, buffer, want, at);
            if (got <= 0) abort();
            real_write(out, buffer, (size_t)got, at);
            at += got;
        }
    }
    int (*real_truncate)(int, off64_t) = REAL("ftruncate64", int (*)(int, off64_t));
    real_truncate(out, found->st_size);
    close(in);
    close(out);
    REAL("rename", int (*)(const char *, const char *))(scratch, kept);
}

// Lists the names of a folder with their inodes.
static void keep_folder(const char *path, const struct stat *found, const char *shadow) {
    char kept[PATH_MAX + 64], scratch[PATH_MAX + 128];
    snprintf(kept, sizeof kept, "%s/%lu.names", shadow, (unsigned long)found->st_ino);
    snprintf(scratch, sizeof scratch, "%s.new", kept);
    FILE *out = fopen(scratch, "w");
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            fprintf(out, "%lu %d %s\n", (unsigned long)entry->d_ino, entry->d_type == DT_DIR, entry->d_name);
    }
    if (folder) closedir(folder);
    fclose(out);
    REAL("rename", int (*)(const char *, const char *))(scratch, kept);
}

static int synced(int fd, const char *name) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return REAL(name, int (*)(int))(fd);
    if (atomic_fetch_add(&syncs, 1) + 1 == number("ROWS_EXIT_AT", 0)) _exit(99);
    if (fails()) return -1;
    const char *shadow = getenv("ROWS_SHADOW");
    if (!shadow) return REAL(name, int (*)(int))(fd);
    struct stat found;
    pthread_mutex_lock(&shadow_lock);
    if (fstat(fd, &found) == 0) {
        if (S_ISDIR(found.st_mode)) keep_folder(path, &found, shadow);
        else keep_file(path, &found, shadow);
    }
    pthread_mutex_unlock(&shadow_lock);
    return 0;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
