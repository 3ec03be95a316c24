# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`sequencer.Core` once more, for a C compiler. Change them together; both have the same tests.

A request is parsed where it lies, its counter is looked up by pool and name, and the reply is written behind the others.
Clients repeat the same bytes, so `Core._known` has frames that were read, with their counters. Each has one place there,
by its bytes; a frame with the same place takes it over.

All reads are checked against the end of a request's body before they are made.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from libc.errno cimport EAGAIN, EINTR, errno

from remora.codec import sequencer as plain
from remora.model.log import LogName

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_recv "recv"(int socket, void* into, size_t most, int flags)
    ssize_t c_send "send"(int socket, const void* of, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd

    struct epoll_event:
        uint32_t events
        epoll_data_t data

    int epoll_wait(int epoll, epoll_event* events, int most, int timeout)

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <time.h>

    /* An epoch of a log that several processes hand out, in a cache line of its own. The order of the steps, and why
       it holds, is in docs/decisions/sequencer-workers.md; every access is sequentially consistent but for `requests`.
     */
    typedef struct {
        _Alignas(64) _Atomic uint64_t position;
        _Atomic uint64_t bound, is_dead;
        _Atomic int64_t trusted_ns;
        _Atomic uint64_t requests;
    } Cell;

    enum { TAKEN, WAITS, GONE };
    static const uint64_t MOST_POSITION = INT64_MAX;

    static int64_t boottime_ns(void) {
        struct timespec at;
        clock_gettime(CLOCK_BOOTTIME, &at);
        return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
    }

    static inline int is_gone(Cell *cell, int64_t now_ns) {
        return atomic_load(&cell->is_dead) || now_ns >= atomic_load(&cell->trusted_ns);
    }

    static inline uint64_t room_of(Cell *cell) {
        uint64_t position = atomic_load(&cell->position), bound = atomic_load(&cell->bound);
        return bound > position ? bound - position : 0;
    }

    /* Look, add, look again: an add that the second look throws away is a hole. */
    static inline int take(Cell *cell, uint64_t count, int64_t now_ns, uint64_t *before) {
        if (is_gone(cell, now_ns))
            return GONE;
        if (room_of(cell) < count)
            return atomic_load(&cell->bound) < MOST_POSITION ? WAITS : GONE;
        *before = atomic_fetch_add(&cell->position, count);
        if (atomic_load(&cell->is_dead))
            return GONE;
        uint64_t bound = atomic_load(&cell->bound);
        if (*before > bound || bound - *before < count)
            return WAITS;
        atomic_fetch_add_explicit(&cell->requests, 1, memory_order_relaxed);
        return TAKEN;
    }

    static uint64_t last_of(Cell *cell) {
        uint64_t position = atomic_load(&cell->position), bound = atomic_load(&cell->bound);
        return position < bound ? position : bound;
    }

    static uint64_t fence(Cell *cell) {
        atomic_store(&cell->is_dead, 1);
        return last_of(cell);
    }

    static void begin(Cell *cell, uint64_t position, uint64_t bound) {
        atomic_store(&cell->position, position);
        atomic_store(&cell->bound, bound);
        atomic_store(&cell->trusted_ns, 0);
        atomic_store(&cell->requests, 0);
        atomic_store(&cell->is_dead, 0);
    }

    static void set_trusted(Cell *cell, int64_t until_ns) { atomic_store(&cell->trusted_ns, until_ns); }
    static void set_bound(Cell *cell, uint64_t bound) { atomic_store(&cell->bound, bound); }
    static uint64_t requests_of(Cell *cell) { return atomic_load(&cell->requests); }
    static uint64_t bound_of(Cell *cell) { return atomic_load(&cell->bound); }
    """
    ctypedef struct Cell:
        pass
    int TAKEN, WAITS, GONE
    uint64_t MOST_POSITION
    int64_t boottime_ns() noexcept nogil
    bint is_gone(Cell* cell, int64_t now_ns) noexcept nogil
    uint64_t room_of(Cell* cell) noexcept nogil
    int take(Cell* cell, uint64_t count, int64_t now_ns, uint64_t* before) noexcept nogil
    uint64_t last_of(Cell* cell) noexcept nogil
    uint64_t fence(Cell* cell) noexcept nogil
    void begin(Cell* cell, uint64_t position, uint64_t bound) noexcept nogil
    void set_trusted(Cell* cell, int64_t until_ns) noexcept nogil
    void set_bound(Cell* cell, uint64_t bound) noexcept nogil
    uint64_t requests_of(Cell* cell) noexcept nogil
    uint64_t bound_of(Cell* cell) noexcept nogil

cdef enum:
    READ = 64 << 10
    MOST_READY = 512
    MOST_UNSENT = 1 << 20
    MOST_FRAME_BYTES = 1024
    MOST_COUNT = 100
    MOST_PACKED = 128 << 10
    NESTED = 30
    MOST_REPLY_BYTES = 4 + 1 + 10 + (1 + 2 + 10 * MOST_COUNT) + (1 + 5) + (1 + 10)
    FIRST_ROOM = 64 << 10
    KNOWN_BITS = 6
    KNOWN = 1 << KNOWN_BITS

cdef object SequencerReplies = plain.SequencerReplies
cdef object OK_STALE = plain.Result.STALE_EPOCH
cdef object AHEAD = plain.Result.AHEAD
cdef object MISSED = plain.Result.INIT_LOG
cdef object TAIL = plain.Result.TAIL
cdef bytes INIT_LOG = plain.INIT_LOG
cdef bytes STALE_EPOCH = plain.STALE_EPOCH


cdef struct Request:
    uint64_t epoch
    const uint8_t* pool
    const uint8_t* name
    Py_ssize_t pool_size
    Py_ssize_t name_size
    bint hands_out
    uint32_t count
    uint32_t range
    bint current


cdef struct Known:
    Py_ssize_t size
    void* counter
    uint8_t frame[4 + MOST_FRAME_BYTES]


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    bint is_wrong


# ------------------------------------------------------------------------------------------------ requests


cdef inline uint64_t varint(Reader* reader, int most) noexcept nogil:
    """A varint; it need not be minimal, and bits beyond 64 are dropped."""
    cdef uint64_t value = 0
    cdef int read = 0
    cdef uint8_t byte
    while reader.at < reader.end and read < most:
        byte = reader.at[0]
        reader.at += 1
        value |= <uint64_t>(byte & 0x7F) << (7 * read)
        if byte < 0x80:
            return value
        read += 1
    reader.is_wrong = True
    return 0


cdef inline uint64_t short_varint(Reader* reader) noexcept nogil:
    """A tag or a length: five bytes at most, and less than 2 to the 32nd."""
    cdef uint64_t value = varint(reader, 5)
    if value >> 32:
        reader.is_wrong = True
    return value


cdef inline uint64_t tag(Reader* reader) noexcept nogil:
    cdef uint64_t value = short_varint(reader)
    if value < 8:
        reader.is_wrong = True  # field number 0
    return value


cdef inline Py_ssize_t length(Reader* reader) noexcept nogil:
    cdef uint64_t size = short_varint(reader)
    if size > <uint64_t>(reader.end - reader.at):
        reader.is_wrong = True
        return 0
    return size


cdef void skip(Reader* reader, uint64_t field, int wire, int nested) noexcept nogil:
    """Go behind a field of any type."""
    cdef Py_ssize_t size
    cdef uint64_t inner
    if wire == 0:
        varint(reader, 10)
    elif wire == 1 or wire == 5:
        size = 8 if wire == 1 else 4
        if reader.end - reader.at < size:
            reader.is_wrong = True
        else:
            reader.at += size
    elif wire == 2:
        size = length(reader)
        reader.at += size
    elif wire == 3 and nested:
        while reader.at < reader.end and not reader.is_wrong:
            inner = tag(reader)
            if reader.is_wrong:
                return
            if inner & 7 == 4:
                if inner >> 3 != field:
                    break
                return
            skip(reader, inner >> 3, inner & 7, nested - 1)
        reader.is_wrong = True
    else:
        reader.is_wrong = True


cdef bint parse(const uint8_t* body, Py_ssize_t size, Request* request) noexcept nogil:
    """Whether a body is a request, as `sequencer.parse_request` reads it."""
    cdef Reader reader
    cdef uint64_t key, field, value
    cdef int wire
    cdef bint has_epoch = False, has_next = False, has_count = False, has_range = False
    cdef Py_ssize_t text
    reader.at, reader.end, reader.is_wrong = body, body + size, False
    request.pool = request.name = NULL
    request.count = request.range = 0
    request.current = request.hands_out = False
    while reader.at < reader.end:
        key = tag(&reader)
        if reader.is_wrong:
            return False
        field, wire = key >> 3, key & 7
        if wire == 0:
            value = varint(&reader, 10)
            if field == 1:
                request.epoch, has_epoch = value, True
            elif field == 4:
                request.hands_out, has_next = value != 0, True
            elif field == 5:
                request.count, has_count = <uint32_t>value, True
            elif field == 7:
                request.range, has_range = <uint32_t>value, True
            elif field == 8:
                request.current = value != 0
        elif wire == 2:
            text = length(&reader)
            if field == 2:
                request.pool, request.pool_size = reader.at, text
            elif field == 3:
                request.name, request.name_size = reader.at, text
            reader.at += text
        else:
            skip(&reader, field, wire, NESTED)
        if reader.is_wrong:
            return False
    if not has_epoch or not has_next or request.pool == NULL or request.name == NULL:
        return False
    if has_count and not 1 <= request.count <= <uint32_t>(MOST_COUNT if request.hands_out else 1):
        return False
    return not (has_range and request.range == 0 and request.hands_out)


# ------------------------------------------------------------------------------------------------- replies


cdef inline uint8_t* put_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>((value & 0x7F) | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t* end_frame(uint8_t* began, uint8_t* at) noexcept nogil:
    """Write the length in front of a body that ends here."""
    cdef uint32_t size = <uint32_t>(at - began - 4)
    began[0], began[1], began[2], began[3] = size >> 24, size >> 16 & 0xFF, size >> 8 & 0xFF, size & 0xFF
    return at


cdef inline uint8_t* put_position(uint8_t* at, uint64_t position) noexcept nogil:
    """The reply of one position; its body has less than 128 bytes."""
    cdef uint8_t* end
    at[0] = at[1] = at[2] = 0
    at[4] = 0x08
    end = put_varint(at + 5, position)
    at[3] = <uint8_t>(end - at - 4)
    return end


# ------------------------------------------------------------------------------------------------ counters


cdef class Cells:
    """Epochs of logs in memory that several processes map: see docs/decisions/sequencer-workers.md."""

    cdef readonly int count
    cdef Cell* _cells
    cdef const uint8_t[::1] _memory

    def __init__(self, memory):
        """`memory` can be written, begins at a page, and has 64 bytes for each cell."""
        self._memory = memory
        self._cells = <Cell*>&self._memory[0]
        self.count = <int>(self._memory.shape[0] // sizeof(Cell))

    cdef Cell* _at(self, int number) except NULL:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return &self._cells[number]

    def begin(self, int number, uint64_t position, uint64_t bound):
        """An epoch begins in a cell that no process knows; it is trusted by nobody yet."""
        begin(self._at(number), position, bound)

    def trust(self, int number, double seconds):
        """Positions may be handed out for so long from now, by a clock that goes on while the host sleeps."""
        set_trusted(self._at(number), boottime_ns() + <int64_t>(seconds * 1e9))

    def raise_bound(self, int number, uint64_t bound):
        """More positions may be handed out."""
        set_bound(self._at(number), bound)

    def fence(self, int number):
        """End an epoch for every process, and return its last position: none above it is ever handed out."""
        return fence(self._at(number))

    def position(self, int number):
        """The last position that was taken."""
        return last_of(self._at(number))

    def bound(self, int number):
        """The last position that may be handed out."""
        return bound_of(self._at(number))

    def requests(self, int number):
        """The requests that took positions."""
        return requests_of(self._at(number))


cdef class Counter:
    """As `sequencer.Counter`; with a `cell`, positions are taken there and the rest is as it was at the last look."""

    cdef readonly object log
    cdef Cell* cell
    cdef Cells cells
    cdef readonly int number
    cdef readonly uint64_t epoch
    cdef public uint64_t position
    cdef public uint64_t bound
    cdef public uint64_t requests

    def __init__(self, log, epoch, position, bound):
        self.log = log
        self.epoch = epoch
        self.position = position
        self.bound = bound

    cdef inline uint64_t room(self) noexcept:
        if self.cell != NULL:
            return room_of(self.cell)
        return self.bound - self.position if self.bound > self.position else 0

    cdef inline int take(self, uint64_t count, int64_t now_ns) noexcept:
        """Move the position on by so many, if they may be handed out; else WAITS for the bound, or they are GONE: the epoch
        is over, or the log is at its end, whose bound is not raised."""
        cdef uint64_t before = 0
        cdef int taken
        if self.cell != NULL:
            taken = take(self.cell, count, now_ns, &before)
            self.position = before + count
            return taken
        if self.room() < count:
            return WAITS if self.bound < MOST_POSITION else GONE
        self.position += count
        return TAKEN


cdef inline Py_ssize_t place_of(const uint8_t* frame, Py_ssize_t size) noexcept nogil:
    """The place among the frames that are known for one of eight bytes at least."""
    cdef uint64_t word, mixed = 0
    cdef Py_ssize_t at = 0
    while at + 8 < size:
        memcpy(&word, frame + at, 8)
        mixed = (mixed ^ word) * <uint64_t>0x9E3779B97F4A7C15
        mixed ^= mixed >> 32
        at += 8
    memcpy(&word, frame + size - 8, 8)
    return <Py_ssize_t>((mixed ^ word) * <uint64_t>0x9E3779B97F4A7C15 >> (64 - KNOWN_BITS))


cdef class Core:
    """As `sequencer.Core`."""

    cdef object _on_miss
    cdef uint64_t _most_range
    cdef uint64_t _low_room
    cdef readonly dict counters
    cdef dict _by_key
    cdef readonly set low
    cdef public int client
    cdef readonly dict results
    cdef uint8_t* _out
    cdef Py_ssize_t _room
    cdef Known _known[KNOWN]
    cdef Known* _last
    """Requests that handed out one position, with their counters, which `counters` holds; and the last one that did. A
    size of 0 is none. A change of what is served empties them."""

    cdef uint8_t* _read
    cdef uint8_t* _plain
    cdef int _plain_room
    cdef object _waits
    cdef bint _shares
    cdef int64_t _now_ns

    def __cinit__(self):
        self._out = self._read = self._plain = NULL
        self._plain_room = 0
        self._shares = False

    def __init__(self, on_miss, most_range=plain.MOST_RANGE, bound_room=0):
        self._on_miss = on_miss
        self._most_range = most_range
        self._low_room = bound_room
        self.counters, self._by_key = {}, {}
        self.low = set()
        self.results = dict.fromkeys(plain.Result, 0)
        self._room = 0
        self._forget_frames()
        self._reserve(0, FIRST_ROOM)

    def __dealloc__(self):
        PyMem_Free(self._out)
        PyMem_Free(self._read)
        PyMem_Free(self._plain)

    def serve(self, log, epoch, position, bound):
        """As `sequencer.Core.serve`."""
        self.forget(log)
        counter = Counter(log, epoch, position, bound)
        self.counters[log] = self._by_key[_key_of(log)] = counter

    def share(self, log, epoch, Cells cells not None, int number):
        """Hand out the positions of a log from a cell, as other processes do."""
        self.serve(log, epoch, 0, 0)
        cdef Counter counter = self.counters[log]
        counter.cell, counter.cells, counter.number = cells._at(number), cells, number
        self._shares = True

    def forget(self, log):
        """As `sequencer.Core.forget`."""
        self._forget_frames()
        self.low.discard(log)
        self._by_key.pop(_key_of(log), None)
        return self.counters.pop(log, None)

    def raise_bound(self, log, epoch, bound):
        """As `sequencer.Core.raise_bound`."""
        counter = self.counters.get(log)
        if counter is not None and counter.epoch == epoch:
            counter.bound = max(bound, counter.bound)
            self.low.discard(log)

    cdef void _forget_frames(self) noexcept:
        cdef int n
        for n in range(KNOWN):
            self._known[n].size = 0
        self._last = &self._known[0]

    cdef int _reserve(self, Py_ssize_t used, Py_ssize_t more) except -1:
        """Have room for more bytes of replies behind those that are used."""
        cdef Py_ssize_t room
        cdef void* made
        if used + more <= self._room:
            return 0
        room = max(2 * self._room, used + more)
        made = PyMem_Realloc(self._out, room)
        if made == NULL:
            raise MemoryError
        self._out, self._room = <uint8_t*>made, room
        return 0

    def answer(self, bytes data not None):
        """As `sequencer.Core.answer`."""
        cdef Py_ssize_t used = 0, consumed = 0
        cdef bint closes = self._answer(
            <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &used, &consumed
        )
        return self._found(0, used, consumed, closes)

    cdef object _found(self, Py_ssize_t begin, Py_ssize_t used, Py_ssize_t consumed, bint closes):
        """The replies that was written between two places, and the log whose bound is in the way."""
        replies = PyBytes_FromStringAndSize(<char*>self._out + begin, used - begin)
        waits, self._waits = self._waits, None
        return tuple.__new__(SequencerReplies, (replies, consumed, closes, waits))

    cdef int _answer(
        self, const uint8_t* begin, Py_ssize_t bytes_, Py_ssize_t* used, Py_ssize_t* consumed
    ) except -1:
        """Write the replies to whole frames behind what is used, and return whether the connection is to be closed.

        Where a bound is in the way, `_waits` is its log.
        """
        cdef const uint8_t* at = begin
        cdef const uint8_t* end = begin + bytes_
        cdef Py_ssize_t frame, before, packed = 0
        cdef uint32_t size
        cdef Request request
        cdef Counter counter
        cdef Known* known
        cdef bint closes = False
        cdef int taken
        self._waits = None
        if self._shares:
            self._now_ns = boottime_ns()
        while end - at >= 4 and packed <= MOST_PACKED:
            known = self._find(at, end)
            if known != NULL:
                counter = <Counter>known.counter
                if used[0] + MOST_REPLY_BYTES > self._room:
                    self._reserve(used[0], MOST_REPLY_BYTES)
                taken = counter.take(1, self._now_ns)
                if taken == WAITS:
                    self._wait_for(counter)
                    break
                if taken == GONE:
                    at += known.size
                    self._refuse(INIT_LOG, used)
                    self._tell(counter.log, MISSED)
                    continue
                counter.requests += 1
                used[0] = put_position(self._out + used[0], counter.position) - self._out
                at += known.size
                if counter.room() < self._low_room:
                    self.low.add(counter.log)
                continue
            size = <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]
            if size == 0 or size > MOST_FRAME_BYTES:
                closes = True
                break
            frame = 4 + size
            if frame > end - at:
                break
            if not parse(at + 4, size, &request):
                closes = True
                break
            self._reserve(used[0], MOST_REPLY_BYTES)
            before = used[0]
            frame = self._reply(at, frame, &request, used)
            if frame == 0:
                break
            at += frame
            if request.count > 1:
                packed += used[0] - before
        consumed[0] = at - begin
        return closes

    cdef inline Known* _find(self, const uint8_t* at, const uint8_t* end) noexcept:
        """The known frame that stands here, if any does; there are four bytes at least."""
        cdef Known* known = self._last
        cdef Py_ssize_t size = known.size
        if size and size <= end - at and memcmp(at, known.frame, size) == 0:
            return known
        size = 4 + (<Py_ssize_t>at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3])
        if size < 8 or size > end - at or size > 4 + MOST_FRAME_BYTES:
            return NULL
        known = &self._known[place_of(at, size)]
        if known.size != size or memcmp(at, known.frame, size) != 0:
            return NULL
        self._last = known
        return known

    cdef void _remember(self, const uint8_t* frame, Py_ssize_t size, Counter counter) noexcept:
        """Know a request that handed out one position; it has more than eight bytes."""
        cdef Known* known = &self._known[place_of(frame, size)]
        memcpy(known.frame, frame, size)
        known.size, known.counter = size, <void*>counter
        self._last = known

    # ---------------------------------------------------------------------------------------- sockets

    def mark(self, int number, bint is_plain):
        """Say whether `turn` reads and answers the socket of this descriptor by itself."""
        cdef int room
        cdef void* made
        if number >= self._plain_room:
            room = max(2 * self._plain_room, number + 1024)
            made = PyMem_Realloc(self._plain, room)
            if made == NULL:
                raise MemoryError
            self._plain = <uint8_t*>made
            memset(self._plain + self._plain_room, 0, room - self._plain_room)
            self._plain_room = room
        self._plain[number] = is_plain

    def turn(self, int epoll):
        """Read and answer all marked sockets that are ready in an epoll instance, then send each its replies.

        Returns what is left for the caller: (descriptor, events, data, answer). `data` is None where nothing was read,
        and empty where the client has sent all, or where it does not take all replies, which are in `answer`. No events
        are an error of the socket.
        """
        cdef epoll_event ready[MOST_READY]
        cdef int sockets[MOST_READY]
        cdef Py_ssize_t begins[MOST_READY + 1]
        cdef Py_ssize_t used = 0, consumed = 0, size, began
        cdef int found, n, number, pending = 0
        cdef bint closes
        cdef list left = []
        if self._read == NULL:
            self._read = <uint8_t*>PyMem_Realloc(NULL, READ)
            if self._read == NULL:
                raise MemoryError
        found = epoll_wait(epoll, ready, MOST_READY, 0)
        for n in range(found):
            number = ready[n].data.fd
            if number >= self._plain_room or not self._plain[number]:
                left.append((number, ready[n].events, None, None))
                continue
            size = c_recv(number, self._read, READ, MSG_DONTWAIT)
            if size < 0:
                if errno != EAGAIN and errno != EINTR:
                    left.append((number, 0, None, None))
                continue
            if size == 0:
                left.append((number, ready[n].events, b"", None))
                continue
            began = used
            self.client = number
            closes = self._answer(self._read, size, &used, &consumed)
            if consumed != size or closes or self._waits is not None:
                data = PyBytes_FromStringAndSize(<char*>self._read, size)
                left.append((number, ready[n].events, data, self._found(began, used, consumed, closes)))
                used = began
                continue
            sockets[pending], begins[pending] = number, began
            pending += 1
            if used > MOST_UNSENT:
                begins[pending] = used
                self._send(sockets, begins, pending, left)
                used, pending = 0, 0
        begins[pending] = used
        self._send(sockets, begins, pending, left)
        return left

    cdef int _send(self, int* sockets, Py_ssize_t* begins, int pending, list left) except -1:
        cdef int n
        cdef Py_ssize_t sent, size
        for n in range(pending):
            size = begins[n + 1] - begins[n]
            sent = c_send(sockets[n], self._out + begins[n], size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    left.append((sockets[n], 0, None, None))
                    continue
                sent = 0
            if sent < size:
                left.append((sockets[n], 1, b"", self._found(begins[n] + sent, begins[n + 1], 0, False)))
        return 0

    cdef Py_ssize_t _reply(self, const uint8_t* at, Py_ssize_t frame, Request* request, Py_ssize_t* used) except -1:
        """Write the reply to one request, and return its size; 0 where its log's bound is in the way."""
        cdef Counter counter = self._by_key.get(_key(request))
        cdef uint64_t epoch = 0, count, room, n
        cdef int taken
        cdef uint8_t* out = self._out + used[0]
        cdef uint8_t* began = out
        if counter is None:
            self._refuse(INIT_LOG, used)
            self._miss(request, MISSED)
            return frame
        if not request.current and request.epoch != counter.epoch:
            if request.epoch < counter.epoch:
                self.results[OK_STALE] += 1
                self._refuse(STALE_EPOCH, used)
            else:
                self._refuse(INIT_LOG, used)
                self._miss(request, AHEAD)
            return frame
        if not request.hands_out:
            if counter.cell != NULL:
                counter.position = last_of(counter.cell)
                if is_gone(counter.cell, self._now_ns):
                    self._refuse(INIT_LOG, used)
                    self._miss(request, MISSED)
                    return frame
            self.results[TAIL] += 1
            out = put_position(out, counter.position)
            used[0] = self._end(began, out, request, counter, 0)
            return frame
        room, count = counter.room(), request.count or 1
        if request.range:
            count = min(<uint64_t>request.range, min(self._most_range, max(room, <uint64_t>1)))
        taken = counter.take(count, self._now_ns)
        if taken == WAITS:
            self._wait_for(counter)
            return 0
        if taken == GONE:
            self._refuse(INIT_LOG, used)
            self._miss(request, MISSED)
            return frame
        counter.requests += 1
        n = counter.position - count + 1
        if counter.room() < self._low_room:
            self.low.add(counter.log)
        if request.range or count == 1:
            out = put_position(out, n)
            used[0] = self._end(began, out, request, counter, count if request.range else 0)
            if not (request.range or request.count or request.current):
                self._remember(at, frame, counter)
            return frame
        out += 4
        out[0] = 0x0A
        out = put_varint(out + 1, _packed_size(n, count))
        while n <= counter.position:
            out = put_varint(out, n)
            n += 1
        used[0] = self._end(began, out, request, counter, 0)
        return frame

    cdef Py_ssize_t _end(self, uint8_t* began, uint8_t* at, Request* request, Counter counter, uint64_t granted):
        """Write what was asked for besides, and the length; returns how many bytes of replies are used now."""
        if granted:
            at[0] = 0x20
            at = put_varint(at + 1, granted)
        if request.current:
            at[0] = 0x28
            at = put_varint(at + 1, counter.epoch)
        return end_frame(began, at) - self._out

    cdef int _refuse(self, bytes made, Py_ssize_t* used) except -1:
        memcpy(self._out + used[0], PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))
        used[0] += PyBytes_GET_SIZE(made)
        return 0

    cdef int _miss(self, Request* request, object result) except -1:
        return self._tell(LogName(request.pool[: request.pool_size], request.name[: request.name_size]), result)

    cdef int _tell(self, object log, object result) except -1:
        self.results[result] += 1
        self._on_miss(log, result)
        return 0

    cdef int _wait_for(self, Counter counter) except -1:
        """A bound is in the way, which another process may have reached."""
        self._waits = counter.log
        if counter.cell != NULL:
            self.low.add(counter.log)
        return 0


cdef Py_ssize_t _packed_size(uint64_t first, uint64_t count) noexcept:
    """Bytes of the varints of several positions."""
    cdef Py_ssize_t size = 0
    cdef uint64_t n, left
    for n in range(first, first + count):
        left = n
        size += 1
        while left > 0x7F:
            size += 1
            left >>= 7
    return size


cdef bytes _key(Request* request):
    """What a log is found by: the length of its pool, the pool, and the name."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 + request.pool_size + request.name_size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(made)
    at[0], at[1] = request.pool_size >> 8, request.pool_size & 0xFF
    memcpy(at + 2, request.pool, request.pool_size)
    memcpy(at + 2 + request.pool_size, request.name, request.name_size)
    return made


def _key_of(log):
    pool, name = log
    return len(pool).to_bytes(2, "big") + pool + name
