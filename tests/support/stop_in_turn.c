/* Stops a worker of the sequencer at a step of a turn: before and behind each recv, look at the clock that goes on while
 * the host sleeps, and send of the compiled core. Looks at that clock count only behind a recv, so that none of the
 * process that registers logs does. See stop_at_step.c for STOP_AT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static long left;
static int is_in_turn;

static void step(void)
{
    const char *path = getenv("STOP_AT");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &left) != 1)
            abort();
        fclose(file);
        unlink(path);
    }
    if (left > 0 && --left == 0)
        raise(SIGSTOP);
}

ssize_t recv(int peer, void *into, size_t most, int flags)
{
    static ssize_t (*real)(int, void *, size_t, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "recv");
    if (flags != MSG_DONTWAIT)
        return real(peer, into, most, flags);
    step();
    ssize_t size = real(peer, into, most, flags);
    is_in_turn = size > 0;
    step();
    return size;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    if (clock == CLOCK_BOOTTIME && is_in_turn)
        step();
    return result;
}

ssize_t send(int peer, const void *data, size_t size, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "send");
    if (flags != (MSG_DONTWAIT | MSG_NOSIGNAL))
        return real(peer, data, size, flags);
    step();
    ssize_t sent = real(peer, data, size, flags);
    is_in_turn = 0;
    step();
    return sent;
}
