/* Makes chosen calls to the disk slow, or a sync fail, for tests: loaded into a process by LD_PRELOAD (tests/support/slow_disk.py).
 *
 * SLOW_DISK_CONTROL names a file with a struct control. It is mapped, so that the test changes it while the process
 * runs, also for calls that wait already. SLOW_DISK_FOLDER limits it to files below that folder. Calls wait in the
 * thread that makes them, as with a busy disk. A system call that is made without the C library is not slowed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    /* How many seconds an fsync, fdatasync or rename takes longer. */
    volatile double seconds;
    /* And a write to a regular file. */
    volatile double write_seconds;
    /* How many calls wait now. */
    long long waiting;
    /* The sync that returns EIO: 1 is the next one, 0 and less none. */
    long long failing;
};

static struct control *control;
static char folder[PATH_MAX];
static size_t folder_length;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("SLOW_DISK_CONTROL"), *below = getenv("SLOW_DISK_FOLDER");
    if (path == NULL || below == NULL || realpath(below, folder) == NULL) return;
    folder_length = strlen(folder);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) control = mapped;
}

static int is_below(const char *path) {
    return strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || path[folder_length] == 0);
}

static int concerns(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void wait_for(volatile double *seconds) {
    int kept = errno;
    double started = now(), left;
    __atomic_add_fetch(&control->waiting, 1, __ATOMIC_SEQ_CST);
    while ((left = started + *seconds - now()) > 0) {
        if (left > 0.01) left = 0.01; /* the test may have changed its mind */
        struct timespec pause = {0, (long)(left * 1e9)};
        nanosleep(&pause, NULL);
    }
    __atomic_sub_fetch(&control->waiting, 1, __ATOMIC_SEQ_CST);
    errno = kept;
}

static void slow_sync(int descriptor) {
    if (control != NULL && control->seconds > 0 && concerns(descriptor)) wait_for(&control->seconds);
}

static int sync_fails(int descriptor) {
    if (control == NULL || control->failing <= 0 || !concerns(descriptor)) return 0;
    if (__atomic_sub_fetch(&control->failing, 1, __ATOMIC_SEQ_CST) != 0) return 0;
    errno = EIO;
    return 1;
}

static void slow_write(int descriptor) {
    struct stat state;
    if (control != NULL && control->write_seconds > 0 && fstat(descriptor, &state) == 0 && S_ISREG(state.st_mode) &&
        concerns(descriptor))
        wait_for(&control->write_seconds);
}

static void slow_rename(const char *path) {
    char whole[PATH_MAX];
    if (control != NULL && control->seconds > 0 && realpath(path, whole) != NULL && is_below(whole))
        wait_for(&control->seconds);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int fsync(int descriptor) {
    REAL(fsync);
    slow_sync(descriptor);
    if (sync_fails(descriptor)) return -1;
    return real(descriptor);
}

int fdatasync(int descriptor) {
    REAL(fdatasync);
    slow_sync(descriptor);
    if (sync_fails(descriptor)) return -1;
    return real(descriptor);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    slow_rename(from);
    return real(from, to);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    slow_write(descriptor);
    return real(descriptor, data, size);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(writev);
    slow_write(descriptor);
    return real(descriptor, parts, count);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    slow_write(descriptor);
    return real(descriptor, data, size, at);
}
