# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`shortcut.py`, `murmur2.partitions`, and `in_parcels` and `encode_events` of `kafka_records.py` once more, for a C
compiler. Change them together; both have the same tests.

All reads are checked against the entry's end before they are made. Entries are little-endian whatever the machine is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from remora.codec import kafka_records, record
from remora.codec import shortcut as plain
from remora.model.errors import CodecError
from remora.model.record import Record

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t items)

cdef enum:
    MOST_PIECES = 32

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


cdef bytes joined(Pieces* pieces):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, pieces.size)
    cdef char* to = PyBytes_AS_STRING(made)
    cdef int i
    for i in range(pieces.count):
        memcpy(to, pieces.each[i].at, pieces.each[i].size)
        to += pieces.each[i].size
    return made


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
        return plain.pairs(entry, first - 4, strict=strict)[0]
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


cdef class Shortcut:
    """As `shortcut.Shortcut`."""

    cdef dict _sources, _actors, _buckets
    cdef bytes _source, _source_json, _before, _after
    cdef int64_t _second

    def __init__(self, dict sources not None, dict actors not None, dict buckets not None):
        self._sources, self._actors, self._buckets = sources, actors, buckets
        self._source = self._source_json = self._before = self._after = b""
        self._second = -1

    def render(self, list entries not None, list positions not None, bytes new_opaque_json, plain):
        """As `shortcut.Shortcut.render`."""
        cdef Py_ssize_t i, count = len(entries)
        if len(positions) <= count:
            raise IndexError(f"{len(positions)} positions for {count} entries")
        cdef list records = []
        cdef dict refused = {}
        cdef tuple made
        for i in range(count):
            made = self._render(<bytes?>entries[i], new_opaque_json)
            if made is None:
                try:
                    made = plain(entries[i])
                except CodecError as exc:
                    refused[i] = exc
                    continue
            records.append(new_record(made, positions[i], positions[i + 1], i))
        return records, refused

    cdef tuple _render(self, bytes entry, bytes new_opaque_json):
        """The record, or None when the plain way must decide."""
        cdef const uint8_t* d = <const uint8_t*>PyBytes_AS_STRING(entry)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(entry), p, q
        if n < 12:
            return None
        cdef uint8_t version = d[0]
        cdef Py_ssize_t size = u32(d + 2), event_size = u32(d + 8)
        if d[1] > 3 or d[7] > 4 or d[6] < 4:
            return None
        if not PyBytes_GET_SIZE(self._source) or not is_there(d, n, 12, self._source):
            if not self._find_source(d, n):
                return None

        p = 12 + PyBytes_GET_SIZE(self._source)
        if p + 8 > n:
            return None
        cdef uint32_t sec = u32(d + p), nsec = u32(d + p + 4)
        if nsec > 999_999_999:
            return None
        if sec != self._second:
            self._before, self._after = record.second_text(sec)
            self._second = sec

        p += 8
        q = behind_guessed(d, n, p, 3)
        if q < 0:
            return None
        cdef object actor = self._actors.get(copied(d + p, q - p))
        if actor is None:
            return None

        cdef Text request_id, key, etag, version_id, sequencer, event_id
        p = behind_text(d, n, q, &request_id)
        if p < 0:
            return None
        q = behind_guessed(d, n, p, 6)
        if q < 0:
            return None
        cdef object bucket = self._buckets.get(copied(d + p, q - p))
        if bucket is None:
            return None
        cdef tuple regions = <tuple>bucket
        cdef bytes key_prefix = regions[1], quiet = regions[3], tail = regions[4], opaque_json = regions[6]
        cdef Py_ssize_t attributes = regions[5]

        p = behind_text(d, n, q, &key)
        if p < 0 or p + 8 > n:
            return None
        cdef uint64_t object_size = u64(d + p)
        p = behind_text(d, n, p + 8, &etag)
        if p < 0:
            return None
        p = behind_text(d, n, p, &version_id)
        if p < 0:
            return None
        p = behind_text(d, n, p, &sequencer)
        if p < 0:
            return None
        p = behind_text(d, n, p, &event_id)
        if p < 0:
            return None

        cdef bytes metadata = b"", tags = b""
        if is_there(d, n, p, quiet):
            p += PyBytes_GET_SIZE(quiet)
        elif is_there(d, n, p, <bytes>regions[2]):
            p += PyBytes_GET_SIZE(<bytes>regions[2])
            metadata = pairs(entry, &p, True)
            if p < 0:
                return None
            tags = pairs(entry, &p, False)
            if p < 0 or not is_there(d, n, p, tail):
                return None
            p += PyBytes_GET_SIZE(tail)
        else:
            return None

        cdef Py_ssize_t end = 6 + size, behind = 0 if version < 2 else 8 if version == 2 else 20
        if p - attributes != 12 + event_size or p + behind > end or end > n:
            return None

        cdef int64_t created_ns = 0
        if version > 1:
            created_ns = <int64_t>u32(d + p) * NS + u32(d + p + 4)
        if not created_ns:
            created_ns = sequencer_ns(&sequencer)
        if not created_ns:
            created_ns = <int64_t>sec * NS + nsec

        if new_opaque_json is not None and version > 2:
            opaque_json = new_opaque_json
        cdef Pieces pieces
        pieces.count, pieces.size = 0, 0
        add_bytes(&pieces, key_prefix)
        add(&pieces, key.at, key.size)
        cdef bytes record_key = joined(&pieces), raw_id = copied(event_id.at, event_id.size)

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
        return record_key, joined(&pieces), raw_id, created_ns

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


cdef new_record(tuple rendered, position, next_position, Py_ssize_t ordinal):
    """A Record, past its own __new__, which is written in Python."""
    if len(rendered) != 4:
        raise ValueError("what is rendered has four parts")
    made = PyType_GenericAlloc(<PyTypeObject*>Record, 7)
    cdef Py_ssize_t i
    for i in range(4):
        put_item(made, i, rendered[i])
    put_item(made, 4, position)
    put_item(made, 5, next_position)
    put_item(made, 6, ordinal)
    return made


cdef inline void put_item(object into, Py_ssize_t place, object item):
    Py_INCREF(item)  # which the tuple owns from now on
    PyTuple_SET_ITEM(into, place, item)


cdef int escape(Text* text, list kept) except -1:
    cdef bytes escaped = record.escape(copied(text.at, text.size))
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


cdef inline int64_t partition(bytes key, int64_t count) noexcept:
    return <int64_t>(murmur2(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % count


def partitions(keys, int64_t count):
    """As `murmur2.partitions`."""
    if count == 1:
        return bytes(len(keys))
    cdef bytes key
    cdef list found = []
    for key in keys:
        found.append(partition(key, count))
    return found


cdef struct Open:
    PyObject* members  # a list that `parcels` keeps; NULL where the partition has none yet
    Py_ssize_t place
    Py_ssize_t nbytes


def in_parcels(list records not None, int64_t partitions, Py_ssize_t around, Py_ssize_t room):
    """As `kafka_records.in_parcels`."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    cdef list parcels = [], members
    cdef tuple event
    cdef bytes key
    cdef Py_ssize_t nbytes
    cdef int64_t lane
    cdef Open* each
    cdef Open* open_ = <Open*>PyMem_Calloc(partitions, sizeof(Open))
    if not open_:
        raise MemoryError
    try:
        for record_ in records:
            event = as_event(record_)
            key = <bytes?>event[0]
            nbytes = (
                around + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(<bytes?>event[1]) + PyBytes_GET_SIZE(<bytes?>event[2])
                + PyBytes_GET_SIZE(<bytes?>event[4]) + PyBytes_GET_SIZE(<bytes?>event[5])
            )
            lane = partition(key, partitions)
            each = &open_[lane]
            if each.members and each.nbytes + nbytes <= room:
                (<list>each.members).append(record_)
                each.nbytes += nbytes
                continue
            if each.members:
                parcels[each.place] = (lane, <list>each.members, each.nbytes)
            members = [record_]
            each.members, each.place, each.nbytes = <PyObject*>members, len(parcels), nbytes
            parcels.append(members)
        for lane in range(partitions):
            each = &open_[lane]
            if each.members:
                parcels[each.place] = (lane, <list>each.members, each.nbytes)
    finally:
        PyMem_Free(open_)
    return parcels


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


cdef inline char* put(char* to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return to + PyBytes_GET_SIZE(text)


cdef inline char* put_text(char* to, bytes text) noexcept:
    return put(put_varint(to, PyBytes_GET_SIZE(text)), text)


cdef inline char* put_position(char* to, bytes prefix, bytes position) noexcept:
    to = put_varint(to, PyBytes_GET_SIZE(prefix) + PyBytes_GET_SIZE(position))
    return put(put(to, prefix), position)


cdef inline Py_ssize_t text_size(Py_ssize_t size) noexcept nogil:
    return varint_size(size) + size


cdef inline tuple as_event(record_):
    if not isinstance(record_, tuple) or len(<tuple>record_) != 7:
        raise TypeError("an event's record has seven parts")
    return <tuple>record_


cdef Py_ssize_t event_size(tuple event, Py_ssize_t place, Py_ssize_t common, Py_ssize_t prefix) except -1:
    """Bytes of an event's record behind its own length; raises TypeError for one that is not made of bytes."""
    cdef bytes key = <bytes?>event[0], body = <bytes?>event[1], event_id = <bytes?>event[2]
    cdef bytes position = <bytes?>event[4], next_position = <bytes?>event[5]
    return (
        2 + varint_size(place) + common
        + text_size(PyBytes_GET_SIZE(key)) + text_size(PyBytes_GET_SIZE(body))
        + text_size(prefix + PyBytes_GET_SIZE(position)) + text_size(prefix + PyBytes_GET_SIZE(next_position))
        + text_size(PyBytes_GET_SIZE(event_id))
    )


def encode_events(bytes shard not None, bytes prefix not None, list records not None, Py_ssize_t first):
    """As `kafka_records.encode_events`."""
    cdef bytes before = kafka_records.before_position(shard), before_next = kafka_records.BEFORE_NEXT
    cdef bytes before_id = kafka_records.BEFORE_EVENT_ID
    cdef Py_ssize_t common = PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(before_next) + PyBytes_GET_SIZE(before_id)
    cdef Py_ssize_t count = len(records), total = 0, place
    cdef Py_ssize_t width = PyBytes_GET_SIZE(prefix)
    cdef tuple event
    for place in range(count):
        event = as_event(records[place])
        total += text_size(event_size(event, first + place, common, width))
    cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
    cdef char* to = PyBytes_AS_STRING(made)
    for place in range(count):
        event = <tuple>records[place]
        to = put_varint(to, event_size(event, first + place, common, width))
        to[0] = to[1] = 0
        to = put_varint(to + 2, first + place)
        to = put_text(put_text(to, <bytes>event[0]), <bytes>event[1])
        to = put_position(put(to, before), prefix, <bytes>event[4])
        to = put_position(put(to, before_next), prefix, <bytes>event[5])
        to = put_text(put(to, before_id), <bytes>event[2])
    return made
