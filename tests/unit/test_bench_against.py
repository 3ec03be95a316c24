"""What the benchmark against other programs makes of records and turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.bench.against import CONFLUENT, OBJECTS, PEERS, row
from devkit.bench.backlog import Shape
from devkit.bench.clusters import BenchError
from devkit.bench.errand import Arrivals, Sent
from devkit.bench.load import BUCKETS, Load, records
from remora.model.topic import Target

LOAD = Load(0, Target("kafka://nobody", "", "bench"), 1000, objects=OBJECTS)
BODIES = [record.body for record in records(list(LOAD.entries(0, 3 * OBJECTS)))]


def arrived(*numbers: int, inversions: int | None = 0) -> tuple[int, int, int | None]:
    """Events, copies and inversions of records that came in this order."""
    found = Arrivals(inversions=inversions)
    found.add([BODIES[number] for number in numbers])
    return found.events, found.copies, found.inversions


def test_each_object_is_written_again_and_again_in_one_shard_and_bucket() -> None:
    """The events of an object have one key, which no other object has, and as many objects are in each shard."""
    made = records(list(LOAD.entries(0, 3 * OBJECTS)))

    assert len({record.key for record in made}) == OBJECTS
    assert all(made[n].key == made[n + OBJECTS].key == made[n + 2 * OBJECTS].key for n in range(OBJECTS))
    assert (OBJECTS % Shape().shards, OBJECTS % BUCKETS) == (0, 0)


def test_a_record_that_comes_again_is_a_copy() -> None:
    """A copy is no event, and is never out of order, wherever it stands."""
    assert arrived(0, 1, OBJECTS, 0, 1) == (3, 2, 0)


def test_a_record_behind_a_later_one_of_its_object_is_out_of_order() -> None:
    """Records of different objects may come in any order, those of one object may not."""
    assert arrived(5, 4, 3) == (3, 0, 0)
    assert arrived(0, 2 * OBJECTS, OBJECTS) == (3, 0, 1)


def test_records_without_a_key_are_not_judged_by_their_order() -> None:
    """They are counted, and no figure of order is there, nor in the row."""
    assert arrived(0, 2 * OBJECTS, OBJECTS, 0, inversions=None) == (3, 1, None)
    assert row("kafka-connect", [Sent(1.0, {"sender": 1.0, "broker": 1.0}, 7)], Arrivals(3, 1, None)).inversions is None


@pytest.mark.parametrize("peer", sorted(PEERS.keys() - {CONFLUENT}))
def test_a_peer_that_is_missing_is_named(peer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where its program is not installed, one line names it and what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BenchError, match=rf"{peer}.* missing: [^\n]+$"):
        PEERS[peer]()


def test_a_record_of_nobody_is_refused() -> None:
    """What the benchmark has not sent makes its figures worthless."""
    with pytest.raises(BenchError, match="nobody's"):
        Arrivals().add([b"{}"])


def test_a_row_has_the_medians_of_its_turns() -> None:
    """Rate, processor time and memory are each the median, and the counts are those after the SIGKILL."""
    turns = [Sent(rate, {"sender": cpu, "broker": 2 * cpu}, 7) for rate, cpu in ((1.0, 9.0), (3.0, 5.0), (2.0, 1.0))]

    found = row("kcat", turns, Arrivals(10, 4, 1))

    assert (found.rate, found.sender_cpu_us, found.broker_cpu_us) == (2.0, 5.0, 10.0)
    assert (found.events, found.copies, found.inversions) == (10, 4, 1)
