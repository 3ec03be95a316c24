"""Which topics are held now, and what a hold says of itself."""

from __future__ import annotations

import pytest

from remora.model.member import COMMAND_COOKIE, WORKER_COOKIE, Member
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic, TopicHold
from remora.model.traffic import Priority
from remora.policy.admission.holds import deaf_hosts, hold_text, in_force
from remora.policy.admission.limits import ByteLimit, HeldTopicLimit
from remora.policy.admission.line import Demand, WaitingLine

OWN, RADOSGWS = Shard("t", Origin.REMORA), Shard("t", Origin.RADOSGW)


def topic(origin: Origin, topic_id: str = "") -> Topic:
    return Topic("t", "", "t", Target("", "", "t"), origin=origin, id=topic_id)


@pytest.mark.parametrize(
    ("shard", "hold", "found", "counts"),
    [
        (OWN, TopicHold(5.0, topic_id="a"), topic(Origin.REMORA, "a"), True),
        (OWN, TopicHold(5.0, 10.1, topic_id="a"), topic(Origin.REMORA, "a"), True),
        (OWN, TopicHold(5.0, 10.0, topic_id="a"), topic(Origin.REMORA, "a"), False),
        (OWN, TopicHold(5.0, topic_id="a"), topic(Origin.REMORA, "b"), False),
        (OWN, TopicHold(5.0, topic_id="a"), None, True),
        (RADOSGWS, TopicHold(5.0), topic(Origin.RADOSGW), True),
        (RADOSGWS, TopicHold(5.0), None, True),
        (RADOSGWS, TopicHold(20.0), topic(Origin.RADOSGW), True),
    ],
)
def test_a_hold_counts_for_its_topic_until_its_end(
    shard: Shard, hold: TopicHold, found: Topic | None, counts: bool
) -> None:
    """At second 10: not at its end, not for a topic that was made anew; and for one whose metadata are unreadable."""
    topics = {shard: found} if found else {}

    assert in_force({shard: hold}, topics, 10.0) == ({shard: hold} if counts else {})


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        (TopicHold(0.0), "held by an operator until it is resumed"),
        (TopicHold(0.0, reason="a rebuild"), "held by an operator until it is resumed: a rebuild"),
        (TopicHold(0.0, 1_795_752_000.5), "held by an operator until 2026-11-27 04:00:00Z"),
        (TopicHold(0.0, 1e20), "held by an operator until 9999-12-31 23:59:59Z"),
    ],
)
def test_a_hold_says_until_when_and_why(hold: TopicHold, text: str) -> None:
    """Its text has the end in UTC, at most the last day of the calendar, and the reason where one was given."""
    assert hold_text(hold) == text


def test_hosts_of_earlier_releases_are_named() -> None:
    """A worker whose row names no release knows of no holds; a command's row says nothing of its host."""
    rows = [
        Member(WORKER_COOKIE + "old/b/w", "old", hostname="alpha"),
        Member(WORKER_COOKIE + "old/b/x", "old", hostname="alpha"),
        Member(WORKER_COOKIE + "new/b/w", "new", hostname="beta", release="0.2.0"),
        Member(COMMAND_COOKIE + "c", "c"),
    ]

    assert deaf_hosts(rows) == ["alpha (old)"]


def test_nothing_passes_the_limit_of_a_held_topic() -> None:
    """Who asks waits and holds nothing of what stands behind it; when the topic is resumed all go on in their order."""
    held = True
    line, limit, room = WaitingLine(), HeldTopicLimit(lambda: held), ByteLimit(10)
    first, second = (Demand(Priority.CLIENT_NORMAL, (limit, room), 4) for _ in range(2))
    assert [line.ask(each) for each in (first, second)] == [False, False]
    assert not line.ask_now(Demand(Priority.MAX, (limit,), 0))
    assert room.held == 0

    held = False
    line.free((limit,))

    assert line.look() == [first, second]
    assert room.held == 8
    assert not any(each.is_charged for request in (first, second) for each in request.holds[:1])
