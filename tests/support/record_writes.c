/* Records what a process writes to the files of an embedded store, and what it syncs, in order.
 *
 * Preloaded (LD_PRELOAD), it appends a record to the file that RECORD_TO names for each write, change of length and
 * sync of a file below RECORD_OF whose name ends with ".db" or "-wal", and for each write to the file "acks" there: so
 * the process says itself what it had been told by then. See written.py for the records.
 *
 * With RECORD_FAILING the sync of this number of a log fails once with EIO, and the disk never gets what it had to write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

struct __attribute__((packed)) head {
    char kind;
    uint16_t name_length;
    uint64_t offset;
    uint32_t data_length;
};

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), of_end = strlen(end);
    return length >= of_end && !strcmp(text + length - of_end, end);
}

/* The name of a file that is recorded, in the folder; NULL for others. */
static const char *name_of(int descriptor, char *place, size_t room)
{
    const char *folder = getenv("RECORD_OF");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = folder ? readlink(link, place, room - 1) : -1;
    if (length < 0)
        return NULL;
    place[length] = 0;
    size_t of_folder = strlen(folder);
    if (strncmp(place, folder, of_folder) || place[of_folder] != '/')
        return NULL;
    const char *name = place + of_folder + 1;
    return ends_with(name, ".db") || ends_with(name, "-wal") || !strcmp(name, "acks") ? name : NULL;
}

static void record(char kind, int descriptor, uint64_t offset, const void *data, size_t length)
{
    static int to = -1;
    char place[4096];
    const char *name = name_of(descriptor, place, sizeof place);
    if (!name)
        return;
    pthread_mutex_lock(&recording);
    if (to < 0 && (to = open(getenv("RECORD_TO"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0)
        abort();
    struct head head = {kind, (uint16_t)strlen(name), offset, (uint32_t)length};
    struct iovec parts[] = {
        {&head, sizeof head}, {(void *)(uintptr_t)name, strlen(name)}, {(void *)(uintptr_t)data, length}};
    if (writev(to, parts, 3) != (ssize_t)(sizeof head + strlen(name) + length))
        abort();
    pthread_mutex_unlock(&recording);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset)
{
    ssize_t done = REAL(pwrite)(descriptor, data, length, offset);
    if (done > 0)
        record('w', descriptor, (uint64_t)offset, data, (size_t)done);
    return done;
}

ssize_t pwrite64(int descriptor, const void *data, size_t length, off64_t offset)
{
    return pwrite(descriptor, data, length, (off_t)offset);
}

ssize_t write(int descriptor, const void *data, size_t length)
{
    ssize_t done = REAL(write)(descriptor, data, length);
    if (done > 0)
        record('a', descriptor, 0, data, (size_t)done);
    return done;
}

int ftruncate(int descriptor, off_t length)
{
    int failed = REAL(ftruncate)(descriptor, length);
    if (!failed)
        record('t', descriptor, (uint64_t)length, "", 0);
    return failed;
}

int ftruncate64(int descriptor, off64_t length)
{
    return ftruncate(descriptor, (off_t)length);
}

/* Whether this sync is the one that fails. */
static int fails(int descriptor)
{
    static int left = -1;
    char place[4096];
    const char *failing = getenv("RECORD_FAILING"), *name = name_of(descriptor, place, sizeof place);
    if (!failing || !name || !ends_with(name, "-wal"))
        return 0;
    pthread_mutex_lock(&recording);
    left = left < 0 ? atoi(failing) : left;
    int is_due = left > 0 && !--left;
    pthread_mutex_unlock(&recording);
    return is_due;
}

static int synced(int descriptor, int (*real)(int))
{
    if (fails(descriptor)) {
        record('f', descriptor, 0, "", 0);
        errno = EIO;
        return -1;
    }
    int failed = real(descriptor);
    if (!failed)
        record('s', descriptor, 0, "", 0);
    return failed;
}

int fsync(int descriptor)
{
    return synced(descriptor, REAL(fsync));
}

int fdatasync(int descriptor)
{
    return synced(descriptor, REAL(fdatasync));
}
