# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`s3_records.read` with the entry's encoding, `shard_hash.shards` and `json_pieces.repeated_name`, once more for a C
compiler: from a body's bytes to entries in one pass, without an object for anything but the entry and its key.

It takes what nearly all senders write, in whatever order its members stand: names and texts without escapes, no null,
no member twice, and whatever it does not know, which is counted. For anything else it returns None, so that the plain
way decides. Both ways have the same tests.

A bytes object ends in a NUL, which no text of JSON has and no token begins with: a loop that looks at one byte at a
time ends there by itself. Whoever looks further ahead compares with `end`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, strlen

from json import loads

from remora.codec import s3_records
from remora.codec.json_pieces import dotted
from remora.codec.rendering_plain import sorted_metadata, sorted_tags

cdef enum:
    MOST_UNKNOWN = 16  # names of one object that are compared with each other
    MOST_PAIRS = 256  # of one record, all lists together
    MOST_TEXT = 8192
    MOST_BUCKET = 255
    MOST_KEY = 1024
    MOST_VALUE = 32 << 10  # bytes of a record: json_pieces.WINDOW, of which no one counts the values
    MOST_DEPTH = 16  # of what is passed over
    MOST_DIGITS = 18

cdef enum Kind:
    TEXT
    INNER
    NUMBER
    METADATA
    MAPPING
    TAGS
    FOREIGN  # in a record these make it something else

# Texts, in the order in which an entry has them.
cdef enum:
    VERSION, SOURCE, REGION, NAME, USER, ADDRESS, REQUEST, HOST, SCHEMA, CONFIGURATION, BUCKET, OWNER, ARN, KEY
    ETAG, VERSION_ID, SEQUENCER, EVENT_ID, BUCKET_ID, OPAQUE, TIME
    TEXTS

# Objects.
cdef enum:
    A_RECORD, A_USER, A_PARAMETERS, A_RESPONSE, A_S3, A_BUCKET, AN_OWNER, AN_OBJECT
    OBJECTS

cdef enum:
    MEMBERS = 34


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size


cdef struct Member:
    const char* name
    Py_ssize_t size
    Kind kind
    int what


cdef Member members[MEMBERS]
cdef int first_of[OBJECTS + 1]


cdef int _name_members() except -1:
    cdef int count = 0, shape
    global _names
    shapes = (
        (b"eventVersion", TEXT, VERSION), (b"eventSource", TEXT, SOURCE), (b"awsRegion", TEXT, REGION),
        (b"eventTime", TEXT, TIME), (b"eventName", TEXT, NAME), (b"userIdentity", INNER, A_USER),
        (b"requestParameters", INNER, A_PARAMETERS), (b"responseElements", INNER, A_RESPONSE), (b"s3", INNER, A_S3),
        (b"eventId", TEXT, EVENT_ID), (b"opaqueData", TEXT, OPAQUE), (b"Records", FOREIGN, 0), (b"Event", FOREIGN, 0),
    ), (
        (b"principalId", TEXT, USER),
    ), (
        (b"sourceIPAddress", TEXT, ADDRESS),
    ), (
        (b"x-amz-request-id", TEXT, REQUEST), (b"x-amz-id-2", TEXT, HOST),
    ), (
        (b"s3SchemaVersion", TEXT, SCHEMA), (b"configurationId", TEXT, CONFIGURATION),
        (b"bucket", INNER, A_BUCKET), (b"object", INNER, AN_OBJECT),
    ), (
        (b"name", TEXT, BUCKET), (b"ownerIdentity", INNER, AN_OWNER), (b"arn", TEXT, ARN), (b"id", TEXT, BUCKET_ID),
    ), (
        (b"principalId", TEXT, OWNER),
    ), (
        (b"key", TEXT, KEY), (b"size", NUMBER, 0), (b"eTag", TEXT, ETAG), (b"versionId", TEXT, VERSION_ID),
        (b"sequencer", TEXT, SEQUENCER), (b"metadata", METADATA, 0), (b"userMetadata", MAPPING, 0), (b"tags", TAGS, 0),
    )
    _names = [name for each in shapes for name, _, _ in each]  # keeps the texts that the table points to
    assert len(_names) == MEMBERS and len(shapes) == OBJECTS
    for shape, each in enumerate(shapes):
        first_of[shape] = count
        for _, kind, what in each:
            members[count].name = PyBytes_AS_STRING(_names[count])
            members[count].size = PyBytes_GET_SIZE(_names[count])
            members[count].kind, members[count].what = kind, what
            count += 1
    first_of[OBJECTS] = count
    return 0


_names = []
_name_members()


cdef struct State:
    const uint8_t* end
    bint in_lines  # where a line's end is no blank
    uint64_t seen
    uint64_t size
    Py_ssize_t dropped
    Text texts[TEXTS]
    Text pairs[2 * MOST_PAIRS]
    int pair_count
    int metadata_from, metadata_to
    int tags_from, tags_to
    bint is_mapping


# ------------------------------------------------------------------------------------------------- JSON
# Each of these returns the place behind what it has read, or NULL where the plain way has to decide.


cdef inline const uint8_t* blanks(State* s, const uint8_t* p) noexcept nogil:
    while p[0] == 0x20 or p[0] == 0x09 or p[0] == 0x0D or (p[0] == 0x0A and not s.in_lines):
        p += 1
    return p


cdef inline const uint8_t* text(State* s, const uint8_t* p, Text* found) noexcept nogil:
    """A text without escapes; eight bytes at a time as long as none of them can be its end."""
    cdef uint64_t word, quote, escape
    if p[0] != 0x22:
        return NULL
    p += 1
    found.at = p
    while s.end - p >= 8:
        memcpy(&word, p, 8)
        quote, escape = word ^ 0x2222222222222222u, word ^ 0x5C5C5C5C5C5C5C5Cu
        if (
            ((word - 0x2020202020202020u) & ~word)
            | ((quote - 0x0101010101010101u) & ~quote)
            | ((escape - 0x0101010101010101u) & ~escape)
        ) & 0x8080808080808080u:
            break
        p += 8
    while p[0] != 0x22:
        if p[0] < 0x20 or p[0] == 0x5C:
            return NULL
        p += 1
    found.size = p - found.at
    return p + 1


cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return 0x30 <= c <= 0x39


cdef inline const uint8_t* digits(const uint8_t* p) noexcept nogil:
    """At least one digit, and no more than a number has that Python reads at once."""
    cdef const uint8_t* start = p
    while is_digit(p[0]):
        p += 1
    return p if 0 < p - start <= 300 else NULL


cdef const uint8_t* number(const uint8_t* p) noexcept nogil:
    """Any number, which is passed over."""
    if p[0] == 0x2D:
        p += 1
    if p[0] == 0x30:
        p += 1
    else:
        p = digits(p)
    if p != NULL and p[0] == 0x2E:
        p = digits(p + 1)
    if p != NULL and (p[0] | 0x20) == 0x65:
        p += 1
        if p[0] == 0x2B or p[0] == 0x2D:
            p += 1
        p = digits(p)
    return p


cdef const uint8_t* passed_over(State* s, const uint8_t* p, int depth) noexcept nogil:
    """Any value. Names that stand twice in it are nobody's concern, as it is not read."""
    cdef Text ignored
    cdef uint8_t close
    if p[0] == 0x22:
        return text(s, p, &ignored)
    if p[0] == 0x7B or p[0] == 0x5B:
        if not depth:
            return NULL
        close = p[0] + 2
        p = blanks(s, p + 1)
        if p[0] == close:
            return p + 1
        while True:
            if close == 0x7D:
                p = text(s, p, &ignored)
                if p == NULL:
                    return NULL
                p = blanks(s, p)
                if p[0] != 0x3A:
                    return NULL
                p = blanks(s, p + 1)
            p = passed_over(s, p, depth - 1)
            if p == NULL:
                return NULL
            p = blanks(s, p)
            if p[0] == close:
                return p + 1
            if p[0] != 0x2C:
                return NULL
            p = blanks(s, p + 1)
    if s.end - p >= 5:  # at least a brace follows
        if memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0:
            return p + 4
        if memcmp(p, b"false", 5) == 0:
            return p + 5
    return number(p)


cdef inline const uint8_t* member(State* s, const uint8_t* p, Text* name) noexcept nogil:
    """A name with its colon, and the blanks around."""
    p = text(s, p, name)
    if p == NULL:
        return NULL
    p = blanks(s, p)
    return blanks(s, p + 1) if p[0] == 0x3A else NULL


cdef inline bint is_name(Text* found, const char* name) noexcept nogil:
    return found.size == <Py_ssize_t>strlen(name) and memcmp(found.at, name, found.size) == 0


# ----------------------------------------------------------------------------------------------- records


cdef const uint8_t* object_(State* s, const uint8_t* p, int shape) noexcept nogil:
    """One of the objects that a record consists of."""
    cdef Text name
    cdef Text unknown[MOST_UNKNOWN]
    cdef int unknowns = 0, first = first_of[shape], behind = first_of[shape + 1], guess = first, at, i
    if p[0] != 0x7B:
        return NULL
    p = blanks(s, p + 1)
    if p[0] == 0x7D:
        return p + 1
    while True:
        p = member(s, p, &name)
        if p == NULL:
            return NULL
        at = guess  # members mostly stand in the table's order
        for i in range(behind - first):
            if name.size == members[at].size and memcmp(name.at, members[at].name, name.size) == 0:
                break
            at += 1
            if at == behind:
                at = first
        else:
            at = -1
        if at >= 0:
            if s.seen >> at & 1:
                return NULL
            s.seen |= <uint64_t>1 << at
            guess = at + 1 if at + 1 < behind else first
            p = value_of(s, p, at)
        else:
            for i in range(unknowns):
                if unknown[i].size == name.size and memcmp(unknown[i].at, name.at, name.size) == 0:
                    return NULL
            if unknowns == MOST_UNKNOWN:
                return NULL
            unknown[unknowns] = name
            unknowns += 1
            s.dropped += 1
            p = passed_over(s, p, MOST_DEPTH)
        if p == NULL:
            return NULL
        p = blanks(s, p)
        if p[0] == 0x7D:
            return p + 1
        if p[0] != 0x2C:
            return NULL
        p = blanks(s, p + 1)


cdef const uint8_t* value_of(State* s, const uint8_t* p, int at) noexcept nogil:
    cdef Kind kind = members[at].kind
    cdef const uint8_t* start = p
    if kind == TEXT:
        p = text(s, p, &s.texts[members[at].what])
        return p if p != NULL and s.texts[members[at].what].size <= MOST_TEXT else NULL
    if kind == INNER:
        return object_(s, p, members[at].what)
    if kind == NUMBER:
        while is_digit(p[0]):
            if p - start == MOST_DIGITS:
                return NULL
            s.size = s.size * 10 + (p[0] - 0x30)
            p += 1
        # What follows a number is looked at by the caller: only a comma or a brace may.
        return NULL if p == start or (start[0] == 0x30 and p - start > 1) else p
    if kind == METADATA or kind == MAPPING:
        if s.metadata_from >= 0:
            return NULL
        s.is_mapping = kind == MAPPING
        s.metadata_from = s.pair_count
        p = mapping(s, p) if kind == MAPPING else pairs(s, p)
        s.metadata_to = s.pair_count
        return p
    if kind == TAGS:
        s.tags_from = s.pair_count
        p = pairs(s, p)
        s.tags_to = s.pair_count
        return p
    return NULL


cdef const uint8_t* pairs(State* s, const uint8_t* p) noexcept nogil:
    """A list of objects with `key` and `val`, in this order."""
    cdef Text name
    cdef Text* pair
    if p[0] != 0x5B:
        return NULL
    p = blanks(s, p + 1)
    if p[0] == 0x5D:
        return p + 1
    while True:
        if p[0] != 0x7B or s.pair_count == MOST_PAIRS:
            return NULL
        pair = &s.pairs[2 * s.pair_count]
        s.pair_count += 1
        p = member(s, blanks(s, p + 1), &name)
        if p == NULL or not is_name(&name, b"key"):
            return NULL
        p = text(s, p, &pair[0])
        if p == NULL:
            return NULL
        p = blanks(s, p)
        if p[0] != 0x2C:
            return NULL
        p = member(s, blanks(s, p + 1), &name)
        if p == NULL or not is_name(&name, b"val"):
            return NULL
        p = text(s, p, &pair[1])
        if p == NULL or pair[0].size > MOST_TEXT or pair[1].size > MOST_TEXT:
            return NULL
        p = blanks(s, p)
        if p[0] != 0x7D:
            return NULL
        p = blanks(s, p + 1)
        if p[0] == 0x5D:
            return p + 1
        if p[0] != 0x2C:
            return NULL
        p = blanks(s, p + 1)


cdef const uint8_t* mapping(State* s, const uint8_t* p) noexcept nogil:
    """An object of texts. Whether a name stands twice in it is looked at when its pairs are sorted."""
    cdef Text* pair
    if p[0] != 0x7B:
        return NULL
    p = blanks(s, p + 1)
    if p[0] == 0x7D:
        return p + 1
    while True:
        if s.pair_count == MOST_PAIRS:
            return NULL
        pair = &s.pairs[2 * s.pair_count]
        s.pair_count += 1
        p = member(s, p, &pair[0])
        if p == NULL:
            return NULL
        p = text(s, p, &pair[1])
        if p == NULL or pair[0].size > MOST_TEXT or pair[1].size > MOST_TEXT:
            return NULL
        p = blanks(s, p)
        if p[0] == 0x7D:
            return p + 1
        if p[0] != 0x2C:
            return NULL
        p = blanks(s, p + 1)


# ------------------------------------------------------------------------------------------------ values


cdef inline int number_of(const uint8_t* p, int count) noexcept nogil:
    """Of so many digits; -1 for others."""
    cdef int found = 0, i
    for i in range(count):
        if not is_digit(p[i]):
            return -1
        found = found * 10 + (p[i] - 0x30)
    return found


cdef bint time_of(Text* found, uint32_t* sec, uint32_t* nsec) noexcept nogil:
    """`2026-01-31T23:59:59.123456Z`, with up to nine digits of a second or none; other times go the plain way."""
    cdef const uint8_t* p = found.at
    cdef int year, month, day, hour, minute, second, i, of_month
    cdef bint is_leap
    cdef int64_t days, total
    cdef uint32_t fraction = 0
    if not (found.size == 20 or 22 <= found.size <= 30) or p[found.size - 1] != 0x5A:
        return False
    if p[4] != 0x2D or p[7] != 0x2D or p[10] != 0x54 or p[13] != 0x3A or p[16] != 0x3A:
        return False
    year, month, day = number_of(p, 4), number_of(p + 5, 2), number_of(p + 8, 2)
    hour, minute, second = number_of(p + 11, 2), number_of(p + 14, 2), number_of(p + 17, 2)
    if year < 1970 or year > 2106 or not 1 <= month <= 12 or not 0 <= hour <= 23:
        return False
    if not 0 <= minute <= 59 or not 0 <= second <= 59:
        return False
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    of_month = 28 + is_leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if not 1 <= day <= of_month:
        return False
    if found.size > 20:
        if p[19] != 0x2E:
            return False
        for i in range(20, 29):
            fraction *= 10
            if i < found.size - 1:
                if not is_digit(p[i]):
                    return False
                fraction += p[i] - 0x30
    # Days since 1970 of a year that begins in March.
    if month <= 2:
        year, month = year - 1, month + 12
    days = 365 * <int64_t>year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1 - 719468
    total = days * 86400 + hour * 3600 + minute * 60 + second
    if total < 0 or total >> 32:
        return False
    sec[0], nsec[0] = <uint32_t>total, fraction
    return True


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if is_digit(c):
        return c - 0x30
    c |= 0x20
    return c - 0x61 + 10 if 0x61 <= c <= 0x66 else -1


cdef Py_ssize_t decoded(Text* key, uint8_t* to) noexcept nogil:
    """Write a URL-encoded key of at most three times MOST_KEY bytes; how many bytes it has."""
    cdef Py_ssize_t i = 0, size = 0
    cdef int high, low
    while i < key.size:
        if key.at[i] == 0x25 and i + 2 < key.size:
            high, low = hex_digit(key.at[i + 1]), hex_digit(key.at[i + 2])
            if high >= 0 and low >= 0:
                to[size] = <uint8_t>(high << 4 | low)
                size, i = size + 1, i + 3
                continue
        to[size] = 0x20 if key.at[i] == 0x2B else key.at[i]
        size, i = size + 1, i + 1
    return size


cdef inline bint has_control(Text* found) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(found.size):
        if found.at[i] < 0x20 or found.at[i] == 0x7F:
            return True
    return False


# ----------------------------------------------------------------------------------------------- entries


cdef inline uint8_t* put_u32(uint8_t* to, uint32_t value) noexcept nogil:
    to[0], to[1], to[2], to[3] = value & 255, value >> 8 & 255, value >> 16 & 255, value >> 24
    return to + 4


cdef inline uint8_t* put_raw(uint8_t* to, const void* at, Py_ssize_t size) noexcept nogil:
    memcpy(to, at, size)
    return to + size


cdef inline uint8_t* put_text(uint8_t* to, Text* found) noexcept nogil:
    return put_raw(put_u32(to, <uint32_t>found.size), found.at, found.size)


cdef bytes counted(bytes found):
    return len(found).to_bytes(4, "little") + found


cdef bytes pairs_of(State* s):
    """Metadata and tags as an entry has them; None where a name of a mapping stands twice."""
    cdef int i
    cdef list found = []
    for i in range(s.pair_count):
        found.append((
            PyBytes_FromStringAndSize(<const char*>s.pairs[2 * i].at, s.pairs[2 * i].size),
            PyBytes_FromStringAndSize(<const char*>s.pairs[2 * i + 1].at, s.pairs[2 * i + 1].size),
        ))
    metadata = found[s.metadata_from:s.metadata_to] if s.metadata_from >= 0 else []
    tags = found[s.tags_from:s.tags_to]
    if s.is_mapping and len(dict(metadata)) < len(metadata):
        return None
    parts = []
    if len(metadata) > 1:
        metadata = sorted_metadata(metadata)
    if len(tags) > 1:
        tags = sorted_tags(tags)
    for each in (metadata, tags):
        parts.append(len(each).to_bytes(4, "little"))
        for key, value in each:
            parts.append(counted(key))
            parts.append(counted(value))
    return b"".join(parts)


cdef tuple entry_of(State* s, Encoder e, int64_t record):
    """What the event's shard is chosen by, and its entry; None where the plain way decides."""
    cdef uint8_t raw_key[3 * MOST_KEY]
    cdef Text key = s.texts[KEY]
    cdef Text source = s.texts[SOURCE]
    cdef Text opaque = s.texts[OPAQUE]
    cdef Text bucket = s.texts[BUCKET]
    cdef uint32_t sec = e.created_sec, nsec = e.created_nsec
    cdef bytes made, lists = None, entry, found
    cdef uint8_t* to
    cdef Py_ssize_t length
    cdef int i
    if not 0 < bucket.size <= MOST_BUCKET or not s.texts[NAME].size or has_control(&s.texts[NAME]):
        return None
    if memchr(bucket.at, b"/", bucket.size) != NULL:
        return None
    if s.texts[TIME].size and not time_of(&s.texts[TIME], &sec, &nsec):
        return None
    if not 0 < key.size <= 3 * MOST_KEY:
        return None
    if not e.literal_keys and not is_name(&source, b"ceph:s3"):
        key.size = decoded(&key, raw_key)
        key.at = raw_key
    if key.size > MOST_KEY:
        return None
    s.texts[KEY] = key
    if not s.texts[EVENT_ID].size:
        made = s3_records.made_id(e.seed, record)
        s.texts[EVENT_ID].at, s.texts[EVENT_ID].size = <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)
    if PyBytes_GET_SIZE(e.opaque):
        opaque.at, opaque.size = <const uint8_t*>PyBytes_AS_STRING(e.opaque), PyBytes_GET_SIZE(e.opaque)
        s.texts[OPAQUE] = opaque
    if s.pair_count:
        lists = pairs_of(s)
        if lists is None:
            return None

    length = 8 + 8 + (PyBytes_GET_SIZE(lists) if lists is not None else 8)
    for i in range(TIME):
        length += 4 + s.texts[i].size
    entry = PyBytes_FromStringAndSize(NULL, 12 + length + PyBytes_GET_SIZE(e.tail))
    to = <uint8_t*>PyBytes_AS_STRING(entry)
    to[0], to[1] = 3, 1
    put_u32(to + 2, <uint32_t>(6 + length + PyBytes_GET_SIZE(e.tail)))
    to[6], to[7] = 4, 1
    to = put_u32(to + 8, <uint32_t>length)
    for i in range(NAME):
        to = put_text(to, &s.texts[i])
    to = put_u32(put_u32(to, sec), nsec)
    for i in range(NAME, ETAG):
        to = put_text(to, &s.texts[i])
    to = put_u32(put_u32(to, <uint32_t>(s.size & 0xFFFFFFFFu)), <uint32_t>(s.size >> 32))
    for i in range(ETAG, OPAQUE):
        to = put_text(to, &s.texts[i])
    if lists is not None:
        to = put_raw(to, PyBytes_AS_STRING(lists), PyBytes_GET_SIZE(lists))
    else:
        to = put_u32(put_u32(to, 0), 0)
    to = put_text(to, &s.texts[OPAQUE])
    put_raw(to, PyBytes_AS_STRING(e.tail), PyBytes_GET_SIZE(e.tail))

    found = PyBytes_FromStringAndSize(NULL, bucket.size + 1 + key.size)
    to = put_raw(<uint8_t*>PyBytes_AS_STRING(found), bucket.at, bucket.size)
    to[0] = 0x3A
    put_raw(to + 1, key.at, key.size)
    return found, entry


cdef class Encoder:
    """Encodes records of one topic. `tail` is what every entry ends in, behind its event."""

    cdef uint32_t created_sec, created_nsec
    cdef bint literal_keys
    cdef bytes seed, opaque, tail

    def __init__(self, created, bytes seed, bytes opaque, bytes tail, bint literal_keys):
        self.created_sec, self.created_nsec = created
        self.seed, self.opaque, self.tail, self.literal_keys = seed, opaque, tail, literal_keys

    def lines(self, bytes body, int64_t record):
        """The keys and entries of lines, and how many members were dropped. `record` is the first one's index."""
        cdef State s
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(body)
        cdef list keyed = []
        cdef Py_ssize_t dropped = 0
        if not _is_utf8(body):
            return None
        s.end, s.in_lines = p + PyBytes_GET_SIZE(body), True
        while True:
            p = blanks(&s, p)
            if p[0] == 0x0A:
                p += 1
                continue
            if p == s.end:
                break
            p = self.one(&s, p, record, keyed)
            if p == NULL:
                return None
            record += 1
            dropped += s.dropped
            p = blanks(&s, p)
            if p != s.end and p[0] != 0x0A:
                return None
        return (keyed, dropped) if keyed else None

    def document(self, bytes body, int64_t record, bint is_whole):
        """The same of `{"Records":[...]}`. Only where it `is_whole`, and no part of one, there may be other members."""
        cdef State s
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(body)
        cdef const uint8_t* start
        cdef Text name
        cdef Text unknown[MOST_UNKNOWN]
        cdef int unknowns = 0, i
        cdef list keyed = []
        cdef Py_ssize_t dropped = 0
        if not _is_utf8(body):
            return None
        s.end, s.in_lines = p + PyBytes_GET_SIZE(body), False
        p = blanks(&s, p)
        if p[0] != 0x7B:
            return None
        while True:  # over members, from a brace or a comma
            p = member(&s, blanks(&s, p + 1), &name)
            if p == NULL:
                return None
            if is_name(&name, b"Records"):
                if keyed or p[0] != 0x5B:
                    return None
                while p[0] != 0x5D:  # over records, from a bracket or a comma
                    p = self.one(&s, blanks(&s, p + 1), record, keyed)
                    if p == NULL:
                        return None
                    record += 1
                    dropped += s.dropped
                    p = blanks(&s, p)
                    if p[0] != 0x2C and p[0] != 0x5D:
                        return None
                p += 1
            else:
                for i in range(unknowns):
                    if unknown[i].size == name.size and memcmp(unknown[i].at, name.at, name.size) == 0:
                        return None
                if not is_whole or unknowns == MOST_UNKNOWN:
                    return None
                unknown[unknowns] = name
                unknowns += 1
                start = p
                p = passed_over(&s, p, MOST_DEPTH)
                if p == NULL or p - start > MOST_VALUE:
                    return None
            p = blanks(&s, p)
            if p[0] == 0x7D:
                break
            if p[0] != 0x2C:
                return None
        p = blanks(&s, p + 1)
        return (keyed, dropped) if p == s.end and keyed else None

    cdef const uint8_t* one(self, State* s, const uint8_t* p, int64_t record, list keyed) except? NULL:
        """Add a record's key and entry; the place behind it, or NULL."""
        cdef const uint8_t* start = p
        cdef int i
        for i in range(TEXTS):
            s.texts[i].at, s.texts[i].size = p, 0
        s.seen = s.size = 0
        s.dropped = 0
        s.pair_count = s.tags_from = s.tags_to = s.metadata_to = 0
        s.metadata_from = -1
        s.is_mapping = False
        p = object_(s, p, A_RECORD)
        if p == NULL or p - start > MOST_VALUE:
            return NULL
        found = entry_of(s, self, record)
        if found is None:
            return NULL
        keyed.append(found)
        return p


cdef bint _is_utf8(bytes body):
    """Whether Python decodes it: no surrogates, nothing longer than it has to be."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# ------------------------------------------------------------------------------------------------- names


def repeated_name(bytes body):
    """`json_pieces.repeated_name`."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = p + PyBytes_GET_SIZE(body)
    cdef const uint8_t* start
    cdef list names = [], path = []
    cdef set of_object = None  # the innermost that is open; None in a list
    cdef bint is_name = False, is_escaped
    while p < end:
        if p[0] == 0x22:
            start, is_escaped = p, False
            p += 1
            while p < end and p[0] != 0x22:
                if p[0] == 0x5C:
                    is_escaped = True
                    p += 1
                p += 1
            if p >= end:
                break
            if is_name and of_object is not None:
                name = PyBytes_FromStringAndSize(<const char*>start + 1, p - start - 1)
                name = loads(b'"%b"' % name) if is_escaped else (<bytes>name).decode()
                path[len(path) - 1] = name
                if name in of_object:
                    return dotted(path)
                of_object.add(name)
                is_name = False
        elif p[0] == 0x7B:
            of_object, is_name = set(), True
            names.append(of_object)
            path.append("")
        elif p[0] == 0x5B:
            of_object, is_name = None, False
            names.append(None)
            path.append(0)
        elif p[0] == 0x7D or p[0] == 0x5D:
            names.pop()
            path.pop()
            of_object, is_name = names[len(names) - 1] if names else None, False
        elif p[0] == 0x2C:
            if of_object is None:
                path[len(path) - 1] += 1
            else:
                is_name = True
        p += 1
    return None


# ------------------------------------------------------------------------------------------------ shards


cdef enum:
    HASH_SEED = 0xC70F6907

cdef uint64_t M = 0xC6A4A7935BD1E995u


cdef uint64_t shard_hash(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t h = <uint64_t>HASH_SEED ^ (<uint64_t>size * M), k
    cdef Py_ssize_t i
    cdef int j
    for i in range(size // 8):
        k = 0
        for j in range(8):
            k |= <uint64_t>p[8 * i + j] << 8 * j
        k *= M
        h = (h ^ ((k ^ (k >> 47)) * M)) * M
    if size & 7:
        k = 0
        for j in range(size & 7):
            k |= <uint64_t>p[(size & ~<Py_ssize_t>7) + j] << 8 * j
        h = (h ^ k) * M
    h = (h ^ (h >> 47)) * M
    return h ^ (h >> 47)


def shards(keys, uint64_t count):
    """The shard of each key among `count`."""
    cdef bytes key
    cdef list found = []
    if count == 1:
        return bytes(len(keys))
    for key in keys:
        found.append(shard_hash(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) % count)
    return found
