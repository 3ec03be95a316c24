# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`rendering_plain.records` for regions that are known, `columns.py`, `checksums.py`, `murmur2.partitions`, and
`in_batches` and `encode_events` of `kafka_records.py` once more, for a C compiler. Change them together; both have the same tests.

Records are kept as rows that point into few large pieces of memory, and become a Record each only where somebody looks
at single ones. As objects of their own, seven for an event, they would cost more than all that is computed here: with
megabytes of them under way no processor's cache holds what is touched when they are made, counted and let go.

All reads are checked against the entry's end before they are made. Entries are little-endian whatever the machine is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from remora.codec import checksums as plain_checksums
from remora.codec import columns, kafka_records, rendering_plain, trace_context
from remora.model.errors import CodecError
from remora.model.record import Record

cdef enum:
    MOST_PIECES = 32
    CHUNK_BYTES = 256 << 10  # of records' texts, or of one record where that has more
    MOST_BYTES = 0x7FFFFFFF  # of one record's texts

cdef int64_t NS = 1_000_000_000

cdef const char* SIZE = b'","size":'
cdef const char* ETAG = b',"eTag":"'
cdef const char* VERSION_ID = b'","versionId":"'
cdef const char* SEQUENCER = b'","sequencer":"'
cdef const char* METADATA = b'","metadata":['
cdef const char* TAGS = b'],"tags":['
cdef const char* EVENT_ID = b']}},"eventId":"'
cdef const char* KEY = b'{"key":"'
cdef const char* VAL = b'","val":"'
cdef const char* END = b'"}'


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size


cdef struct Pieces:
    Text each[MOST_PIECES]
    int count
    Py_ssize_t size


cdef inline void add(Pieces* pieces, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    pieces.each[pieces.count].at = at
    pieces.each[pieces.count].size = size
    pieces.count += 1
    pieces.size += size


cdef inline void add_bytes(Pieces* pieces, bytes text) noexcept:
    add(pieces, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline uint32_t u32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint64_t u64(const uint8_t* at) noexcept nogil:
    return <uint64_t>u32(at) | <uint64_t>u32(at + 4) << 32


cdef inline Py_ssize_t behind_guessed(const uint8_t* d, Py_ssize_t n, Py_ssize_t p, int strings) noexcept nogil:
    """Behind so many strings, by the lowest byte of each length; -1 when that is behind everything."""
    while strings:
        if p >= n:
            return -1
        p += 4 + d[p]
        strings -= 1
    return p if p <= n else -1


cdef inline Py_ssize_t behind_text(const uint8_t* d, Py_ssize_t n, Py_ssize_t p, Text* text) noexcept nogil:
    """Behind a string, which is told; -1 when it ends behind everything."""
    if p + 4 > n:
        return -1
    text.at, text.size = d + p + 4, u32(d + p)
    p += 4 + text.size
    return p if p <= n else -1


cdef inline bytes copied(const uint8_t* at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*>at, size)


cdef inline bint is_there(const uint8_t* d, Py_ssize_t n, Py_ssize_t p, bytes region) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(region)
    return p + size <= n and memcmp(d + p, PyBytes_AS_STRING(region), size) == 0


cdef inline bint is_plain(Text* text) noexcept nogil:
    """Whether nothing in it has to be escaped."""
    cdef Py_ssize_t i
    cdef uint8_t c
    cdef bint found = False
    for i in range(text.size):
        c = text.at[i]
        found |= (c < 0x20) | (c == 0x22) | (c == 0x5C) | (c == 0x7F)
    return not found


cdef inline char* put_text(char* to, Text text) noexcept nogil:
    memcpy(to, text.at, text.size)
    return to + text.size


cdef inline char* put(char* to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return to + PyBytes_GET_SIZE(text)


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if 0x30 <= c <= 0x39:
        return c - 0x30
    c |= 0x20
    return c - 0x61 + 10 if 0x61 <= c <= 0x66 else -1


cdef int64_t sequencer_ns(Text* text) noexcept nogil:
    """The time that a sequencer of 16 hexadecimal digits names, 0 for another one."""
    cdef uint8_t raw[8]
    cdef int i, high, low
    if text.size != 16:
        return 0
    for i in range(8):
        high, low = hex_digit(text.at[2 * i]), hex_digit(text.at[2 * i + 1])
        if high < 0 or low < 0:
            return 0
        raw[i] = <uint8_t>(high << 4 | low)
    return <int64_t>u32(raw) * NS + u32(raw + 4)


cdef inline int decimal(uint64_t number, uint8_t* to) noexcept nogil:
    """Write a number; how many digits it has."""
    cdef uint8_t digits[20]
    cdef int count = 0, i
    while True:
        digits[count] = <uint8_t>(0x30 + number % 10)
        number //= 10
        count += 1
        if not number:
            break
    for i in range(count):
        to[i] = digits[count - 1 - i]
    return count


cdef bytes pairs(bytes entry, Py_ssize_t* place, bint strict):
    """The JSON of an encoded map inside its brackets; `place` is moved behind it, or to -1 where the plain way decides.
    """
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(entry), p = place[0], size = 0, shorter
    cdef uint32_t count, i
    cdef Text key, value, last
    cdef bint plain_texts = True
    cdef int order
    place[0] = -1
    if p + 4 > n:
        return b""
    count, p = u32(d + p), p + 4
    if not count:
        place[0] = p
        return b""
    cdef Py_ssize_t first = p
    for i in range(count):
        p = behind_text(d, n, p, &key)
        if p < 0:
            return b""
        p = behind_text(d, n, p, &value)
        if p < 0:
            return b""
        if i:
            shorter = min(key.size, last.size)
            order = memcmp(key.at, last.at, shorter)
            if order < 0 or (order == 0 and key.size < last.size) or (
                strict and order == 0 and key.size == last.size
            ):
                return b""
        last = key
        plain_texts = plain_texts and is_plain(&key) and is_plain(&value)
        size += 8 + key.size + 9 + value.size + 2 + (1 if i else 0)
    place[0] = p
    if not plain_texts:
        return escaped_pairs(d, n, first, count)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(made)
    p = first
    for i in range(count):
        p = behind_text(d, n, p, &key)
        p = behind_text(d, n, p, &value)
        if i:
            to[0] = c","
            to += 1
        memcpy(to, KEY, 8)
        memcpy(to + 8, key.at, key.size)
        to += 8 + key.size
        memcpy(to, VAL, 9)
        memcpy(to + 9, value.at, value.size)
        to += 9 + value.size
        memcpy(to, END, 2)
        to += 2
    return made


cdef bytes escaped_pairs(const uint8_t* d, Py_ssize_t n, Py_ssize_t p, uint32_t count):
    """The JSON of pairs that are known to be whole, and of which some have something to escape."""
    cdef Text key, value
    cdef list found = []
    cdef uint32_t i
    for i in range(count):
        p = behind_text(d, n, p, &key)
        p = behind_text(d, n, p, &value)
        found.append((copied(key.at, key.size), copied(value.at, value.size)))
    return rendering_plain.pairs_json(found)[1:-1]


cdef struct Row:
    char* at  # key, body, event id, position, next position, sequence and trace context, one behind the other
    uint32_t key
    uint32_t body
    uint32_t event_id
    uint32_t position
    uint32_t next_position
    uint32_t sequence
    uint32_t trace
    int64_t created_ns
    int64_t event_ns
    int64_t ordinal


cdef Py_ssize_t SEQUENCE_BYTES = kafka_records.SEQUENCE_BYTES, TRACE_BYTES = kafka_records.TRACE_BYTES


cdef inline Py_ssize_t row_bytes(Row* row) noexcept nogil:
    cdef Py_ssize_t sequence = SEQUENCE_BYTES + row.sequence if row.sequence else 0
    cdef Py_ssize_t trace = TRACE_BYTES + row.trace if row.trace else 0
    return <Py_ssize_t>row.key + row.body + row.event_id + row.position + row.next_position + sequence + trace


cdef class Records:
    """A sequence of Record, each made anew where it is asked for."""

    cdef list _chunks  # what the rows point into
    cdef char* _free
    cdef Py_ssize_t _left
    cdef Row* _rows
    cdef Py_ssize_t _count, _room

    def __cinit__(self):
        self._chunks = []

    def __dealloc__(self):
        PyMem_Free(self._rows)

    def __len__(self):
        return self._count

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self._record(i) for i in range(*place.indices(self._count))]
        cdef Py_ssize_t i = place
        if i < 0:
            i += self._count
        if not 0 <= i < self._count:
            raise IndexError(f"no record {place}")
        return self._record(i)

    cdef object _record(self, Py_ssize_t i):
        cdef Row* row = &self._rows[i]
        cdef const uint8_t* body = <const uint8_t*>row.at + row.key
        cdef const uint8_t* event_id = body + row.body
        cdef const uint8_t* position = event_id + row.event_id
        return Record(
            copied(<const uint8_t*>row.at, row.key),
            copied(body, row.body),
            copied(event_id, row.event_id),
            row.created_ns,
            copied(position, row.position),
            copied(position + row.position, row.next_position),
            row.ordinal,
            copied(position + row.position + row.next_position, row.sequence),
            copied(position + row.position + row.next_position + row.sequence, row.trace),
            row.event_ns,
        )

    cdef int make_room(self, Py_ssize_t rows) except -1:
        """For so many in all."""
        cdef Row* made = <Row*>PyMem_Realloc(self._rows, rows * sizeof(Row))
        if not made:
            raise MemoryError
        self._rows, self._room = made, rows
        return 0

    cdef Row* add_row(self) except NULL:
        if self._count == self._room:
            self.make_room(2 * self._room + 16)
        self._count += 1
        return &self._rows[self._count - 1]

    cdef Row* add(
        self, Py_ssize_t key, Py_ssize_t body, Py_ssize_t event_id, bytes position, bytes next_position,
        bytes sequence, bytes trace, Py_ssize_t alike
    ) except NULL:
        """A row with room for texts of these sizes; so many like it are expected, itself included."""
        cdef Py_ssize_t before = PyBytes_GET_SIZE(position), behind = PyBytes_GET_SIZE(next_position)
        cdef Py_ssize_t numbered = PyBytes_GET_SIZE(sequence), last = PyBytes_GET_SIZE(trace)
        cdef Py_ssize_t nbytes = key + body + event_id + before + behind + numbered + last
        if nbytes > MOST_BYTES:
            raise OverflowError(f"{nbytes} bytes are too many for a record")
        cdef bytes chunk
        if nbytes > self._left:
            chunk = PyBytes_FromStringAndSize(NULL, max(nbytes, min(CHUNK_BYTES, nbytes * alike)))
            self._chunks.append(chunk)
            self._free, self._left = PyBytes_AS_STRING(chunk), PyBytes_GET_SIZE(chunk)
        cdef Row* row = self.add_row()
        row.at = self._free
        row.key, row.body, row.event_id = <uint32_t>key, <uint32_t>body, <uint32_t>event_id
        row.position, row.next_position = <uint32_t>before, <uint32_t>behind
        row.sequence, row.trace = <uint32_t>numbered, <uint32_t>last
        self._free += nbytes
        self._left -= nbytes
        return row

    cdef int add_event(self, tuple event, Py_ssize_t alike) except -1:
        """One more, from its parts as a Record has them."""
        cdef bytes key = <bytes?>event[0], body = <bytes?>event[1], event_id = <bytes?>event[2]
        cdef bytes position = <bytes?>event[4], next_position = <bytes?>event[5]
        cdef bytes sequence = <bytes?>event[7], trace = <bytes?>event[8]
        cdef int64_t created_ns = event[3], ordinal = event[6], event_ns = event[9]
        cdef Row* row = self.add(
            PyBytes_GET_SIZE(key), PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(event_id), position, next_position, sequence,
            trace, alike
        )
        row.created_ns, row.event_ns, row.ordinal = created_ns, event_ns, ordinal
        put(put(put(put(put(put(put(row.at, key), body), event_id), position), next_position), sequence), trace)
        return 0


cdef Records as_records(records):
    """Those of any sequence; raises TypeError for what is no record of bytes."""
    if isinstance(records, Records):
        return records
    cdef Records made = Records.__new__(Records)
    cdef Py_ssize_t left = len(records)
    made.make_room(left)
    for each in records:
        if not isinstance(each, tuple) or len(<tuple>each) != 10:
            raise TypeError("an event's record has ten parts")
        made.add_event(<tuple>each, left)
        left -= 1
    return made


def totals(records):
    """As `columns.totals`."""
    if not isinstance(records, Records):
        return columns.totals(records)
    cdef Records each = records
    cdef list created_ns = [], ordinals = []
    cdef Py_ssize_t i, body_bytes = 0
    for i in range(each._count):
        body_bytes += each._rows[i].body
        created_ns.append(each._rows[i].created_ns)
        ordinals.append(each._rows[i].ordinal)
    return columns.Totals(body_bytes, created_ns, ordinals)


def extent(records):
    """As `columns.extent`."""
    if not isinstance(records, Records):
        return columns.extent(records)
    cdef Records each = records
    cdef Py_ssize_t i, body_bytes = 0
    cdef int64_t created_ns, oldest_ns = 0, newest_ns = 0
    for i in range(each._count):
        body_bytes += each._rows[i].body
        created_ns = each._rows[i].created_ns
        if not i or created_ns < oldest_ns:
            oldest_ns = created_ns
        if not i or created_ns > newest_ns:
            newest_ns = created_ns
    return columns.Extent(body_bytes, oldest_ns, newest_ns)


def traced(records):
    """As `columns.traced`."""
    if not isinstance(records, Records):
        return columns.traced(records)
    cdef Records each = records
    cdef Py_ssize_t i
    return [each._record(i) for i in range(each._count) if each._rows[i].trace]


def joined(parts):
    """As `columns.joined`."""
    cdef Records made = Records.__new__(Records), each
    for part in parts:
        each = as_records(part)
        made._chunks += each._chunks
        if each._count:
            made.make_room(made._count + each._count)
            memcpy(made._rows + made._count, each._rows, each._count * sizeof(Row))
            made._count += each._count
    return made


cdef class CompiledRendering:
    """Makes records of entries whose regions are known: `sources` (eventVersion .. awsRegion), `actors` (eventName ..
    sourceIPAddress) and `buckets` (x_amz_id_2 .. bucket_arn), by their bytes. Its maker may add to them."""

    cdef dict _sources, _actors, _buckets
    cdef bytes _source, _source_json, _before, _after
    cdef int64_t _second

    def __init__(self, dict sources not None, dict actors not None, dict buckets not None):
        self._sources, self._actors, self._buckets = sources, actors, buckets
        self._source = self._source_json = self._before = self._after = b""
        self._second = -1

    def render(
        self, list entries not None, list positions not None, bytes new_opaque_json, plain, bytes sequence not None=b""
    ):
        """The records of a listing in order, and the CodecErrors by place that `plain` has raised.

        It is asked where the plain way must decide. `positions` are one more than entries; `new_opaque_json` takes the
        place of the entries' own; `sequence` stands before the number of each entry, or is empty where these have none.
        """
        cdef Py_ssize_t i, count = len(entries)
        if len(positions) <= count:
            raise IndexError(f"{len(positions)} positions for {count} entries")
        cdef Records records = Records.__new__(Records)
        cdef dict refused = {}
        cdef bytes numbered = b"", trace
        records.make_room(count)
        for i in range(count):
            if sequence:
                numbered = numbered_by(sequence, <bytes?>entries[i])
            trace = traceparent_of(<bytes?>entries[i])
            if not self._render(
                <bytes?>entries[i], new_opaque_json, records, <bytes?>positions[i], <bytes?>positions[i + 1], numbered,
                trace, i, count - i
            ):
                try:
                    key, body, event_id, created_ns, event_ns = plain(entries[i])
                except CodecError as exc:
                    refused[i] = exc
                else:
                    place = positions[i], positions[i + 1], i
                    event = key, body, event_id, created_ns, *place, numbered, trace, event_ns
                    records.add_event(event, count - i)
        return records, refused

    cdef bint _render(
        self, bytes entry, bytes new_opaque_json, Records into, bytes position, bytes next_position, bytes sequence,
        bytes trace, Py_ssize_t ordinal, Py_ssize_t alike
    ) except -1:
        """Add the record; returns False where the plain way must decide."""
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(entry)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(entry), p, q
        if n < 12:
            return False
        cdef uint8_t version = d[0]
        cdef Py_ssize_t size = u32(d + 2), event_size = u32(d + 8)
        if d[1] > 3 or d[7] > 4 or d[6] < 4:
            return False
        if not PyBytes_GET_SIZE(self._source) or not is_there(d, n, 12, self._source):
            if not self._find_source(d, n):
                return False

        p = 12 + PyBytes_GET_SIZE(self._source)
        if p + 8 > n:
            return False
        cdef uint32_t sec = u32(d + p), nsec = u32(d + p + 4)
        if nsec > 999_999_999:
            return False
        if sec != self._second:
            self._before, self._after = rendering_plain.second_text(sec)
            self._second = sec

        p += 8
        q = behind_guessed(d, n, p, 3)
        if q < 0:
            return False
        cdef object actor = self._actors.get(copied(d + p, q - p))
        if actor is None:
            return False

        cdef Text request_id, key, etag, version_id, sequencer, event_id
        p = behind_text(d, n, q, &request_id)
        if p < 0:
            return False
        q = behind_guessed(d, n, p, 6)
        if q < 0:
            return False
        cdef object bucket = self._buckets.get(copied(d + p, q - p))
        if bucket is None:
            return False
        cdef tuple regions = <tuple>bucket
        cdef bytes key_prefix = regions[1], quiet = regions[3], tail = regions[4], opaque_json = regions[6]
        cdef Py_ssize_t attributes = regions[5]

        p = behind_text(d, n, q, &key)
        if p < 0 or p + 8 > n:
            return False
        cdef uint64_t object_size = u64(d + p)
        p = behind_text(d, n, p + 8, &etag)
        if p < 0:
            return False
        p = behind_text(d, n, p, &version_id)
        if p < 0:
            return False
        p = behind_text(d, n, p, &sequencer)
        if p < 0:
            return False
        p = behind_text(d, n, p, &event_id)
        if p < 0:
            return False

        cdef bytes metadata = b"", tags = b""
        if is_there(d, n, p, quiet):
            p += PyBytes_GET_SIZE(quiet)
        elif is_there(d, n, p, <bytes>regions[2]):
            p += PyBytes_GET_SIZE(<bytes>regions[2])
            metadata = pairs(entry, &p, True)
            if p < 0:
                return False
            tags = pairs(entry, &p, False)
            if p < 0 or not is_there(d, n, p, tail):
                return False
            p += PyBytes_GET_SIZE(tail)
        else:
            return False

        cdef Py_ssize_t end = 6 + size, behind = 0 if version < 2 else 8 if version == 2 else 20
        if p - attributes != 12 + event_size or p + behind > end or end > n:
            return False

        cdef int64_t created_ns = 0, event_ns = <int64_t>sec * NS + nsec
        if version > 1:
            created_ns = <int64_t>u32(d + p) * NS + u32(d + p + 4)
        if not created_ns:
            created_ns = sequencer_ns(&sequencer)
        if not created_ns:
            created_ns = event_ns

        if new_opaque_json is not None and version > 2:
            opaque_json = new_opaque_json
        cdef Text raw_key = key, raw_id = event_id
        cdef list kept = []  # what was escaped, for as long as it is pointed at
        if not (
            is_plain(&key) and is_plain(&request_id) and is_plain(&etag) and is_plain(&version_id)
            and is_plain(&sequencer) and is_plain(&event_id)
        ):
            escape(&request_id, kept)
            escape(&key, kept)
            escape(&etag, kept)
            escape(&version_id, kept)
            escape(&sequencer, kept)
            escape(&event_id, kept)

        cdef uint8_t micros[6]
        cdef uint8_t digits[20]
        cdef uint32_t rest = nsec // 1000
        cdef int i
        for i in range(5, -1, -1):
            micros[i] = <uint8_t>(0x30 + rest % 10)
            rest //= 10

        cdef Pieces pieces
        pieces.count, pieces.size = 0, 0
        add_bytes(&pieces, self._source_json)
        add_bytes(&pieces, self._before)
        add(&pieces, micros, 6)
        add_bytes(&pieces, self._after)
        add_bytes(&pieces, <bytes>actor)
        add(&pieces, request_id.at, request_id.size)
        add_bytes(&pieces, <bytes>regions[0])
        add(&pieces, key.at, key.size)
        add(&pieces, <const uint8_t*>SIZE, 9)
        add(&pieces, digits, decimal(object_size, digits))
        add(&pieces, <const uint8_t*>ETAG, 9)
        add(&pieces, etag.at, etag.size)
        add(&pieces, <const uint8_t*>VERSION_ID, 15)
        add(&pieces, version_id.at, version_id.size)
        add(&pieces, <const uint8_t*>SEQUENCER, 15)
        add(&pieces, sequencer.at, sequencer.size)
        add(&pieces, <const uint8_t*>METADATA, 14)
        add_bytes(&pieces, metadata)
        add(&pieces, <const uint8_t*>TAGS, 10)
        add_bytes(&pieces, tags)
        add(&pieces, <const uint8_t*>EVENT_ID, 15)
        add(&pieces, event_id.at, event_id.size)
        add_bytes(&pieces, opaque_json)

        cdef Row* row = into.add(
            PyBytes_GET_SIZE(key_prefix) + raw_key.size, pieces.size, raw_id.size, position, next_position, sequence, trace,
            alike
        )
        row.created_ns, row.event_ns, row.ordinal = created_ns, event_ns, ordinal
        cdef char* to = put_text(put(row.at, key_prefix), raw_key)
        for i in range(pieces.count):
            to = put_text(to, pieces.each[i])
        put(put(put(put(put_text(to, raw_id), position), next_position), sequence), trace)
        return True

    cdef bint _find_source(self, const uint8_t* d, Py_ssize_t n) except -1:
        cdef Py_ssize_t q = behind_guessed(d, n, 12, 3)
        if q < 0:
            return False
        cdef bytes region = copied(d + 12, q - 12)
        cdef object known = self._sources.get(region)
        if known is None:
            return False
        self._source, self._source_json = region, <bytes>known
        return True


cdef bytes numbered_by(bytes prefix, bytes entry):
    """The number behind an entry as the record's header has it; empty where there is none, as in `sequence.number_of`."""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(entry)
    cdef Py_ssize_t behind = n - 6 - <Py_ssize_t>u32(d + 2) if n >= 14 else -1
    if n < 8 or 0 <= behind < 8 or behind == CONTEXT_BYTES:
        return b""
    cdef uint8_t digits[20]
    cdef int count = decimal(u64(d + n - 8), digits)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(prefix) + count)
    memcpy(put(PyBytes_AS_STRING(made), prefix), digits, count)
    return made


cdef Py_ssize_t CONTEXT_BYTES = trace_context.TRACE_BYTES


cdef inline bytes traceparent_of(bytes entry):
    """As `trace_context.traceparent_of`."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(entry)
    if n < 6 + CONTEXT_BYTES:
        return b""
    cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef Py_ssize_t behind = n - 6 - <Py_ssize_t>u32(d + 2)
    if behind == CONTEXT_BYTES or behind == CONTEXT_BYTES + 8:
        return trace_context.traceparent_of(entry)
    return b""


cdef int escape(Text* text, list kept) except -1:
    cdef bytes escaped = rendering_plain.escape(copied(text.at, text.size))
    kept.append(escaped)
    text.at, text.size = <const uint8_t*>PyBytes_AS_STRING(escaped), PyBytes_GET_SIZE(escaped)
    return 0


cdef uint32_t murmur2(const uint8_t* d, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0x9747B28Cu ^ <uint32_t>n, k
    cdef Py_ssize_t i
    for i in range(n >> 2):
        k = u32(d + 4 * i) * 0x5BD1E995u
        h = (h * 0x5BD1E995u) ^ ((k ^ k >> 24) * 0x5BD1E995u)
    d += n & ~3
    if n & 3:
        if n & 3 == 3:
            h ^= <uint32_t>d[2] << 16
        if n & 3 >= 2:
            h ^= <uint32_t>d[1] << 8
        h = (h ^ d[0]) * 0x5BD1E995u
    h = (h ^ h >> 13) * 0x5BD1E995u
    return h ^ h >> 15


cdef inline int64_t partition(const char* key, Py_ssize_t size, int64_t count) noexcept nogil:
    return <int64_t>(murmur2(<const uint8_t*>key, size) & 0x7FFFFFFF) % count


def partitions(keys, int64_t count):
    """As `murmur2.partitions`."""
    if count == 1:
        return bytes(len(keys))
    cdef bytes key
    cdef list found = []
    for key in keys:
        found.append(partition(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), count))
    return found


cdef struct Open:
    PyObject* members  # Records that `batches` keeps; NULL where the partition has none yet
    Py_ssize_t place
    Py_ssize_t nbytes


def in_batches(records, int64_t partitions, Py_ssize_t around, Py_ssize_t room):
    """As `kafka_records.in_batches`."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    cdef Records all_ = as_records(records), members
    cdef list batches = []
    cdef Py_ssize_t nbytes, i
    cdef int64_t lane
    cdef Row* row
    cdef Open* each
    cdef Open* open_ = <Open*>PyMem_Calloc(partitions, sizeof(Open))
    if not open_:
        raise MemoryError
    try:
        for i in range(all_._count):
            row = &all_._rows[i]
            nbytes = around + row_bytes(row)
            lane = partition(row.at, row.key, partitions)
            each = &open_[lane]
            if each.members and each.nbytes + nbytes <= room:
                (<Records>each.members).add_row()[0] = row[0]
                each.nbytes += nbytes
                continue
            if each.members:
                batches[each.place] = (lane, <Records>each.members, each.nbytes)
            members = Records.__new__(Records)
            members._chunks = all_._chunks
            members.add_row()[0] = row[0]
            each.members, each.place, each.nbytes = <PyObject*>members, len(batches), nbytes
            batches.append(members)
        for lane in range(partitions):
            each = &open_[lane]
            if each.members:
                batches[each.place] = (lane, <Records>each.members, each.nbytes)
    finally:
        PyMem_Free(open_)
    return batches


cdef inline int varint_size(Py_ssize_t number) noexcept nogil:
    cdef int size = 1
    cdef uint64_t rest = <uint64_t>number << 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline char* put_varint(char* to, Py_ssize_t number) noexcept nogil:
    cdef uint64_t rest = <uint64_t>number << 1
    while rest > 0x7F:
        to[0] = <char>(rest & 0x7F | 0x80)
        rest >>= 7
        to += 1
    to[0] = <char>rest
    return to + 1


cdef inline char* put_sized(char* to, const char* at, Py_ssize_t size) noexcept nogil:
    to = put_varint(to, size)
    memcpy(to, at, size)
    return to + size


cdef inline char* put_position(char* to, bytes prefix, const char* at, Py_ssize_t size) noexcept:
    to = put(put_varint(to, PyBytes_GET_SIZE(prefix) + size), prefix)
    memcpy(to, at, size)
    return to + size


cdef inline Py_ssize_t sized(Py_ssize_t size) noexcept nogil:
    return varint_size(size) + size


cdef inline Py_ssize_t event_size(
    Row* row, Py_ssize_t place, Py_ssize_t common, Py_ssize_t prefix, Py_ssize_t sequence, Py_ssize_t trace
) noexcept nogil:
    """Bytes of an event's record behind its own length.

    `sequence` are those before a number and `trace` those before a trace context, where there is one.
    """
    return (
        2 + varint_size(place) + common + sized(row.key) + sized(row.body) + sized(row.event_id)
        + sized(prefix + row.position) + sized(prefix + row.next_position)
        + (sequence + sized(row.sequence) if row.sequence else 0) + (trace + sized(row.trace) if row.trace else 0)
    )


def encode_events(bytes shard not None, bytes prefix not None, records, Py_ssize_t first):
    """As `kafka_records.encode_events`."""
    cdef bytes before = kafka_records.before_position(shard), before_next = kafka_records.BEFORE_NEXT
    cdef bytes before_id = kafka_records.BEFORE_EVENT_ID, before_sequence = kafka_records.BEFORE_SEQUENCE
    cdef bytes before_trace = kafka_records.BEFORE_TRACE
    cdef bytes with_one_more = kafka_records.before_position(shard, 5), with_both = kafka_records.before_position(shard, 6)
    cdef Py_ssize_t common = PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(before_next) + PyBytes_GET_SIZE(before_id)
    cdef Py_ssize_t width = PyBytes_GET_SIZE(prefix), more = PyBytes_GET_SIZE(before_sequence), total = 0, place
    cdef Py_ssize_t traced = PyBytes_GET_SIZE(before_trace)
    cdef Records events = as_records(records)
    cdef Row* row
    for place in range(events._count):
        total += sized(event_size(&events._rows[place], first + place, common, width, more, traced))
    cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
    cdef char* to = PyBytes_AS_STRING(made)
    cdef const char* at
    for place in range(events._count):
        row = &events._rows[place]
        to = put_varint(to, event_size(row, first + place, common, width, more, traced))
        to[0] = to[1] = 0
        to = put_varint(to + 2, first + place)
        at = row.at
        to = put_sized(to, at, row.key)
        at += row.key
        to = put_sized(to, at, row.body)
        at += row.body + row.event_id
        if row.sequence and row.trace:
            to = put(to, with_both)
        else:
            to = put(to, with_one_more if row.sequence or row.trace else before)
        to = put_position(to, prefix, at, row.position)
        to = put_position(put(to, before_next), prefix, at + row.position, row.next_position)
        to = put_sized(put(to, before_id), at - row.event_id, row.event_id)
        if row.sequence:
            to = put_sized(put(to, before_sequence), at + row.position + row.next_position, row.sequence)
        if row.trace:
            at += row.position + row.next_position + row.sequence
            to = put_sized(put(to, before_trace), at, row.trace)
    return made


# ------------------------------------------------------------------------------------------- checksums

# zlib goes through a text 8 bytes at a time. Where the processor multiplies without carries, 64 bytes are folded into
# the next 64 at a time (V. Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ instruction",
# 2009): an entry of 1,000 bytes takes a quarter of the time. The constants are powers of x modulo the polynomial, with
# their bits in the order that CRC-32 has.
cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    static uint32_t remora_crc_table[256];

    static void remora_crc_prepare(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
            remora_crc_table[i] = value;
        }
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int remora_crc_is_fast(void) {
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }

    #define FOLDED(x, by, next) _mm_xor_si128(next, \
        _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)))
    #define LOADED(at) _mm_loadu_si128((const __m128i *)(at))

    /* `size` is at least 64, and a multiple of 16. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t remora_crc_folded(uint32_t crc, const uint8_t *p, size_t size) {
        const __m128i by64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i by8 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i a = _mm_xor_si128(LOADED(p), _mm_cvtsi32_si128((int)crc));
        __m128i b = LOADED(p + 16), c = LOADED(p + 32), d = LOADED(p + 48), e;
        for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
            a = FOLDED(a, by64, LOADED(p));
            b = FOLDED(b, by64, LOADED(p + 16));
            c = FOLDED(c, by64, LOADED(p + 32));
            d = FOLDED(d, by64, LOADED(p + 48));
        }
        a = FOLDED(a, by16, b);
        a = FOLDED(a, by16, c);
        a = FOLDED(a, by16, d);
        for (; size >= 16; p += 16, size -= 16) a = FOLDED(a, by16, LOADED(p));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by16, 0x10));
        e = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(e, _mm_clmulepi64_si128(_mm_and_si128(a, low), by8, 0x00));
        e = _mm_clmulepi64_si128(_mm_and_si128(a, low), polynomial, 0x10);
        e = _mm_clmulepi64_si128(_mm_and_si128(e, low), polynomial, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, e), 1);
    }
    #else
    static int remora_crc_is_fast(void) { return 0; }
    static uint32_t remora_crc_folded(uint32_t crc, const uint8_t *p, size_t size) { return crc; }
    #endif

    static uint32_t remora_crc(uint32_t start, const uint8_t *p, size_t size) {
        uint32_t crc = ~start;
        if (size >= 64) {
            size_t whole = size & ~(size_t)15;
            crc = remora_crc_folded(crc, p, whole);
            p += whole, size -= whole;
        }
        while (size--) crc = remora_crc_table[(crc ^ *p++) & 0xFF] ^ crc >> 8;
        return ~crc;
    }
    """
    void remora_crc_prepare() noexcept nogil
    bint remora_crc_is_fast() noexcept nogil
    uint32_t remora_crc(uint32_t start, const uint8_t* at, size_t size) noexcept nogil

remora_crc_prepare()
cdef bint IS_FAST = remora_crc_is_fast()


def checksums(texts, start):
    """As `checksums.checksums`."""
    if not IS_FAST:
        return plain_checksums.checksums(texts, start)
    cdef uint32_t begun = start & 0xFFFFFFFF
    cdef list made = []
    cdef bytes text
    for text in texts:
        if text is None:
            raise TypeError("None has no checksum")
        made.append(remora_crc(begun, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)))
        begun += 1
    return made


def mismatches(rows, start):
    """As `checksums.mismatches`."""
    if not IS_FAST:
        return plain_checksums.mismatches(rows, start)
    cdef uint32_t begun = start & 0xFFFFFFFF
    cdef list found = []
    cdef Py_ssize_t place = 0
    cdef bytes text
    cdef tuple row
    for row in rows:
        text, before = row
        if text is None:
            raise TypeError("None has no checksum")
        if before is not None and <int64_t>before != remora_crc(
            begun, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
        ):
            found.append(place)
        begun += 1
        place += 1
    return found
