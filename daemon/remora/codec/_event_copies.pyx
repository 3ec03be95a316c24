# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""`Matcher.matching` and `event_copies.copies` once more, for a C compiler: which notifications the events of a request
match, and the copies that these send, without an object for anything but the copies.

Both ways have the same tests. Entries are read as `s3_events` makes them; each length is compared with the entry's end.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from remora.codec.event_copies import TopicMatches
from remora.model.notification import Happening

cdef enum:
    HEADERS = 12  # of the entry, then of the event inside
    MOST_PAIRS = 4096  # of a bucket and a name, whose tables are kept


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size


# What every notification asks of an event, and where the rest of it begins in its entry.
cdef struct Parts:
    Text name
    Text bucket
    Text key
    uint64_t size
    Py_ssize_t etag_at


cdef inline uint32_t u32(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef inline const uint8_t* behind(const uint8_t* p, const uint8_t* end, int count) noexcept nogil:
    """The place behind so many texts; NULL where the entry ends before."""
    cdef Py_ssize_t size
    while count:
        if p == NULL or end - p < 4:
            return NULL
        size = u32(p)
        if end - p - 4 < size:
            return NULL
        p += 4 + size
        count -= 1
    return p


cdef inline const uint8_t* text(const uint8_t* p, const uint8_t* end, Text* found) noexcept nogil:
    cdef const uint8_t* after = behind(p, end, 1)
    if after != NULL:
        found.at, found.size = p + 4, after - p - 4
    return after


cdef const uint8_t* behind_pairs(const uint8_t* p, const uint8_t* end) noexcept nogil:
    if p == NULL or end - p < 4:
        return NULL
    if u32(p) > <uint32_t>((end - p) // 8):
        return NULL
    return behind(p + 4, end, 2 * <int>u32(p))


cdef int take_apart(bytes entry, Parts* found) except -1:
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef const uint8_t* end = start + PyBytes_GET_SIZE(entry)
    cdef const uint8_t* p = behind(start + HEADERS, end, 3) if end - start > HEADERS else NULL
    if p == NULL or end - p < 8:
        raise ValueError("this is no entry of an event")
    p = behind(text(p + 8, end, &found.name), end, 6)
    p = text(behind(text(p, end, &found.bucket), end, 2), end, &found.key)
    if p == NULL or end - p < 8:
        raise ValueError("this is no entry of an event")
    found.size = u32(p) | <uint64_t>u32(p + 4) << 32
    found.etag_at = p + 8 - start
    return 0


cdef bytes bytes_of(Text* found):
    return PyBytes_FromStringAndSize(<const char*>found.at, found.size)


cdef tuple pairs(const uint8_t** at, const uint8_t* end):
    """The pairs of a map that `behind_pairs` has gone over; `at` is then behind it."""
    cdef Text name, value
    cdef list found = []
    cdef uint32_t i, count = u32(at[0])
    at[0] += 4
    for i in range(count):
        at[0] = text(text(at[0], end, &name), end, &value)
        found.append((bytes_of(&name), bytes_of(&value)))
    return tuple(found)


cdef event_of(Parts* parts, bytes entry):
    """`event_copies.happening_of`."""
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef const uint8_t* end = start + PyBytes_GET_SIZE(entry)
    cdef const uint8_t* at = behind(start + parts.etag_at, end, 5)
    if behind_pairs(behind_pairs(at, end), end) == NULL:
        raise ValueError("this is no entry of an event")
    metadata = pairs(&at, end)
    tags = pairs(&at, end)
    return Happening(
        bytes_of(&parts.bucket), bytes_of(&parts.name), bytes_of(&parts.key), parts.size, metadata, tags
    )


# ------------------------------------------------------------------------------------------------- ends


cdef inline int side_by_side(const uint8_t* a, Py_ssize_t m, const uint8_t* b, Py_ssize_t n, bint backwards) noexcept nogil:
    """How two texts stand in the order of their bytes, or in that of their bytes from the last one on."""
    cdef Py_ssize_t i, least = m if m < n else n
    cdef int found
    if backwards:
        for i in range(1, least + 1):
            if a[m - i] != b[n - i]:
                return -1 if a[m - i] < b[n - i] else 1
    else:
        found = memcmp(a, b, least)
        if found:
            return found
    return (m > n) - (m < n)


cdef inline Py_ssize_t shared(const Text* one, const Text* other, bint backwards) noexcept nogil:
    """How many bytes two texts have in common at their beginnings, or at their ends."""
    cdef Py_ssize_t i = 0, least = one.size if one.size < other.size else other.size
    if backwards:
        while i < least and one.at[one.size - 1 - i] == other.at[other.size - 1 - i]:
            i += 1
    else:
        while i < least and one.at[i] == other.at[i]:
            i += 1
    return i


cdef inline uint64_t head_of(const Text* found, Py_ssize_t behind, bint backwards) noexcept nogil:
    """The eight bytes behind so many as a number that is in the order of texts; zeros where a text ends before."""
    cdef uint64_t head = 0
    cdef Py_ssize_t i, left = found.size - behind
    for i in range(8):
        head <<= 8
        if i < left:
            head |= found.at[found.size - 1 - behind - i] if backwards else found.at[behind + i]
    return head


cdef inline int first_above(const uint64_t* heads, int count, uint64_t head) noexcept nogil:
    """The first place of a number above this one, of so many in order; their count where there is none."""
    cdef int low = 0, half
    while count > 0:
        half = count >> 1
        if heads[low + half] <= head:
            low += half + 1
            count -= half + 1
        else:
            count = half
    return low


cdef class Ends:
    """Texts that others begin with, or with `backwards` end in.

    They stand in order, each with the place of the longest other one that it goes on from. So the last one that stands
    not behind a text, or one of those that it goes on from, is the longest that the text begins with.

    Nearly always the eight bytes behind those that all have in common tell where a text belongs. They stand side by side
    as numbers, so that the search goes to no text but the last one.
    """

    cdef list texts
    cdef list values
    cdef Text* sorted
    cdef int* shorter
    cdef uint64_t* heads
    cdef Py_ssize_t common
    cdef int count
    cdef bint backwards

    def __cinit__(self, dict by_text, bint backwards):
        cdef int i, at
        self.backwards = backwards
        self.texts = sorted(by_text, key=(lambda each: each[::-1]) if backwards else None)
        self.values = [by_text[each] for each in self.texts]
        self.count = len(self.texts)
        self.sorted = <Text*>PyMem_Calloc(self.count + 1, sizeof(Text))
        self.shorter = <int*>PyMem_Calloc(self.count + 1, sizeof(int))
        self.heads = <uint64_t*>PyMem_Calloc(self.count + 1, sizeof(uint64_t))
        if self.sorted == NULL or self.shorter == NULL or self.heads == NULL:
            raise MemoryError
        for i in range(self.count):
            self.sorted[i].at = <const uint8_t*>PyBytes_AS_STRING(self.texts[i])
            self.sorted[i].size = PyBytes_GET_SIZE(self.texts[i])
            at = i - 1
            while at >= 0 and not self.fits(at, &self.sorted[i]):
                at = self.shorter[at]
            self.shorter[i] = at
        if self.count:
            self.common = shared(&self.sorted[0], &self.sorted[self.count - 1], backwards)
        for i in range(self.count):
            self.heads[i] = head_of(&self.sorted[i], self.common, backwards)

    def __dealloc__(self):
        PyMem_Free(self.sorted)
        PyMem_Free(self.shorter)
        PyMem_Free(self.heads)

    cdef inline bint fits(self, int at, Text* found) noexcept:
        cdef Text each = self.sorted[at]
        if each.size > found.size:
            return False
        return memcmp(each.at, found.at + (found.size - each.size if self.backwards else 0), each.size) == 0

    cdef inline bint has_common(self, Text* found) noexcept:
        cdef Text* one = &self.sorted[0]
        if found.size < self.common:
            return False
        if self.backwards:
            return not memcmp(one.at + one.size - self.common, found.at + found.size - self.common, self.common)
        return not memcmp(one.at, found.at, self.common)

    cdef int longest(self, Text* found) noexcept:
        """The place of the longest that fits a text; -1 for none. `shorter` has the others."""
        cdef int low, high, middle
        cdef uint64_t head
        if not self.count or not self.has_common(found):
            return -1
        head = head_of(found, self.common, self.backwards)
        low = high = first_above(self.heads, self.count, head)
        if low and self.heads[low - 1] == head:  # those with the same eight bytes, which whole texts tell apart
            low = first_above(self.heads, low, head - 1) if head else 0
        while low < high:
            middle = (low + high) >> 1
            if side_by_side(
                self.sorted[middle].at, self.sorted[middle].size, found.at, found.size, self.backwards
            ) <= 0:
                low = middle + 1
            else:
                high = middle
        low -= 1
        while low >= 0 and not self.fits(low, found):
            low = self.shorter[low]
        return low


# ------------------------------------------------------------------------------------------------ tables


cdef class Candidate:
    """A notification that bucket, name, prefix and suffix leave, by its place, and what is still to be tried."""

    cdef object place
    cdef uint64_t least, most
    cdef bint takes_unsized
    cdef tuple others

    def __cinit__(self, given):
        self.place = given.place
        self.least, self.most = given.least, given.most
        self.takes_unsized = given.takes_unsized
        self.others = given.others

    cdef inline bint is_open(self):
        return self.least == 0 and self.most == <uint64_t>-1 and not self.others

    cdef inline bint has_size(self, uint64_t size) noexcept:
        return size <= self.most and (size >= self.least or (size == 0 and self.takes_unsized))


cdef bint are_open(list candidates):
    cdef Candidate each
    for each in candidates:
        if not each.is_open():
            return False
    return True


cdef class Branch:
    """The candidates of one prefix: those without a suffix, and the others by theirs. `all_of` has the places of
    everything that such a key matches, with what shorter prefixes leave, where nothing is left to be tried.

    `all_of_suffix` has the same for each suffix where no shorter prefix leaves anything; None where some are to be tried.
    """

    cdef list bare
    cdef Ends by_suffix
    cdef tuple all_of
    cdef list all_of_suffix

    def __cinit__(self, list candidates):
        by_suffix = {}
        self.bare = []
        for each in candidates:
            if each.suffix:
                by_suffix.setdefault(each.suffix, []).append(Candidate(each))
            else:
                self.bare.append(Candidate(each))
        self.by_suffix = Ends(by_suffix, True) if by_suffix else None

    cdef bint is_open(self):
        return self.by_suffix is None and are_open(self.bare)

    cdef int settle(self) except -1:
        """Find `all_of_suffix`; there is no shorter prefix."""
        cdef Candidate each
        cdef int i, at
        if self.by_suffix is None or not are_open(self.bare):
            return 0
        self.all_of_suffix = []
        for i in range(self.by_suffix.count):
            found, at = [each.place for each in self.bare], i
            while at >= 0 and are_open(self.by_suffix.values[at]):
                found += [each.place for each in <list>self.by_suffix.values[at]]
                at = self.by_suffix.shorter[at]
            self.all_of_suffix.append(tuple(sorted(found)) if at < 0 else None)
        return 0


cdef class Table:
    """The candidates of one pair of a bucket and a name."""

    cdef Ends by_prefix

    def __cinit__(self, candidates):
        cdef Branch branch
        cdef Candidate each
        cdef int i, at
        by_prefix = {}
        for given in candidates:
            by_prefix.setdefault(given.prefix, []).append(given)
        self.by_prefix = Ends({prefix: Branch(some) for prefix, some in by_prefix.items()}, False)
        for i in range(self.by_prefix.count):
            found, at = [], i
            while at >= 0:
                branch = self.by_prefix.values[at]
                if not branch.is_open():
                    break
                for each in branch.bare:
                    found.append(each.place)
                at = self.by_prefix.shorter[at]
            branch = self.by_prefix.values[i]
            branch.all_of = tuple(sorted(found)) if at < 0 else None
            if self.by_prefix.shorter[i] < 0:
                branch.settle()

    cdef tuple places(self, Parts* parts, bytes entry):
        cdef Branch branch
        cdef int at = self.by_prefix.longest(&parts.key), end
        cdef list found
        cdef object places
        if at < 0:
            return ()
        branch = self.by_prefix.values[at]
        if branch.all_of is not None:
            return branch.all_of
        if branch.all_of_suffix is not None and (end := branch.by_suffix.longest(&parts.key)) >= 0:
            places = branch.all_of_suffix[end]
            if places is not None:
                return <tuple>places
        found, event = [], None
        while at >= 0:
            branch = self.by_prefix.values[at]
            if branch.bare:
                event = tried(branch.bare, parts, entry, event, found)
            if branch.by_suffix is not None:
                end = branch.by_suffix.longest(&parts.key)
                while end >= 0:
                    event = tried(branch.by_suffix.values[end], parts, entry, event, found)
                    end = branch.by_suffix.shorter[end]
            at = self.by_prefix.shorter[at]
        if len(found) > 1:
            found.sort()
        return tuple(found)


cdef tried(list candidates, Parts* parts, bytes entry, event, list found):
    """Add the places of candidates that take an event. `event` is what rules in Python are asked with, made once."""
    cdef Candidate each
    for each in candidates:
        if not each.has_size(parts.size):
            continue
        if each.others:
            if event is None:
                event = event_of(parts, entry)
            for rule in each.others:
                if not rule(event):
                    break
            else:
                found.append(each.place)
        else:
            found.append(each.place)
    return event


cdef class Finder:
    """Finds the notifications that events match. `candidates` gives those of a bucket and a name that are left."""

    cdef object candidates
    cdef dict tables
    cdef bytes bucket, name  # of the last event of the last request
    cdef Table table
    cdef list told  # of each notification the last run of events of one bucket in which its place was added

    def __init__(self, candidates, int notifications):
        self.candidates = candidates
        self.tables = {}
        self.told = [None] * notifications

    def places(self, events, dict sent, dict filtered):
        """The places of the notifications that each event matches.

        Of each bucket `sent` gets the places, and `filtered` the entry of the last event that matches none.
        """
        cdef Parts parts
        cdef bytes entry
        cdef tuple places, before = None
        cdef list found = []
        cdef set of_bucket = None
        cdef list told = self.told
        cdef object run = object()
        for event in events:
            entry = (<tuple>event)[1]
            take_apart(entry, &parts)
            if not is_same(&parts.bucket, self.bucket):
                self.bucket, self.table, before, of_bucket, run = bytes_of(&parts.bucket), None, None, None, object()
            if self.table is None or not is_same(&parts.name, self.name):
                self.name = bytes_of(&parts.name)
                self.table = None  # which stands where the next line fails
                self.table = self.table_of(self.bucket, self.name)
            places = self.table.places(&parts, entry)
            found.append(places)
            if not places:
                filtered[self.bucket] = entry
            elif places is not before:
                before = places
                if of_bucket is None:
                    of_bucket = sent.get(self.bucket)
                    if of_bucket is None:
                        of_bucket = sent[self.bucket] = set()
                for each in places:
                    if told[<Py_ssize_t>each] is not run:
                        told[<Py_ssize_t>each] = run
                        of_bucket.add(each)
        return found

    cdef Table table_of(self, bytes bucket, bytes name):
        cdef Table found = self.tables.get((bucket, name))
        if found is None:
            if len(self.tables) >= MOST_PAIRS:
                self.tables.clear()
            found = self.tables[bucket, name] = Table(self.candidates(bucket, name))
        return found


cdef inline bint is_same(Text* found, bytes known) noexcept:
    if known is None or found.size != PyBytes_GET_SIZE(known):
        return False
    return memcmp(found.at, PyBytes_AS_STRING(known), found.size) == 0


# ------------------------------------------------------------------------------------------------ copies


def distribute(events, places, list sends, dict by_topic):
    """`event_copies.distribute`."""
    cdef Py_ssize_t total = 0
    cdef tuple send, matches = None
    cdef object before = None
    for event, some in zip(events, places):
        key, entry = (<tuple>event)[0], (<tuple>event)[1]
        for place in <tuple>some:
            send = sends[place]
            for topic in <tuple>send[1]:
                if topic is not before:
                    before, made = topic, by_topic.get(topic)
                    if made is None:
                        made = by_topic[topic] = tuple.__new__(TopicMatches, ([], [], []))
                    matches = <tuple>made
                (<list>matches[0]).append(key)
                (<list>matches[1]).append(entry)
                (<list>matches[2]).append(send[0])
                total += PyBytes_GET_SIZE(<bytes>entry)
    return total


cdef inline uint8_t* put_u32(uint8_t* to, uint32_t value) noexcept nogil:
    to[0], to[1], to[2], to[3] = value & 255, value >> 8 & 255, value >> 16 & 255, value >> 24
    return to + 4


cdef inline uint8_t* put_raw(uint8_t* to, const void* at, Py_ssize_t size) noexcept nogil:
    memcpy(to, at, size)
    return to + size


cdef inline uint8_t* put_bytes(uint8_t* to, bytes found) noexcept:
    return put_raw(to, PyBytes_AS_STRING(found), PyBytes_GET_SIZE(found))


def copies(entries, notifications, bytes opaque, bytes tail, bytes context):
    """`event_copies.copies`."""
    cdef bytes entry, notification, made
    cdef const uint8_t* start
    cdef const uint8_t* configuration
    cdef const uint8_t* bucket
    cdef const uint8_t* rest
    cdef const uint8_t* end
    cdef uint8_t* to
    cdef Py_ssize_t size, own = PyBytes_GET_SIZE(opaque)
    cdef list found = []
    for entry, notification in zip(entries, notifications):
        start = <const uint8_t*>PyBytes_AS_STRING(entry)
        end = behind_event(start, PyBytes_GET_SIZE(entry))
        configuration = behind(start + HEADERS, end, 3) if end != NULL else NULL
        configuration = behind(configuration + 8, end, 6) if configuration != NULL else NULL
        bucket = behind(configuration, end, 1)
        rest = behind_pairs(behind_pairs(behind_etag(bucket, end), end), end) if own else end
        if bucket == NULL or rest == NULL:
            raise ValueError("this is no entry of an event")
        # The event's own opaque data stands at its end, and is taken over with what stands before.
        size = configuration - start - HEADERS + 4 + PyBytes_GET_SIZE(notification) + (rest - bucket)
        size += 4 + own if own else 0
        made = PyBytes_FromStringAndSize(
            NULL, HEADERS + size + PyBytes_GET_SIZE(tail) + PyBytes_GET_SIZE(context)
        )
        to = <uint8_t*>PyBytes_AS_STRING(made)
        to[0], to[1] = 3, 1
        put_u32(to + 2, <uint32_t>(6 + size + PyBytes_GET_SIZE(tail)))
        to[6], to[7] = 4, 1
        to = put_raw(put_u32(to + 8, <uint32_t>size), start + HEADERS, configuration - start - HEADERS)
        to = put_bytes(put_u32(to, <uint32_t>PyBytes_GET_SIZE(notification)), notification)
        to = put_raw(to, bucket, rest - bucket)
        if own:
            to = put_bytes(put_u32(to, <uint32_t>own), opaque)
        put_bytes(put_bytes(to, tail), context)
        found.append(made)
    return found


cdef inline const uint8_t* behind_event(const uint8_t* start, Py_ssize_t size) noexcept nogil:
    """The end of the event in an entry of this size; NULL where it is beyond the entry's."""
    if size < HEADERS or u32(start + HEADERS - 4) > <uint32_t>(size - HEADERS):
        return NULL
    return start + HEADERS + u32(start + HEADERS - 4)


cdef inline const uint8_t* behind_etag(const uint8_t* bucket, const uint8_t* end) noexcept nogil:
    """The place where an event's metadata begin; NULL where the event ends before."""
    cdef const uint8_t* p = behind(bucket, end, 4)
    return behind(p + 8, end, 5) if p != NULL and end - p >= 8 else NULL
