/* The most that a server of the sequencer's protocol can reach: it counts frames and parses none.

     seqceiling HOST PORT [PROCESSES]

   Processes have one thread each, and share the listening socket and the counter. There is one counter whatever log is
   asked for, and looks at the last byte of a request alone: 0 reads the tail. It
   prints a line when it listens. In a round it reads every connection that is ready, and then sends all replies. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 4096, READ = 64 << 10, REPLIES = 4 * READ };

typedef struct {
    int socket, held, size;
    uint8_t rest[1028], out[REPLIES];
} Connection;

static Connection *connections[MOST];
static uint64_t *position;
static int is_shared;

static void __attribute__((noreturn)) fail(const char *what) {
    perror(what);
    exit(1);
}

static int put_reply(uint8_t *at, uint64_t value) {
    int size = 4;
    at[0] = at[1] = at[2] = 0;
    at[size++] = 0x08;
    for (; value > 0x7F; value >>= 7)
        at[size++] = (value & 0x7F) | 0x80;
    at[size++] = value;
    at[3] = size - 4;
    return size;
}

static uint64_t next(void) {
    return is_shared ? __atomic_add_fetch(position, 1, __ATOMIC_SEQ_CST) : ++*position;
}

/* Reads and answers; whether the connection goes on. */
static int answer(Connection *of) {
    static uint8_t data[1028 + READ];
    memcpy(data, of->rest, of->held);
    ssize_t size = recv(of->socket, data + of->held, READ, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN)
        return 1;
    if (size <= 0)
        return 0;
    const uint8_t *at = data, *end = data + of->held + size;
    while (end - at >= 4) {
        uint32_t body;
        memcpy(&body, at, 4);
        body = ntohl(body);
        if (!body || body > 1024)
            return 0;
        if (end - at < 4 + (ssize_t)body)
            break;
        at += 4 + body;
        of->size += put_reply(of->out + of->size, at[-1] ? next() : *position);
    }
    of->held = end - at;
    memcpy(of->rest, at, of->held);
    return 1;
}

static void close_it(Connection *of) {
    connections[of->socket] = NULL;
    close(of->socket);
    free(of);
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fputs("seqceiling HOST PORT [PROCESSES]\n", stderr);
        return 2;
    }
    int processes = argc == 4 ? atoi(argv[3]) : 1;
    is_shared = processes > 1;
    position = mmap(NULL, sizeof *position, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (position == MAP_FAILED)
        fail("mmap");
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024))
        fail("listen");
    while (--processes > 0)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            break;
        }
    int poll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener}, ready[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &wanted);
    if (!processes) {
        puts("listening");
        fflush(stdout);
    }
    for (;;) {
        int found = epoll_wait(poll, ready, 512, -1);
        for (int n = 0; n < found; n++) {
            if (ready[n].data.fd == listener) {
                int made = accept(listener, NULL, NULL);
                if (made < 0 && errno == EAGAIN)
                    continue;
                if (made < 0 || made >= MOST)
                    fail("accept");
                setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                connections[made] = calloc(1, sizeof(Connection));
                connections[made]->socket = made;
                wanted.data.fd = made;
                epoll_ctl(poll, EPOLL_CTL_ADD, made, &wanted);
                ready[n].data.fd = -1;
            } else if (!answer(connections[ready[n].data.fd])) {
                close_it(connections[ready[n].data.fd]);
                ready[n].data.fd = -1;
            }
        }
        for (int n = 0; n < found; n++) {
            Connection *of = ready[n].data.fd < 0 ? NULL : connections[ready[n].data.fd];
            if (of && of->size) {
                if (send(of->socket, of->out, of->size, MSG_NOSIGNAL) != of->size)
                    close_it(of);
                else
                    of->size = 0;
            }
        }
    }
}
