"""What a consumer takes for new, for a copy and for missing: the vectors for all languages, and an oracle."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka.structs import ConsumerRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.client import (
    BadHeader,
    Checkpoint,
    CheckpointRefused,
    CommitOrder,
    Deduplicator,
    Gap,
    GapFound,
    TooManyShards,
)

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "docs/consume-vectors.json").read_text()
)


def headers_of(told: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value.encode()) for name, value in told.items())


def judged(dedupe: Deduplicator, record: dict[str, Any]) -> object:
    """What a vector's record is taken for, in the vectors' words."""
    try:
        is_new = dedupe.is_new(record["partition"], headers_of(record["headers"]))
    except GapFound as exc:
        return {"gap": as_vector(exc.gap)}
    except BadHeader:
        return "bad header"
    return "new" if is_new else "copy"


def as_vector(gap: Gap) -> dict[str, str]:
    return {"shard": gap.shard, "incarnation": gap.incarnation, "begin": gap.begin, "end": gap.end}


@pytest.mark.parametrize("vector", VECTORS["dedupe"], ids=lambda vector: vector["name"])
def test_a_deduplicator_answers_as_the_vectors_say(vector: dict[str, Any]) -> None:
    """Each step of each vector: records, dead letters, what is missing, what is accepted, and a new beginning."""
    options = {"ahead": vector["ahead"], "edge": vector["edge"]}
    dedupe = Deduplicator(**options)

    for number, step in enumerate(vector["steps"]):
        if "record" in step:
            assert judged(dedupe, step["record"]) == step["expect"], number
        elif "letter" in step:
            dedupe.letter(headers_of(step["letter"]["headers"]))
        elif "ended" in step:
            told = step["ended"]
            dedupe.ended(told["queue"], told["incarnation"], told["end"])
        elif "missing" in step:
            assert [as_vector(gap) for gap in dedupe.missing()] == step["missing"], number
        elif "accept" in step:
            dedupe.accept(Gap(**step["accept"]))
        else:
            assert step == {"restart": True}
            dedupe = Deduplicator(**options, checkpoint=dedupe.checkpoint())


@pytest.mark.parametrize("vector", VECTORS["order"], ids=lambda vector: vector["name"])
def test_the_order_of_commits_is_as_the_vectors_say(vector: dict[str, Any]) -> None:
    """Each step of each vector: records by number, holes that are passed, and where to go on."""
    order = CommitOrder[int](vector["topic_id"])

    for place, step in enumerate(vector["steps"]):
        if "record" in step:
            record = step["record"]
            header = record["remora-seq"] and record["remora-seq"].encode()
            order.add(record["partition"], record["offset"], header, place)
        elif "follow" in step:
            assert [number for number, _ in order.follow()] == step["follow"], place
        elif "pass_to" in step:
            assert [number for number, _ in order.pass_to(step["pass_to"])] == step["lets_go"], place
        else:
            told = step["checkpoint"]
            wanted = Checkpoint(told["after"], {int(each): at for each, at in told["offsets"].items()})
            assert order.checkpoint() == wanted


# ------------------------------------------------------------------------------------------- against an oracle


class Entry(NamedTuple):
    """An entry of a shard: the place where it begins, and where the next one does."""

    shard: int
    at: int
    end: int


@dataclass
class Oracle:
    """The same answers from everything that was ever read, kept whole."""

    ahead: int
    seen: set[Entry] = field(default_factory=set)
    first: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)

    def answer(self, entry: Entry) -> object:
        if entry in self.seen:
            return "copy"
        if self.waits(entry) and sum(len(self.waiting(shard)) for shard in self.first) >= self.ahead:
            return "gap"
        self.seen.add(entry)
        self.first.setdefault(entry.shard, entry.at)
        return "new"

    def waits(self, entry: Entry) -> bool:
        return entry.shard in self.first and entry.at > self.whole(entry.shard)

    def whole(self, shard: int) -> int:
        """The place up to which nothing is missing since the first one that was read."""
        ends = {each.at: each.end for each in self.seen if each.shard == shard}
        at = max(self.first[shard], self.passed.get(shard, 0))
        while at in ends:
            at = ends[at]
        return at

    def waiting(self, shard: int) -> list[Entry]:
        return [each for each in self.seen if each.shard == shard and each.at > self.whole(shard)]


@st.composite
def readings(draw: st.DrawFn) -> list[tuple[int, Entry] | None]:
    """Partitions and entries as they are read, with None where the consumer begins anew from its checkpoint.

    Each partition has its entries of a shard in order, some lost, and goes back to an earlier one now and then, as
    after a failure; partitions are read side by side.
    """
    logs: defaultdict[int, list[Entry]] = defaultdict(list)
    for shard in range(draw(st.integers(1, 3))):
        at = 0
        for size in draw(st.lists(st.integers(1, 20), max_size=12)):
            entry = Entry(shard, at, at + size)
            at += size
            if draw(st.integers(0, 9)):
                logs[draw(st.integers(0, 2))].append(entry)
    for log in logs.values():
        for _ in range(draw(st.integers(0, 2))):
            begin = draw(st.integers(0, len(log)))
            end = draw(st.integers(begin, len(log)))
            log[end:end] = log[begin:end]
    read: list[tuple[int, Entry] | None] = []
    while logs:
        partition = draw(st.sampled_from(sorted(logs)))
        read.append((partition, logs[partition].pop(0)))
        if not logs[partition]:
            del logs[partition]
        if not draw(st.integers(0, 5)):
            read.append(None)
    return read


def record(partition: int, shard: str, at: object, end: object, incarnation: str = "a1") -> ConsumerRecord:
    """A record as aiokafka has it, with all six headers."""
    headers = headers_of(
        {
            "remora-shard": shard,
            "remora-pos": f"{incarnation}:{at}",
            "remora-next": f"{incarnation}:{end}",
            "remora-event-id": "1795227938.482913.4c0ffee",
            "remora-seq": "8c1f5a0e6d2b4790:1",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
    )
    return ConsumerRecord("photos", partition, 0, 0, 0, b"k", b"v", None, 1, 1, headers)


def answer(dedupe: Deduplicator, given: ConsumerRecord) -> object:
    """What a record is taken for, or the gap that it shows."""
    try:
        return "new" if list(dedupe.fresh([given])) else "copy"
    except GapFound as exc:
        return exc.gap


@settings(max_examples=150, deadline=None)
@given(readings(), st.integers(0, 6))
def test_it_answers_as_one_that_remembers_everything(read: list[tuple[int, Entry] | None], ahead: int) -> None:
    """Whatever is read in whatever order of partitions, with copies, losses and new beginnings: each record is new,
    a copy or beyond a gap exactly as one says who keeps every position, and the same is missing in the end."""
    dedupe, oracle = Deduplicator(ahead=ahead), Oracle(ahead)

    for step in read:
        if step is None:
            dedupe = Deduplicator(ahead=ahead, checkpoint=dedupe.checkpoint())
            continue
        partition, entry = step
        given = record(partition, f"t.{entry.shard}", f"0/{entry.at}", f"0/{entry.end}")
        answers = [(oracle.answer(entry), answer(dedupe, given))]
        while isinstance(gap := answers[-1][1], Gap):
            shard = int(gap.shard.partition(".")[2])
            assert gap.begin == f"0/{oracle.whole(shard)}"
            dedupe.accept(gap)
            oracle.passed[shard] = int(gap.end.partition("/")[2])
            answers.append((oracle.answer(entry), answer(dedupe, given)))
        assert all(told == ("gap" if isinstance(found, Gap) else found) for told, found in answers)

    open_ = {f"t.{each}": min(oracle.waiting(each)).at for each in oracle.first if oracle.waiting(each)}
    assert {gap.shard: int(gap.end.partition("/")[2]) for gap in dedupe.missing()} == open_
    assert dedupe.held == sum(len(oracle.waiting(shard)) for shard in oracle.first)


# ------------------------------------------------------------------------------------------------- the class


def test_a_batch_that_stops_at_a_gap_goes_on_behind_it() -> None:
    """What was let go before the gap is taken, and what is behind it is given again."""
    batch = [record(0, "t.0", f"0/{at}", f"0/{at + 10}") for at in (0, 10, 30, 40)]
    dedupe = Deduplicator(ahead=0)
    taken: list[ConsumerRecord] = []

    with pytest.raises(GapFound, match=r"t\.0: entries are missing from 0/20 up to 0/30 \(incarnation a1\)") as raised:
        taken.extend(dedupe.fresh(batch))
    dedupe.accept(raised.value.gap)
    taken.extend(dedupe.fresh(batch[len(taken) :]))

    assert taken == batch
    assert (dedupe.copies, dedupe.missing()) == (0, [])


def test_the_changes_of_each_shard_are_enough_to_go_on() -> None:
    """Rows of the shards that have changed, each kept over its last one, are as good as a whole checkpoint."""
    dedupe = Deduplicator(ahead=9)
    rows: dict[str, bytes] = {}
    for at in range(0, 90, 10):
        shard = f"t.{at % 3}"
        list(dedupe.fresh([record(at % 2, shard, f"0/{at}", f"0/{at + 30}", "a1" if at < 60 else "b2")]))
        changed = dedupe.changes()
        assert list(changed) == [shard]
        rows |= changed

    again = Deduplicator(ahead=9, checkpoint=rows.values())

    assert json.loads(again.checkpoint())["queues"] == sorted(
        json.loads(dedupe.checkpoint())["queues"],
        key=lambda queue: (queue["incarnation"], list(rows).index(queue["shard"])),
    )
    assert dedupe.changes() == {}


def test_a_checkpoint_has_the_documented_form() -> None:
    """Version 1 as docs/consume.md shows it; another version and other bytes are refused with the reason."""
    dedupe = Deduplicator(ahead=9)
    list(dedupe.fresh([record(0, "photos.3", "0/0", "0/10"), record(4, "photos.3", "0/20", "1/0")]))

    assert json.loads(dedupe.checkpoint()) == {
        "version": 1,
        "queues": [
            {
                "shard": "photos.3",
                "incarnation": "a1",
                "read": {"0": "0/10", "4": "1/0"},
                "whole": "0/10",
                "ahead": {"0/20": "1/0"},
            }
        ],
    }
    for kept, why in (
        (b'{"version":2,"queues":[]}', "version 2; this remora knows 1"),
        (b"{}", "not a checkpoint of a Deduplicator"),
        (b'{"version":1,"queues":[],"x":%b}' % (b"[" * 100_000), "not a checkpoint of a Deduplicator"),
        (b'{"version":1,"queues":[{"shard":"a","incarnation":"b","whole":"7"}]}', "'7', not turn/place"),
        (b'{"version":1,"queues":[{"shard":"a","incarnation":"b","read":{"x":"0/1"}}]}', "partition is 'x', no number"),
        (b'{"version":1,"queues":[{"shard":"a","incarnation":"b","whole":"0/%s"}]}' % (b"1" * 5000), "not turn/place"),
    ):
        with pytest.raises(CheckpointRefused, match=why):
            Deduplicator(ahead=0, checkpoint=kept)


def test_more_shards_than_it_may_have_are_refused() -> None:
    """By the name of the first that is too many; those that are known go on."""
    dedupe = Deduplicator(ahead=0, most_shards=2)
    assert len(list(dedupe.fresh([record(0, f"t.{shard}", "0/0", "0/10") for shard in range(2)]))) == 2

    with pytest.raises(TooManyShards, match=r"t\.2: records name more than 2 shards"):
        list(dedupe.fresh([record(0, "t.2", "0/0", "0/10")]))

    assert len(list(dedupe.fresh([record(0, "t.0", "0/10", "0/20")]))) == 1


def test_memory_is_bounded_by_the_number_of_shards() -> None:
    """Three thousand shards take less than 1,000 bytes each, and the second round of records takes no more."""
    dedupe = Deduplicator(ahead=1000)
    shards = [f"photos-of-a-topic.{number}" for number in range(3_000)]

    def round_of(at: int) -> int:
        for shard in shards:
            dedupe.is_new(0, record(0, shard, f"0/{at}", f"0/{at + 500}", "a1b2c3d4e5f60718").headers)
        return tracemalloc.get_traced_memory()[0]

    gc.collect()  # it empties the lists of free tuples, which were not measured when they were made
    tracemalloc.start()
    try:
        first, second = round_of(10**9), round_of(10**9 + 500)
    finally:
        tracemalloc.stop()

    assert first < 3_000 * 1000
    assert second < first * 1.02


@pytest.mark.parametrize(
    "odd",
    [
        {"remora-shard": b"t\xff", "remora-pos": b"i:0/9", "remora-next": b"i:0/10"},
        {"remora-shard": b"t", "remora-pos": b"\xff:0/9", "remora-next": b"\xff:0/10"},
        {"remora-shard": b"t", "remora-pos": b"other:0/9", "remora-next": b"i:0/10"},
        {"remora-shard": b"t", "remora-pos": b"other:0/9", "remora-next": b"soon"},
        {"remora-shard": None, "remora-pos": b"i:0/2", "remora-next": b"i:0/3"},
        {"remora-pos": b"i:0/2", "remora-shard": None, "remora-next": b"i:0/3"},
        {"remora-shard": b"t", "remora-pos": None, "remora-next": None},
        {"remora-shard": b"t", "remora-pos": b"i:0/2", "remora-next": b"i:0/2"},
        {"remora-shard": b"t", "remora-pos": b"i:0/2", "remora-next": b"i:0/" + b"1" * 5000},
        {"remora-shard": b"t", "remora-pos": b"other:0/9", "remora-next": b"other:0/10", "remora-after": b"soon"},
    ],
    ids=[
        "shard is no text", "incarnation is no text", "two incarnations", "next is none", "shard is null",
        "shard is null, in another order", "position is null", "next is its own", "more digits than 64 bits have",
        "parents are none",
    ],
)  # fmt: skip
def test_a_record_with_a_bad_header_leaves_nothing_behind(odd: dict[str, Any]) -> None:
    """What cannot be judged is refused at once, changes no checkpoint, and makes no copy new."""
    dedupe, same = Deduplicator(ahead=0), Deduplicator(ahead=0)
    good = headers_of({"remora-shard": "t", "remora-pos": "i:0/1", "remora-next": "i:0/2"})
    for each in (dedupe, same):
        assert each.is_new(0, good)

    for _ in range(2):
        with pytest.raises(BadHeader):
            dedupe.is_new(0, tuple(odd.items()))

    assert dedupe.checkpoint() == same.checkpoint()
    assert not dedupe.is_new(0, good)
