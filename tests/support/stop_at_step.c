/* Stops a sequencer on the embedded store at a step of its work on files and sockets.
 *
 * Preloaded (LD_PRELOAD), it counts two steps for each of some calls, before it and behind it: pwrite, fdatasync,
 * fsync, the lock of those who write to a database, and send. What is sent to say that a log is not served yet
 * (INIT_LOG) does not count, nor does a call that fails, as where another process holds that lock: both differ from
 * run to run.
 *
 * The file that STOP_AT names holds how many steps are left; the first step that finds it deletes it, and counts. The
 * last of these steps stops the process with SIGSTOP: all its threads stand still there until SIGCONT lets them go on,
 * or SIGKILL ends them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/fcntl.h> /* the C library's header declares fcntl with "...", which cannot be passed on */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static long left;

static void look_for_orders(void)
{
    const char *path = getenv("STOP_AT");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return;
    if (fscanf(file, "%ld", &left) != 1)
        abort();
    fclose(file);
    unlink(path);
}

static void step(void)
{
    pthread_mutex_lock(&counting);
    look_for_orders();
    int stops = left > 0 && --left == 0;
    pthread_mutex_unlock(&counting);
    if (stops)
        raise(SIGSTOP); /* to this very thread: sent to the process, another one may take it, and this one goes on */
}

static void take_back(void)
{
    pthread_mutex_lock(&counting);
    left += left > 0;
    pthread_mutex_unlock(&counting);
}

/* SQLite's WAL_WRITE_LOCK is this byte of a -shm file. */
static int takes_write_lock(int command, const struct flock *lock)
{
    return command == F_SETLK && lock->l_type == F_WRLCK && lock->l_start == 120;
}

static int is_init_log(const void *data, size_t size)
{
    static const char reply[] = {0, 0, 0, 4, 8, 0, 16, 1};
    return size >= sizeof reply && !memcmp(data, reply, sizeof reply);
}

/* A function of the C library that first takes a step, and takes another one when it is done, where that counts. */
#define STEPS(type, name, parameters, arguments, counts)                                                               \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static type(*real) parameters;                                                                                 \
        if (!real)                                                                                                     \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                                                 \
        if (!(counts))                                                                                                 \
            return real arguments;                                                                                     \
        step();                                                                                                        \
        type result = real arguments;                                                                                  \
        result < 0 ? take_back() : step();                                                                             \
        return result;                                                                                                 \
    }

STEPS(ssize_t, pwrite, (int file, const void *data, size_t size, off_t place), (file, data, size, place), 1)
STEPS(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t place), (file, data, size, place), 1)
STEPS(int, fdatasync, (int file), (file), 1)
STEPS(int, fsync, (int file), (file), 1)
STEPS(ssize_t, send, (int peer, const void *data, size_t size, int flags), (peer, data, size, flags),
      !is_init_log(data, size))
STEPS(int, fcntl, (int file, int command, void *argument), (file, command, argument),
      takes_write_lock(command, argument))
STEPS(int, fcntl64, (int file, int command, void *argument), (file, command, argument),
      takes_write_lock(command, argument))
