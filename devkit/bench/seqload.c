/* Load for a sequencer: how many positions it hands out, how quickly, and whether each is handed out once.

     seqload run ADDRESS --connections 32 [--depth 1] [--range 0] [--seconds 1] [--pid PID] POOL/NAME:EPOCH...
     seqload ping-pong CPU CPU

   A Python client costs as much as the server and hides it, and load generators for HTTP do not speak this protocol.
   `run` keeps `depth` requests under way on each connection, over the logs in turn. At the end it compares with the
   logs' tails: the positions of each log are exactly those between its tail before and its tail after, each once; they
   increase on each connection, and each lies behind all that had come, on any connection, when it was asked for. Where that does not hold it says so and ends with exit code 1: there is no figure.
   It prints one JSON object; times are in seconds, those of `server` are of the process PID.

   `ping-pong` prints how many nanoseconds a cache line takes from one processor to the other, the median of many. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, MOST_DEPTH = 256, MOST_LOGS = 16, MOST_FRAME = 300, READ = 64 << 10 };
enum { STEPS = 32, BUCKETS = 64 * STEPS }; /* of a histogram: 32 steps for each doubling of the nanoseconds */

typedef struct {
    uint8_t pool_and_name[MOST_FRAME];
    int names_size;
    uint64_t epoch, first, last; /* first is the tail before, last the largest position that came */
    uint64_t *bits;              /* of the positions behind `first` */
    uint64_t room, positions;
} Log;

typedef struct {
    int socket, held;
    uint64_t sent, answered; /* requests; the log of the n-th is n modulo the number of logs */
    uint64_t before[MOST_LOGS];
    int64_t times[MOST_DEPTH];
    uint64_t floors[MOST_DEPTH]; /* the largest position of the log that had come on any connection when it was asked */
    uint8_t rest[64];
} Connection;

static Log logs[MOST_LOGS];
static Connection connections[MOST_CONNECTIONS];
static uint64_t histogram[BUCKETS];
static uint64_t calls;
static int log_count, frame_size;
static uint8_t *frames; /* requests of the logs in turn, enough for a whole window from any log on */

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("seqload: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at))
        fail("clock: %s", strerror(errno));
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------ frames */

static int put_varint(uint8_t *at, uint64_t value) {
    int size = 0;
    for (; value > 0x7F; value >>= 7)
        at[size++] = (value & 0x7F) | 0x80;
    at[size++] = value;
    return size;
}

static int put_request(uint8_t *at, const Log *log, int next, unsigned range) {
    int size = 4;
    at[size++] = 0x08;
    size += put_varint(at + size, log->epoch);
    memcpy(at + size, log->pool_and_name, log->names_size);
    size += log->names_size;
    if (next && range) {
        at[size++] = 0x38;
        size += put_varint(at + size, range);
    }
    at[size++] = 0x20; /* last, so that a server which does not parse finds it */
    at[size++] = next;
    uint32_t body = htonl(size - 4);
    memcpy(at, &body, 4);
    return size;
}

/* Reads a varint; the reply's end was looked at by the caller's check of its length. */
static const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; at < end && shift < 64; shift += 7) {
        *value |= (uint64_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80)
            return at;
    }
    fail("a reply holds a number that is cut short");
}

typedef struct {
    uint64_t position, granted;
} Reply;

static Reply get_reply(const uint8_t *at, const uint8_t *end) {
    Reply made = {0, 0};
    while (at < end) {
        uint64_t tag, value;
        at = get_varint(at, end, &tag);
        at = get_varint(at, end, &value);
        if (tag == 0x08)
            made.position = value;
        else if (tag == 0x20)
            made.granted = value;
        else if (tag == 0x10 && value)
            fail("the server answered with status %" PRIu64, value);
    }
    return made;
}

/* ------------------------------------------------------------------------------------------- connections */

static int connected(const char *address) {
    int made;
    if (!strncmp(address, "unix:", 5)) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strncpy(to.sun_path, address + 5, sizeof to.sun_path - 1);
        made = socket(AF_UNIX, SOCK_STREAM, 0);
        if (made < 0 || connect(made, (struct sockaddr *)&to, sizeof to))
            fail("%s: %s", address, strerror(errno));
        return made;
    }
    char host[256];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host)
        fail("%s is no address", address);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, colon + 1, &wanted, &found);
    if (error)
        fail("%s: %s", address, gai_strerror(error));
    made = socket(found->ai_family, SOCK_STREAM, 0);
    if (made < 0 || connect(made, found->ai_addr, found->ai_addrlen))
        fail("%s: %s", address, strerror(errno));
    int on = 1;
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    freeaddrinfo(found);
    return made;
}

static void send_all(int socket, const uint8_t *at, size_t size) {
    while (size) {
        ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
        calls++;
        if (sent < 0)
            fail("send: %s", strerror(errno));
        at += sent;
        size -= sent;
    }
}

static void receive_all(int socket, uint8_t *at, size_t size) {
    if (recv(socket, at, size, MSG_WAITALL) != (ssize_t)size)
        fail("the server closed a connection");
}

static uint64_t tail(int socket, const Log *log) {
    uint8_t frame[MOST_FRAME + 64];
    send_all(socket, frame, put_request(frame, log, 0, 0));
    receive_all(socket, frame, 4);
    uint32_t size = ntohl(*(uint32_t *)frame);
    if (size > sizeof frame)
        fail("a reply of %u bytes", size);
    receive_all(socket, frame, size);
    return get_reply(frame, frame + size).position;
}

/* ------------------------------------------------------------------------------------------------ checks */

/* Notes positions first..first+count-1 of a log; each must be there for the first time. */
static void note(Log *log, uint64_t first, uint64_t count) {
    uint64_t from = first - log->first - 1, to = from + count;
    if (first <= log->first)
        fail("position %" PRIu64 " is not above the tail %" PRIu64 " of before", first, log->first);
    if (to >= log->room) {
        uint64_t room = log->room ? log->room : 1 << 20;
        while (room <= to)
            room *= 2;
        log->bits = realloc(log->bits, room / 8);
        if (!log->bits)
            fail("no memory for %" PRIu64 " positions", room);
        memset((uint8_t *)log->bits + log->room / 8, 0, (room - log->room) / 8);
        log->room = room;
    }
    log->positions += count;
    if (first + count - 1 > log->last)
        log->last = first + count - 1;
    while (from < to) {
        unsigned low = from % 64, some = to - from < 64 - low ? to - from : 64 - low;
        uint64_t mask = (some == 64 ? ~UINT64_C(0) : (UINT64_C(1) << some) - 1) << low;
        if (log->bits[from / 64] & mask)
            fail("a position about %" PRIu64 " was handed out twice", from + log->first + 1);
        log->bits[from / 64] |= mask;
        from += some;
    }
}

static void check_tail(const Log *log, uint64_t after) {
    if (log->positions != log->last - log->first || after != log->last)
        fail("%" PRIu64 " positions came, from %" PRIu64 " to %" PRIu64 ", and the tail is %" PRIu64, log->positions,
             log->first + 1, log->last, after);
}

static void note_latency(int64_t ns) {
    int octave = ns < STEPS ? 0 : 63 - __builtin_clzll(ns) - 4;
    int at = octave ? octave * STEPS + (int)(ns >> (octave - 1)) % STEPS : (int)ns;
    histogram[at < BUCKETS ? at : BUCKETS - 1]++;
}

static double percentile(double share, uint64_t all) {
    uint64_t seen = 0, wanted = share * all;
    for (int at = 0; at < BUCKETS; at++) {
        seen += histogram[at];
        if (seen > wanted) {
            int octave = at / STEPS;
            double value = octave ? (double)((at % STEPS) + STEPS) * (1ULL << (octave - 1)) : at;
            return value * 1e-9;
        }
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------------- run */

static void ask(Connection *of, int count, int64_t now) {
    for (int n = 0; n < count; n++) {
        of->times[(of->sent + n) % MOST_DEPTH] = now;
        of->floors[(of->sent + n) % MOST_DEPTH] = logs[(of->sent + n) % log_count].last;
    }
    int from = of->sent % log_count;
    of->sent += count;
    send_all(of->socket, frames + (size_t)from * frame_size, (size_t)count * frame_size);
}

/* Reads what is there, and returns how many requests it answers. */
static int take(Connection *of, int64_t now) {
    static uint8_t data[64 + READ];
    memcpy(data, of->rest, of->held);
    ssize_t size = recv(of->socket, data + of->held, READ, MSG_DONTWAIT);
    calls++;
    if (size < 0 && errno == EAGAIN)
        return 0;
    if (size <= 0)
        fail("the server closed a connection");
    const uint8_t *at = data, *end = data + of->held + size;
    int answered = 0;
    while (end - at >= 4) {
        uint32_t body;
        memcpy(&body, at, 4);
        body = ntohl(body);
        if (body > 40)
            fail("a reply of %u bytes", body);
        if (end - at < 4 + (ssize_t)body)
            break;
        Reply reply = get_reply(at + 4, at + 4 + body);
        at += 4 + body;
        int number = of->answered % log_count;
        if (of->answered >= of->sent)
            fail("a reply that was not asked for");
        if (reply.position <= of->before[number])
            fail("position %" PRIu64 " came behind %" PRIu64, reply.position, of->before[number]);
        if (reply.position <= of->floors[of->answered % MOST_DEPTH])
            fail("position %" PRIu64 " was asked for when %" PRIu64 " had come", reply.position,
                 of->floors[of->answered % MOST_DEPTH]);
        uint64_t count = reply.granted ? reply.granted : 1;
        of->before[number] = reply.position + count - 1;
        note(&logs[number], reply.position, count);
        note_latency(now - of->times[of->answered % MOST_DEPTH]);
        of->answered++;
        answered++;
    }
    of->held = end - at;
    memcpy(of->rest, at, of->held);
    return answered;
}

static void parse_log(const char *text, Log *log) {
    const char *slash = strchr(text, '/'), *colon = strrchr(text, ':');
    if (!slash || !colon || colon < slash || colon - text > 250)
        fail("%s is not POOL/NAME:EPOCH", text);
    int pool = slash - text, name = colon - slash - 1;
    uint8_t *at = log->pool_and_name;
    *at++ = 0x12;
    at += put_varint(at, pool);
    memcpy(at, text, pool);
    at += pool;
    *at++ = 0x1a;
    at += put_varint(at, name);
    memcpy(at, slash + 1, name);
    log->names_size = at + name - log->pool_and_name;
    log->epoch = strtoull(colon + 1, NULL, 10);
}

static void run(int argc, char **argv) {
    int count = 1, depth = 1, place = 3;
    unsigned range = 0;
    double seconds = 1;
    clockid_t server = CLOCK_REALTIME;
    int has_server = 0;
    for (; place + 1 < argc && !strncmp(argv[place], "--", 2); place += 2) {
        const char *option = argv[place], *value = argv[place + 1];
        if (!strcmp(option, "--connections"))
            count = atoi(value);
        else if (!strcmp(option, "--depth"))
            depth = atoi(value);
        else if (!strcmp(option, "--range"))
            range = atoi(value);
        else if (!strcmp(option, "--seconds"))
            seconds = atof(value);
        else if (!strcmp(option, "--pid"))
            has_server = !clock_getcpuclockid(atoi(value), &server);
        else
            fail("unknown option %s", option);
    }
    if (count < 1 || count > MOST_CONNECTIONS || depth < 1 || depth > MOST_DEPTH || place == argc ||
        argc - place > MOST_LOGS)
        fail("1 to %d connections, a depth of 1 to %d, 1 to %d logs", MOST_CONNECTIONS, MOST_DEPTH, MOST_LOGS);
    for (; place < argc; place++)
        parse_log(argv[place], &logs[log_count++]);

    uint8_t one[MOST_FRAME + 64];
    frame_size = put_request(one, &logs[0], 1, range);
    frames = malloc((size_t)(depth + log_count) * frame_size);
    for (int n = 0; n < depth + log_count; n++)
        if (put_request(one, &logs[n % log_count], 1, range) == frame_size)
            memcpy(frames + (size_t)n * frame_size, one, frame_size);
        else
            fail("the names and epochs of the logs must be of one length");

    int control = connected(argv[2]), poll = epoll_create1(0);
    for (int n = 0; n < count; n++) {
        connections[n].socket = connected(argv[2]);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &connections[n]};
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[n].socket, &wanted);
    }
    for (int n = 0; n < log_count; n++) {
        logs[n].first = logs[n].last = tail(control, &logs[n]);
        logs[n].room = 0;
    }

    calls = 0;
    int64_t server_began = has_server ? now_ns(server) : 0, mine_began = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    int64_t began = now_ns(CLOCK_MONOTONIC), ends = began + (int64_t)(seconds * 1e9), now = began;
    uint64_t requests = 0, under_way = (uint64_t)count * depth;
    for (int n = 0; n < count; n++)
        ask(&connections[n], depth, now);
    struct epoll_event ready[256];
    while (under_way) {
        int found = epoll_wait(poll, ready, 256, 30000);
        calls++;
        if (found <= 0)
            fail("no reply within 30 s");
        for (int n = 0; n < found; n++) {
            Connection *of = ready[n].data.ptr;
            now = now_ns(CLOCK_MONOTONIC);
            int answered = take(of, now);
            requests += answered;
            if (now < ends && answered)
                ask(of, answered, now);
            else
                under_way -= answered;
        }
    }
    double took = (now_ns(CLOCK_MONOTONIC) - began) * 1e-9;
    double mine = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - mine_began) * 1e-9;
    double its = has_server ? (now_ns(server) - server_began) * 1e-9 : 0;
    uint64_t positions = 0;
    for (int n = 0; n < log_count; n++) {
        check_tail(&logs[n], tail(control, &logs[n]));
        positions += logs[n].positions;
    }
    printf("{\"requests\": %" PRIu64 ", \"positions\": %" PRIu64 ", \"took_s\": %.6f, \"client_cpu_s\": %.6f, "
           "\"server_cpu_s\": %.6f, \"client_calls\": %" PRIu64 ", \"p50_s\": %.9f, \"p99_s\": %.9f, "
           "\"p999_s\": %.9f}\n",
           requests, positions, took, mine, its, calls, percentile(0.5, requests), percentile(0.99, requests),
           percentile(0.999, requests));
}

/* --------------------------------------------------------------------------------------------- ping-pong */

enum { SAMPLES = 64, TRIPS = 500 };
static _Alignas(128) atomic_uint ball;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("processor %d: %s", cpu, strerror(errno));
}

static void *pong(void *cpu) {
    pin(*(int *)cpu);
    for (unsigned n = 0; n < SAMPLES * TRIPS; n++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * n + 1)
            ;
        atomic_store_explicit(&ball, 2 * n + 2, memory_order_release);
    }
    return NULL;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void ping_pong(int one, int other) {
    pthread_t thread;
    int64_t took[SAMPLES];
    if (pthread_create(&thread, NULL, pong, &other))
        fail("no thread");
    pin(one);
    for (unsigned sample = 0, n = 0; sample < SAMPLES; sample++) {
        int64_t began = now_ns(CLOCK_MONOTONIC);
        for (unsigned trip = 0; trip < TRIPS; trip++, n++) {
            atomic_store_explicit(&ball, 2 * n + 1, memory_order_release);
            while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * n + 2)
                ;
        }
        took[sample] = now_ns(CLOCK_MONOTONIC) - began;
    }
    pthread_join(thread, NULL);
    qsort(took, SAMPLES, sizeof *took, by_size);
    printf("%.0f\n", took[SAMPLES / 2] / (2.0 * TRIPS));
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "ping-pong"))
        ping_pong(atoi(argv[2]), atoi(argv[3]));
    else if (argc > 3 && !strcmp(argv[1], "run"))
        run(argc, argv);
    else
        fail("run ADDRESS [OPTION VALUE]... POOL/NAME:EPOCH..., or ping-pong CPU CPU");
    return 0;
}
