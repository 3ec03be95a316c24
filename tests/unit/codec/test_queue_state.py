from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.queue_ops import ENTRY_OVERHEAD, HEAD_SIZE, QueueHead, entry_end
from remora.codec.queue_state import VERSION, QueueState, decode_state, encode_spill, encode_state
from remora.model.errors import CodecError
from remora.model.ledger import Balance, Cause, Tally
from remora.model.position import Position
from remora.model.shard import Shard
from remora.model.spill import NO_SPILL, Cut, Spill

START = Position(0, HEAD_SIZE)

positions = st.builds(Position, st.integers(0, 1 << 40), st.integers(HEAD_SIZE, 1 << 40))
tallies = st.builds(Tally, *[st.integers(0, 1 << 40)] * len(Cause))
spills = st.just(NO_SPILL) | st.builds(Spill, positions, st.integers(1, 1 << 40), st.integers(1, 1 << 40))
states = st.builds(QueueState, positions, positions, st.integers(0, 1 << 60), tallies, spills)


def head_of(ring_bytes: int, front: Position = START, tail: Position = START) -> QueueHead:
    """The head of a queue with a ring of this many bytes."""
    return QueueHead(HEAD_SIZE, front, tail, HEAD_SIZE + ring_bytes, 23552, 0, 0, (), False, None, 1)


def after(state: QueueState, head: QueueHead, start: Position, end: Position, count: int) -> QueueState:
    """The state when so many entries of the ring were delivered."""
    share = Cut((), NO_SPILL, head.bytes_between(start, end), count, takes_ring=True)
    return state.after_cut(share, end, Tally(delivered=count))


@given(states)
def test_states_come_back_as_they_were(state: QueueState) -> None:
    """Encoding and decoding gives the same state, and encoding that the same bytes, which removals compare."""
    value, spilled = encode_state(state), encode_spill(state)

    assert decode_state(value, spilled) == state
    assert encode_state(decode_state(value, spilled)) == value
    assert encode_spill(decode_state(value, spilled)) == spilled


@given(states)
def test_a_queue_without_runs_is_read_by_older_remoras(state: QueueState) -> None:
    """Its state has version 1 and none but the causes that they know, and every entry that left is in one of these."""
    stored = msgspec.msgpack.decode(encode_state(replace(state, spill=NO_SPILL)))

    assert stored["version"] == 1
    assert "exported" not in stored["removed"]
    assert sum(stored["removed"].values()) == state.removed.total


@given(states.filter(lambda each: each.spill.entries > 0))
def test_a_state_without_what_it_says_is_spilled_is_refused(state: QueueState) -> None:
    """Neither of the two attributes is believed where the other one says something else of runs."""
    with pytest.raises(CodecError, match=r"remora\.state"):
        decode_state(encode_state(state))
    with pytest.raises(CodecError, match=r"remora\.state"):
        decode_state(encode_state(replace(state, spill=NO_SPILL)), encode_spill(state))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"no state",
        msgspec.msgpack.encode({"version": VERSION}),
        msgspec.msgpack.encode({"version": 1, "begun": "x", "reached": "0/1", "nbytes": 0, "removed": {}}),
        msgspec.msgpack.encode({"version": 1, "begun": "0/1", "reached": "0/1", "nbytes": 0, "removed": {"x": 1}}),
        msgspec.msgpack.encode(
            {"version": VERSION + 1, "begun": "0/1", "reached": "0/1", "nbytes": 0, "removed": {}, "more": 1}
        ),
    ],
)
def test_what_is_no_state_is_refused(value: bytes) -> None:
    """Garbage, a cause that nobody knows and a newer version are refused instead of being taken for a ledger."""
    with pytest.raises(CodecError, match=r"remora\.state"):
        decode_state(value)


@given(st.data())
def test_no_byte_is_lost_over_the_rings_turns(data: st.DataObject) -> None:
    """Whatever sizes entries have, and wherever the ring ends among them, the books agree with its front exactly."""
    ring = data.draw(st.integers(600, 3000))
    lengths = data.draw(st.lists(st.integers(0, 250), min_size=1, max_size=60))
    head = head_of(ring)
    state, front, waiting = QueueState(START, START), START, 0
    tail, nbytes = START, 0
    for length in lengths:
        tail, nbytes = entry_end(tail, length, head), nbytes + ENTRY_OVERHEAD + length
        waiting += 1
        if data.draw(st.booleans()) or waiting * (ENTRY_OVERHEAD + 250) > ring - 260:
            state = after(state, head, front, tail, waiting)
            front, waiting = tail, 0
        now = replace(head, front=front, tail=tail)
        assert state.unaccounted_bytes(now) == 0
        assert state.nbytes + now.used_bytes == nbytes
        assert state.settled(now) == state

    assert state.removed.total + waiting == len(lengths)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), min_size=1, max_size=30))
def test_what_others_removed_is_unaccounted_until_it_is_settled(steps: list[tuple[bool, int]]) -> None:
    """Bytes that leave the ring without being booked show exactly, as an entry at least, and are gone when settled."""
    head, state, front, foreign = head_of(1 << 20), QueueState(START, START), START, 0
    for booked, length in steps:
        end = entry_end(front, length, head)
        if booked:
            state = after(state, head, front, end, 1)
        else:
            foreign += ENTRY_OVERHEAD + length
        front = end
    now = replace(head, front=front, tail=front)

    assert state.unaccounted_bytes(now) == foreign
    assert (state.entries_in(foreign, now) > 0) is (foreign > 0)
    settled = state.settled(now)
    assert settled.unaccounted_bytes(now) == 0
    assert settled.removed.removed_elsewhere == state.entries_in(foreign, now)
    assert replace(settled.removed, removed_elsewhere=0) == state.removed


def test_what_counts_twice_is_not_settled() -> None:
    """A ledger that has more than ever left the ring is wrong for a reason that nobody knows, and says so."""
    head = head_of(1 << 20)
    end = entry_end(START, 100, head)
    state = QueueState(START, end, 2 * head.bytes_between(START, end), Tally(delivered=2))
    now = replace(head, front=end, tail=end)

    assert state.settled(now) == state
    assert state.entries_in(state.unaccounted_bytes(now), now) == -1


@given(tallies, tallies, st.integers(0, 1 << 40))
def test_a_balance_is_what_is_left(first: Tally, second: Tally, pending: int) -> None:
    """Tallies add up cause by cause, and what is committed beyond them and what waits is unaccounted."""
    both = first + second

    assert dict(both.items()) == {cause: dict(first.items())[cause] + dict(second.items())[cause] for cause in Cause}
    assert both.total == first.total + second.total
    assert Balance(Shard("q"), both.total + pending + 3, pending, both).unaccounted == 3
