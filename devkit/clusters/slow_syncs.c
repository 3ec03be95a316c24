/* Has the syncs of a program take as long as is asked.
 *
 * Preloaded (LD_PRELOAD) into a program of the name in SLOW_SYNCS_OF, fdatasync syncs nothing and waits instead. The
 * file that SLOW_SYNCS names holds for how many microseconds, as one unsigned 64-bit number. It is mapped, so that what
 * is written there counts from the next sync on, in all processes at once. Other programs sync as ever: those that
 * start the one in question have this library in their environment too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*real)(int);
static const volatile uint64_t *delay_us;

static void __attribute__((constructor)) find(void)
{
    real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *of = getenv("SLOW_SYNCS_OF"), *path = getenv("SLOW_SYNCS");
    if (!of || !path || strcmp(of, program_invocation_short_name))
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *delay_us, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        abort(); /* rather than measure a disk that is not slow */
    close(file);
    delay_us = mapped;
}

int fdatasync(int file)
{
    if (!delay_us)
        return real(file);
    uint64_t us = *delay_us;
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (us && nanosleep(&left, &left) && errno == EINTR)
        ;
    return 0;
}
