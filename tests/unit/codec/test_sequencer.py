"""The sequencer's core beside protobuf's own library: every reply byte, and what closes a connection."""

from __future__ import annotations

import struct
from collections import Counter
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import sequencer as in_python
from remora.codec import speedups
from remora.codec.sequencer import (
    INIT_LOG,
    MOST_FRAME_BYTES,
    MOST_PACKED,
    STALE_EPOCH,
    Result,
    SequencerReplies,
    has_more,
    parse_request,
    reply,
)
from remora.model.errors import CodecError
from remora.model.log import MOST_POSITION, LogName

LOG = LogName(b"pool", b"log")
FAR = 1 << 62
CORES = list(dict.fromkeys([in_python.Core, speedups.SequencerCore]))
Core = in_python.Core


@pytest.fixture(scope="module", autouse=True, params=CORES, ids=lambda core: core.__module__.rpartition(".")[2])
def _core(request: pytest.FixtureRequest) -> None:
    """Run all of these tests with each core."""
    global Core
    Core = request.param


UINT64, UINT32, BOOL, BYTES, ENUM = (getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name}")
                                     for name in ("UINT64", "UINT32", "BOOL", "BYTES", "INT32"))  # fmt: skip
REQUIRED, OPTIONAL = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"LABEL_{name}") for name in ("REQUIRED", "OPTIONAL")
)


@cache
def messages() -> dict[str, Any]:
    """The two messages as protobuf's library knows them. Names are bytes there, since any bytes are allowed."""
    file = descriptor_pb2.FileDescriptorProto(name="sequencer.proto", syntax="proto2")
    for name, fields in {
        "Request": [("epoch", 1, UINT64, REQUIRED), ("pool", 2, BYTES, REQUIRED), ("name", 3, BYTES, REQUIRED),
                    ("next", 4, BOOL, REQUIRED), ("count", 5, UINT32, OPTIONAL), ("range", 7, UINT32, OPTIONAL),
                    ("current", 8, BOOL, OPTIONAL)],
        "Reply": [("position", 1, UINT64, REQUIRED), ("status", 2, ENUM, OPTIONAL), ("granted", 4, UINT32, OPTIONAL),
                  ("epoch", 5, UINT64, OPTIONAL)],
    }.items():  # fmt: skip
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("Request", "Reply")}


def request(log: LogName = LOG, epoch: int = 1, hands_out: bool = True, **more: Any) -> bytes:
    body = messages()["Request"](epoch=epoch, pool=log.pool, name=log.name, next=hands_out, **more)
    return framed(body.SerializeToString(deterministic=True))


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def read(replies: bytes) -> list[Any]:
    """The messages of a stream of whole frames."""
    found = []
    while replies:
        (size,) = struct.unpack_from(">I", replies)
        found.append(messages()["Reply"].FromString(replies[4 : 4 + size]))
        assert len(replies) >= 4 + size
        replies = replies[4 + size :]
    return found


def a_core(position: int = 0, bound: int = FAR, epoch: int = 1, log: LogName = LOG) -> in_python.Core:
    core = Core(lambda _log, _result: None)
    core.serve(log, epoch, position, bound)
    return core


# --------------------------------------------------------------------------------------------- exact bytes


@pytest.mark.parametrize(
    ("position", "frame"),
    [(0, "000000020801"), (299, "0000000308ac02"), (126, "00000002087f"), (127, "00000003088001"),
     (16_382, "0000000308ff7f"), (16_383, "0000000408808001"), ((1 << 21) - 1, "000000050880808001")],
)  # fmt: skip
def test_positions_are_minimal_varints(position: int, frame: str) -> None:
    """The position behind the last one is handed out, as protobuf's library would write it, without a status."""
    assert a_core(position).answer(request()).replies.hex() == frame


def test_the_first_position_is_one_and_the_tail_the_last_one() -> None:
    """An empty log has the tail 0; a position that was handed out is the tail from then on."""
    core = a_core()

    tails = [core.answer(request(hands_out=False)).replies, core.answer(request() + request(hands_out=False)).replies]

    assert [[each.position for each in read(replies)] for replies in tails] == [[0], [1, 1]]


@pytest.mark.parametrize("more", [{}, {"count": 3}, {"range": 8}, {"current": False}])
def test_refusals_have_fixed_bytes(more: dict[str, Any]) -> None:
    """A log that is not served, an older and a newer epoch have their own bytes, whatever else is asked; nothing is
    handed out."""
    missed: list[tuple[LogName, Result]] = []
    core = Core(lambda log, result: missed.append((log, result)))
    core.serve(LOG, 5, 7, FAR)
    other = LogName(b"pool", b"other")

    asked = request(other, **more) + request(epoch=4, **more) + request(epoch=6, **more) + request(epoch=5)
    answer = core.answer(asked)

    assert answer.replies == INIT_LOG + STALE_EPOCH + INIT_LOG + reply(8)
    assert INIT_LOG.hex() == "0000000408001001"
    assert STALE_EPOCH.hex() == "0000000408001002"
    assert missed == [(other, Result.INIT_LOG), (LOG, Result.AHEAD)]


def test_a_client_that_asks_learns_the_epoch() -> None:
    """With `current` the request's epoch is not compared, and the reply names the one that is served."""
    core = a_core(epoch=9, position=4)

    next_one, tail = read(core.answer(request(current=True) + request(current=True, hands_out=False)).replies)

    assert (next_one.position, next_one.epoch, tail.position, tail.epoch) == (5, 9, 5, 9)


def test_several_positions_at_once() -> None:
    """`count` answers a packed list, one alone as without it; `range` goes first, and answers how many were granted."""
    core = Core(lambda _log, _result: None, most_range=10)
    core.serve(LOG, 1, 1, FAR)

    assert core.answer(request(count=8)).replies.hex() == "0000000a0a080203040506070809"
    assert core.answer(request(count=1)).replies == reply(10)
    (granted,) = read(core.answer(request(count=8, range=1000)).replies)
    assert (granted.position, granted.granted) == (11, 10)
    assert core.answer(request(hands_out=False, range=0)).replies == reply(20)


# ------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize(
    "frame",
    [
        framed(b""),
        struct.pack(">I", MOST_FRAME_BYTES + 1),
        framed(b"\x08\x01\x12\x00\x1a\x00"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20"),
        framed(b"\x08\x01\x12\x05\x1a\x00\x20\x01"),
        framed(b"\x00\x01\x08\x01\x12\x00\x1a\x00\x20\x01"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20\x01\x4e"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20\x01\x4f"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20\x01\x4c"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20\x01\x4b\x54"),
        framed(b"\x08\x01\x12\x00\x1a\x00\x20\x01" + b"\x4b" * 31 + b"\x4c" * 31),
        request(count=0), request(count=101), request(hands_out=False, count=2), request(range=0),
    ],
)  # fmt: skip
def test_what_closes_a_connection(frame: bytes) -> None:
    """What stands before such a frame is answered, it is not, and nothing behind it is carried out."""
    core = a_core()

    answer = core.answer(request() + frame + request())

    assert answer == SequencerReplies(reply(1), len(request()), closes=True)
    assert core.answer(request()).replies == reply(2)


@pytest.mark.parametrize(
    "body",
    [
        b"\x20\x01\x1a\x03log\x12\x04pool\x08\x01",
        b"\x08\x07\x08\x01\x12\x01x\x12\x04pool\x1a\x03log\x20\x00\x20\x02",
        b"\x08\x81\x80\x00\x12\x84\x80\x00pool\x1a\x03log\xa0\x80\x00\x01",
        b"\x08\x01\x12\x04pool\x1a\x03log\x20\x01\x30\x05\x31" + bytes(8) + b"\x7d" + bytes(4) + b"\x2a\x01\x02",
        b"\x08\x01\x12\x04pool\x1a\x03log\x20\x01" + b"\x4b" * 30 + b"\x4c" * 30,
        b"\x08\x01\x12\x04pool\x1a\x03log\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_strange_frames_that_are_right(body: bytes) -> None:
    """Order, repetition, unknown fields, groups and long varints are as in any proto2 parser, the second time too."""
    core = a_core()

    answers = [core.answer(framed(body)).replies for _ in range(3)]

    assert answers == [reply(1), reply(2), reply(3)]


FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 4, 5, 6, 7, 8, 9]), st.just(0), st.integers(0, (1 << 64) - 1) | st.integers(0, 3)),
    st.tuples(st.sampled_from([1, 2, 3, 4, 7, 9]), st.just(2), st.binary(max_size=6)),
    st.tuples(st.sampled_from([1, 2, 4, 11]), st.sampled_from([1, 5]), st.binary(min_size=8, max_size=8)),
)


def varint(value: int, padding: int = 0) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    for _ in range(padding):
        made[-1] |= 0x80
        made.append(0)
    return bytes(made)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies that are nearly right, with fields of all kinds, and sometimes a byte changed or cut off."""
    parts = [b"\x08\x01", b"\x12\x04pool", b"\x1a\x03log", b"\x20\x01"]
    for field, wire, value in draw(st.lists(FIELDS, max_size=4)):
        tag = varint(field << 3 | wire, draw(st.integers(0, 2)))
        if isinstance(value, int):
            parts.append(tag + varint(value, draw(st.integers(0, 1))))
        else:
            parts.append(tag + (varint(len(value)) + value if wire == 2 else value[: 8 if wire == 1 else 4]))
    body = bytearray(b"".join(draw(st.permutations(parts))))
    for _ in range(draw(st.integers(0, 2))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)) | st.just(len(body)))])


@given(bodies())
def test_requests_are_read_as_protobuf_reads_them(body: bytes) -> None:
    """Each body is refused by both, or by both understood to be the same; only counts that cannot be are refused here
    alone."""
    try:
        wanted = messages()["Request"].FromString(body)
    except DecodeError:
        wanted = None
    try:
        found = parse_request(body)
    except CodecError:
        found = None

    if wanted is None or not wanted.IsInitialized():
        assert found is None
    elif found is None:
        most = 100 if wanted.next else 1
        is_bad_count = wanted.HasField("count") and not 1 <= wanted.count <= most
        assert is_bad_count or (wanted.next and wanted.HasField("range") and not wanted.range)
    else:
        assert (found.epoch, found.pool, found.name, found.next) == (
            wanted.epoch,
            wanted.pool,
            wanted.name,
            wanted.next,
        )
        assert (found.count, found.range, found.current) == (wanted.count, wanted.range, wanted.current)


@given(bodies())
def test_what_protobuf_refuses_closes_the_connection(body: bytes) -> None:
    """A body that is no request closes the connection, and any other one does not, the second time neither."""
    if not 0 < len(body) <= MOST_FRAME_BYTES:
        return
    try:
        parse_request(body)
    except CodecError:
        closes = True
    else:
        closes = False

    core = a_core()

    assert [core.answer(framed(body)).closes for _ in range(2)] == [closes] * 2


# ------------------------------------------------------------------------------------------------- streams

OTHER = LogName(b"p", b"\xff\0")
REQUESTS = st.sampled_from([
    request(), request(), request(OTHER), request(hands_out=False), request(epoch=0), request(epoch=2),
    request(count=3), request(range=5), request(current=True), request(LogName(b"", b"")),
])  # fmt: skip
STARTS = st.sampled_from([0, 120, 16_380, (1 << 21) - 5, 3 * 4096 - 2, 5 * 4096 - 3])


def plainly(core: in_python.Core, frames: list[bytes]) -> bytes:
    """The replies to frames that are handed in one by one, with nothing remembered between them."""
    replies = []
    for frame in frames:
        for log, counter in list(core.counters.items()):
            core.serve(log, counter.epoch, counter.position, counter.bound)
        replies.append(core.answer(frame).replies)
    return b"".join(replies)


def two_logs(start: int) -> in_python.Core:
    core = a_core(start)
    core.serve(OTHER, 1, start, FAR)
    return core


@given(st.lists(REQUESTS, max_size=12), STARTS, st.lists(st.integers(0, 400), max_size=6))
def test_all_cuts_of_a_stream_give_the_same_replies(frames: list[bytes], start: int, cuts: list[int]) -> None:
    """However a stream arrives, its replies are those of the frames one by one."""
    stream, core = b"".join(frames), two_logs(start)
    replies, left = b"", b""

    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        answer = core.answer(left + stream[begin:end])
        assert not answer.closes
        replies, left = replies + answer.replies, (left + stream[begin:end])[answer.consumed :]

    assert not left
    assert replies == plainly(two_logs(start), frames)


@given(st.lists(st.tuples(REQUESTS, st.integers(1, 200)), max_size=4), STARTS)
def test_runs_are_answered_as_single_requests(runs: list[tuple[bytes, int]], start: int) -> None:
    """Equal frames in a row, over the ends of blocks too, get what they would get one by one."""
    core, frames = two_logs(start), [frame for frame, count in runs for _ in range(count)]

    found = [core.answer(frame * count).replies for frame, count in runs] if start % 2 else [
        core.answer(b"".join(frames)).replies
    ]  # fmt: skip

    assert b"".join(found) == plainly(two_logs(start), frames)


@given(st.lists(bodies() | REQUESTS.map(lambda frame: frame[4:]), max_size=12), STARTS, st.integers(0, 40))
def test_each_core_answers_as_the_one_in_python(stream: list[bytes], start: int, room: int) -> None:
    """Over any stream, right or wrong, replies, counters, what was missed and what is counted are the same."""
    found = []
    for kind in (in_python.Core, Core):
        missed: list[tuple[LogName, Result]] = []
        core = kind(lambda *what, missed=missed: missed.append(what), 4, 10)
        core.serve(LOG, 1, start, start + room)
        core.serve(OTHER, 1, start, FAR)
        answers = [core.answer(b"".join(map(framed, stream[:cut]))) for cut in (3, len(stream))]
        counters = {log: (each.epoch, each.position, each.requests) for log, each in core.counters.items()}
        found.append((answers, counters, missed, core.results, core.low))

    assert found[0] == found[1]


def test_a_long_run_over_many_blocks() -> None:
    """Ten thousand equal frames are answered with ten thousand positions, each once and in order."""
    core = a_core(16_000)
    core.answer(request())

    replies = core.answer(request() * 10_000).replies

    assert replies == b"".join(map(reply, range(16_002, 26_002)))


def test_frames_that_are_remembered_do_not_outlive_their_epoch() -> None:
    """The same bytes are refused when a later epoch is served, and when nothing is."""
    core = a_core()
    first = core.answer(request() * 3).replies

    core.serve(LOG, 2, 10, FAR)
    later = core.answer(request() + request(epoch=2)).replies
    core.forget(LOG)

    assert first == reply(1) + reply(2) + reply(3)
    assert later == STALE_EPOCH + reply(11)
    assert core.answer(request() + request(epoch=2)).replies == INIT_LOG * 2


def test_frames_of_many_logs_are_answered_from_their_own_counters() -> None:
    """Two hundred logs with names of one length, asked in turn and often, each get their own positions."""
    core, logs = Core(lambda _log, _result: None), [LogName(b"pool", b"log-%03d" % number) for number in range(200)]
    for number, log in enumerate(logs):
        core.serve(log, 1, 1000 * number, FAR)
    order = [(7 * step * step + step) % 200 for step in range(5000)] + list(range(8)) * 100

    replies = core.answer(b"".join(request(logs[number]) for number in order)).replies

    given: Counter[int] = Counter()
    expected = []
    for number in order:
        given[number] += 1
        expected.append(reply(1000 * number + given[number]))
    assert replies == b"".join(expected)


@given(st.lists(REQUESTS, min_size=1, max_size=30), st.integers(0, 12))
def test_nothing_is_handed_out_beyond_the_bound(frames: list[bytes], room: int) -> None:
    """A request that meets the bound stays unread until that is raised, and then gets what it would have got before."""
    frames = [each for each in frames if each != request(range=5)]  # of a range the bound may grant a part
    core, stream, replies = a_core(bound=room), b"".join(frames), b""
    core.serve(OTHER, 1, 0, FAR)

    while stream:
        answer = core.answer(stream)
        replies, stream = replies + answer.replies, stream[answer.consumed :]
        assert core.counters[LOG].position <= core.counters[LOG].bound
        if answer.waits:
            assert answer.waits == LOG
            core.raise_bound(LOG, 1, core.counters[LOG].bound + 7)

    assert replies == plainly(two_logs(0), frames)


def test_a_range_at_the_bound_is_granted_in_part() -> None:
    """Below the bound as many of a range are granted as fit, and at it the request waits."""
    core = a_core(bound=3)

    answer = core.answer(request(range=5) * 2)

    assert answer == SequencerReplies(reply(1, 3), len(request(range=5)), waits=LOG)


@pytest.mark.parametrize("more", [{"count": 100}, {"count": 3}])
def test_more_than_a_log_has_left_is_not_waited_for(more: dict[str, Any]) -> None:
    """At the end of a log, whose bound is never raised, a request for more is answered, one that fits granted."""
    core = a_core()
    core.serve(LOG, 1, MOST_POSITION - 2, MOST_POSITION)

    assert core.answer(request(**more)).replies == INIT_LOG
    assert core.answer(request(range=5)).replies == reply(MOST_POSITION - 1, granted=2)
    for each in ({}, {"range": 5}, more):
        assert core.answer(request(**each)) == SequencerReplies(INIT_LOG, len(request(**each)))


def test_a_log_that_is_low_is_named_once_for_each_bound() -> None:
    """With less than half of its window left a log wants its bound raised, and not again before it was."""
    core = Core(lambda _log, _result: None, bound_room=5)
    core.serve(LOG, 1, 0, 10)

    core.answer(request() * 5)
    before = set(core.low)
    core.answer(request())
    after = set(core.low)
    core.raise_bound(LOG, 2, 99)
    of_another_epoch = set(core.low)
    core.raise_bound(LOG, 1, 20)

    assert (before, after, of_another_epoch, core.low) == (set(), {LOG}, {LOG}, set())


@given(st.lists(st.sampled_from([{"count": 100}, {"count": 1}, {}, {"range": 9}]), min_size=1, max_size=9))
def test_replies_that_are_much_longer_than_their_requests_come_in_parts(kinds: list[dict[str, Any]]) -> None:
    """Not much more than MOST_PACKED bytes of them at a time; all parts are what the requests would get one by one."""
    core, other = a_core(), a_core()
    frames = [request(**kind) for kind in kinds] * 200
    rest, found = b"".join(frames), b""
    while True:
        answer = core.answer(rest)
        found, rest = found + answer.replies, rest[answer.consumed :]
        packed = sum(len(each) for each in _frames(answer.replies) if each[4:5] == b"\x0a")
        assert packed <= MOST_PACKED + MOST_FRAME_BYTES
        assert not answer.closes
        assert answer.waits is None
        if not has_more(rest):
            break

    assert rest == b""
    assert found == b"".join(other.answer(frame).replies for frame in frames)


def _frames(replies: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(replies):
        end = place + 4 + int.from_bytes(replies[place : place + 4], "big")
        found.append(replies[place:end])
        place = end
    return found


@pytest.mark.parametrize(
    ("rest", "more"),
    [(b"", False), (bytes(3), False), (bytes(4), True), (b"\0\0\5\0", True), (b"\0\0\0\2a", False),
     (b"\0\0\0\2ab", True)],
)  # fmt: skip
def test_more_is_left_where_a_frame_is_whole_or_wrong(rest: bytes, more: bool) -> None:
    """A part of a frame is no reason to go on, a header that closes the connection is one."""
    assert has_more(rest) == more
