"""Which messages are looked for in the stream before they are sent: all that may be there, and few others."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.nats.streams import Before, SubjectLooks, read_position
from remora.endpoints.runs import WINDOW
from remora.model.record import Record
from support.kafka_sender import make_records

NOW_NS = 1_700_000_000 * 10**9
WINDOW_S = 120.0


@pytest.mark.parametrize(
    ("age_s", "before"),
    [(0.0, Before.NEW), (59.0, Before.NEW), (61.0, Before.UNKNOWN), (3600.0, Before.UNKNOWN), (-5.0, Before.UNKNOWN)],
)
def test_by_age(age_s: float, before: Before) -> None:
    """An entry that is younger than half of the window was never sent before it, unless it is from the future."""
    record = make_records(0, 1)[0]._replace(created_ns=NOW_NS - int(age_s * 1e9))

    assert SubjectLooks(WINDOW_S).before(0, record, NOW_NS) is before


def test_what_a_subject_shows() -> None:
    """Of a key whose last message is known all up to it have arrived, and none behind it; it is not asked for again."""
    looks = SubjectLooks(WINDOW_S)
    old, last, new = make_records(0, 3, keys=1)

    assert looks.before(0, old, NOW_NS) is Before.UNKNOWN
    assert looks.found(0, old, read_position(last.position)) is Before.ARRIVED
    assert looks.before(0, last, NOW_NS) is Before.ARRIVED
    assert looks.before(0, new, NOW_NS) is Before.NEW


def test_when_no_more_is_asked() -> None:
    """A lane in which more have not arrived than may have been under way is past all that was ever begun."""
    looks = SubjectLooks(WINDOW_S)
    records = make_records(0, WINDOW + 2, keys=WINDOW + 2)
    for each in records[: WINDOW + 1]:
        assert looks.before(3, each, NOW_NS) is Before.UNKNOWN
        assert looks.found(3, each, None) is Before.NEW

    assert looks.before(3, records[-1], NOW_NS) is Before.NEW
    assert looks.before(4, records[-1], NOW_NS) is Before.UNKNOWN


def test_an_answer_that_comes_after_that() -> None:
    """A look that was under way when its lane was past them still says what it found."""
    looks = SubjectLooks(WINDOW_S)
    slow, *others = make_records(0, WINDOW + 2, keys=WINDOW + 2)
    looks.before(0, slow, NOW_NS)
    for each in others:
        looks.found(0, each, None)

    assert looks.found(0, slow, read_position(slow.position)) is Before.ARRIVED


class Lane:
    """A lane of a queue and its stream: owners that begin messages in order, and fail with some under way."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.stream: list[Record] = []
        self.asked = 0

    def own(self, chance: Random, steps: int) -> None:
        """One owner for so many steps: begins the next message, or has one of those under way arrive."""
        looks, at, busy = SubjectLooks(WINDOW_S), 0, dict[bytes, Record]()
        for _ in range(steps):
            may_begin = at < len(self.records) and len(busy) < WINDOW and self.records[at].key not in busy
            if may_begin and (not busy or chance.random() < 0.6):
                record = self.records[at]
                at += 1
                before = looks.before(0, record, NOW_NS)
                if before is Before.UNKNOWN:
                    self.asked += 1
                    before = looks.found(0, record, self._last(record.key))
                if before is not Before.ARRIVED:
                    busy[record.key] = record
            elif busy:
                self.stream.append(busy.pop(chance.choice(sorted(busy))))
        for record in busy.values():  # the owner ends without an answer to these
            if chance.random() < 0.5:
                self.stream.append(record)

    def _last(self, key: bytes) -> tuple[int, int] | None:
        found = [each for each in self.stream if each.key == key]
        return read_position(found[-1].position) if found else None


@given(st.integers(0, 2**32), st.integers(1, 60), st.lists(st.integers(0, 150), max_size=6))
def test_against_a_model(seed: int, keys: int, lives: list[int]) -> None:
    """Whatever owners begin and lose one after the other, the stream gets each message once and each key's in order."""
    lane, chance = Lane(make_records(0, 100, keys=keys)), Random(seed)
    for steps in [*lives, 10_000]:
        lane.own(chance, steps)

    assert sorted(each.ordinal for each in lane.stream) == list(range(100))
    for key in {each.key for each in lane.records}:
        places = [each.ordinal for each in lane.stream if each.key == key]
        assert places == sorted(places)


def test_a_backlog_that_nobody_has_begun_is_hardly_asked_for() -> None:
    """Of any number of old entries no more than WINDOW and one are asked for in a lane."""
    lane = Lane(make_records(0, 5000, keys=5000))
    lane.own(Random(0), 20_000)

    assert len(lane.stream) == 5000
    assert lane.asked <= WINDOW + 1
