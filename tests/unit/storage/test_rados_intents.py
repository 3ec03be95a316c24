"""How an intent to store events is split into parts, and how the schedule orders its entries."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.errors import StoreError
from remora.model.ingest import ReservedRoom
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic
from remora.storage.rados.ingest.intent_log import Intent, IntentLog, IntentPart, IntentState
from remora.storage.rados.ingest.one_topic import _MOST_BYTES, _MOST_ENTRIES, _split, filled
from remora.storage.rados.ingest.schedule import DueAction, ScheduleEntry, _parsed
from support.older import older_code, older_commits

TOPIC = replace(Topic("t", "", "t", Target("", "", "")), shards=8, origin=Origin.REMORA, id="id")

LARGE = _MOST_BYTES // 3
SIZES = st.lists(st.sampled_from([0, 1, LARGE, _MOST_BYTES, _MOST_BYTES + 1]), min_size=1, max_size=30)
LONG = st.integers(1, 3 * _MOST_ENTRIES).map(lambda count: [1] * count)


@given(st.dictionaries(st.integers(0, 7), SIZES | LONG, max_size=4))
def test_parts_keep_the_order_and_their_limits(sizes: dict[int, list[int]]) -> None:
    """Parts of a shard, put together, are its sizes in order; none holds too much, and none could have held more."""
    parts = _split(sizes)

    assert {shard: [size for part in parts if part.shard == shard for size in part.sizes] for shard in sizes} == sizes
    for part in parts:
        assert 1 <= len(part.sizes) <= _MOST_ENTRIES
        assert sum(part.sizes) <= _MOST_BYTES or len(part.sizes) == 1
    for before, after in pairwise(parts):
        assert (
            before.shard != after.shard
            or len(before.sizes) == _MOST_ENTRIES
            or sum(before.sizes) + after.sizes[0] > _MOST_BYTES
        )


OLDER_FINISHER = """
import sys

import msgspec
from remora.storage.rados.intent_log import Intent

print(*[shard.queue for shard in msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Intent).queues()])
"""


@pytest.mark.full("runs the code of older commits")
@pytest.mark.parametrize("commit", older_commits("c90864a", "eabeb60e"))
def test_an_older_remora_finds_the_queues_of_a_later_layout(tmp_path: Path, commit: str) -> None:
    """A request whose room is in a later layout names its first queue, so that remoras that know one layout only, and
    complete whatever requests they find, complete it in the right queues."""
    topic = replace(TOPIC, generation=2)
    intent = Intent(1, topic.shard(0).queue, topic.id, 0, [IntentPart(0, 7, 1, [b"a"]), IntentPart(5, 8, 1, [b"b"])])
    code = older_code(tmp_path / "older", commit)

    found = subprocess.run(
        [sys.executable, "-c", OLDER_FINISHER], input=msgspec.msgpack.encode(intent), capture_output=True, check=True,
        env=os.environ | {"PYTHONPATH": str(code)},
    )  # fmt: skip

    assert found.stdout.decode().split() == ["t@2", "t@2.5"] == [shard.queue for shard in intent.queues()]


@given(st.dictionaries(st.integers(0, 7), st.lists(st.binary(max_size=5), min_size=1, max_size=1200), max_size=3))
def test_parts_are_filled_in_order(payloads: dict[int, list[bytes]]) -> None:
    """Each payload comes into the part that room was made in for it, in order, and a stored request reads the same."""
    demands = _split({shard: [len(payload) for payload in each] for shard, each in payloads.items()})
    asked = Intent(1, "t", TOPIC.id, 0, [IntentPart(each.shard, 7, len(each.sizes)) for each in demands])

    parts = filled(asked, payloads)
    request = asked.committed(parts, b"digest")

    assert [[len(payload) for payload in part.payloads] for part in parts] == [each.sizes for each in demands]
    for shard, expected in payloads.items():
        queue = Shard(f"t.{shard}" if shard else "t", Origin.REMORA)
        assert [payload for _, part in request.queues()[queue] for payload in part.payloads] == expected
    numbers = [number for each in request.queues().values() for number, _ in each]
    assert len(set(numbers)) == len(parts)
    assert request.events == sum(map(len, payloads.values()))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Intent) == request


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=9), st.integers(0, 2**40))))
def test_rooms_are_stored(rooms: list[tuple[int, bytes, int]]) -> None:
    """The rooms of a reservation come back as they were, whatever bytes their keys are."""
    request = Intent(1, "t", TOPIC.id, 0, [], rooms=[ReservedRoom(*each) for each in rooms])

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Intent).rooms == rooms


def test_a_request_of_a_newer_version_is_refused_by_name() -> None:
    """What another meaning of its fields stands in is not completed, and the error names request and versions."""
    known = Intent(Intent.VERSION, "t@1", TOPIC.id, 0, [])
    newer = msgspec.structs.replace(known, version=Intent.VERSION + 1)
    connection: Any = None
    log = IntentLog(connection, Intent)

    assert log._logged("t.once-1", msgspec.msgpack.encode(known), b"decided") == (known, IntentState.COMMITTED)
    with pytest.raises(StoreError, match=r"request t\.once-1 is a newer remora's: version 2, not 1"):
        log._logged("t.once-1", msgspec.msgpack.encode(newer), b"decided")


@given(
    st.lists(
        st.builds(ScheduleEntry, st.sampled_from(DueAction), st.integers(0, 10**14), st.just("t.once-1/2")), unique=True
    )
)
def test_the_schedule_is_in_order(entries: list[ScheduleEntry]) -> None:
    """In the order of their keys the entries of an action are in the order in which they are due, and read back so."""
    keys = sorted(entry.key for entry in entries)

    read = list(_parsed(dict.fromkeys([*keys, "open/7/x", "other"], b"")))

    assert sorted(read) == sorted(entries)
    for action in DueAction:
        due = [entry.due_ms for entry in read if entry.action is action]
        assert due == sorted(due)
