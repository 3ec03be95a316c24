/* An experiment: positions over UDP, one datagram for each request; see docs/decisions/sequencer-udp.md.

     sequdp server HOST PORT
     sequdp load HOST PORT CLIENTS SECONDS SERVER-PID

   The server looks at the last byte of a request alone, as seqceiling does: what it reaches is the most that UDP can.
   It takes up to 64 datagrams by one call, and answers them by another one. `load` has a socket for each client and one
   request under way on each; a reply that has not come after 20 ms is counted as lost, and asked for again. It prints
   requests, the processor time of both, and what was lost. Positions must grow on each client. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, MOST = 1024, REQUEST = 47, LATE_NS = 20000000 };

static void __attribute__((noreturn)) fail(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in address(char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &at.sin_addr);
    return at;
}

static double now(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at))
        fail("clock");
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void serve(char **argv) {
    struct sockaddr_in at = address(argv), from[BATCH];
    int own = socket(AF_INET, SOCK_DGRAM, 0), size = 4 << 20;
    setsockopt(own, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(own, (struct sockaddr *)&at, sizeof at))
        fail("bind");
    static uint8_t in[BATCH][2048];
    uint64_t out[BATCH], position = 0;
    struct iovec parts[BATCH], replies[BATCH];
    struct mmsghdr asked[BATCH], answers[BATCH];
    puts("listening");
    fflush(stdout);
    for (;;) {
        for (int n = 0; n < BATCH; n++) {
            parts[n] = (struct iovec){in[n], sizeof in[n]};
            asked[n].msg_hdr = (struct msghdr){
                .msg_name = &from[n], .msg_namelen = sizeof from[n], .msg_iov = &parts[n], .msg_iovlen = 1};
        }
        int found = recvmmsg(own, asked, BATCH, MSG_WAITFORONE, NULL);
        for (int n = 0; n < found; n++) {
            out[n] = in[n][asked[n].msg_len - 1] ? ++position : position;
            replies[n] = (struct iovec){&out[n], sizeof out[n]};
            answers[n].msg_hdr = (struct msghdr){
                .msg_name = &from[n], .msg_namelen = sizeof from[n], .msg_iov = &replies[n], .msg_iovlen = 1};
        }
        for (int sent = 0, more; sent < found; sent += more)
            if ((more = sendmmsg(own, answers + sent, found - sent, 0)) < 0)
                more = 1; /* lost, as in a network */
    }
}

static void load(char **argv) {
    struct sockaddr_in to = address(argv);
    int clients = atoi(argv[4]), poll = epoll_create1(0);
    static int sockets[MOST];
    static double asked_at[MOST];
    static uint64_t last[MOST];
    clockid_t server;
    if (clients < 1 || clients > MOST || clock_getcpuclockid(atoi(argv[6]), &server))
        fail("1 to 1024 clients, and the server's pid");
    uint8_t request[REQUEST];
    memset(request, 1, sizeof request);
    for (int n = 0; n < clients; n++) {
        sockets[n] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (connect(sockets[n], (struct sockaddr *)&to, sizeof to))
            fail("connect");
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = n};
        epoll_ctl(poll, EPOLL_CTL_ADD, sockets[n], &wanted);
    }
    double began = now(CLOCK_MONOTONIC), ends = began + atof(argv[5]), at = began;
    double its = now(server), mine = now(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t answered = 0, lost = 0;
    for (int n = 0; n < clients; n++) {
        asked_at[n] = at;
        send(sockets[n], request, sizeof request, 0);
    }
    for (double looked = at; at < ends;) {
        struct epoll_event ready[256];
        int found = epoll_wait(poll, ready, 256, 5);
        at = now(CLOCK_MONOTONIC);
        for (int k = 0; k < found; k++) {
            int n = ready[k].data.fd;
            uint64_t position;
            if (recv(sockets[n], &position, sizeof position, 0) != sizeof position)
                continue;
            if (position <= last[n]) {
                fprintf(stderr, "position %" PRIu64 " came behind %" PRIu64 "\n", position, last[n]);
                exit(1);
            }
            last[n] = position;
            answered++;
            asked_at[n] = at;
            send(sockets[n], request, sizeof request, 0);
        }
        if (at - looked < 0.005)
            continue;
        looked = at;
        for (int n = 0; n < clients; n++)
            if (at - asked_at[n] > LATE_NS * 1e-9) { /* its position, if one was taken, is a hole */
                lost++;
                asked_at[n] = at;
                send(sockets[n], request, sizeof request, 0);
            }
    }
    printf("{\"requests\": %" PRIu64 ", \"took_s\": %.6f, \"client_cpu_s\": %.6f, \"server_cpu_s\": %.6f, \"late\": %" PRIu64
           "}\n", answered, at - began, now(CLOCK_PROCESS_CPUTIME_ID) - mine, now(server) - its, lost);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "server"))
        serve(argv);
    else if (argc == 7 && !strcmp(argv[1], "load"))
        return load(argv), 0;
    else
        fputs("sequdp server HOST PORT, or load HOST PORT CLIENTS SECONDS SERVER-PID\n", stderr);
    return 2;
}
