"""A listing divided: what becomes of each entry."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from engine.runs import a_topic
from remora.codec.event_entry import attributes
from remora.codec.rendering_cached import Renderer
from remora.codec.sequence import with_number
from remora.engine.delivery.letters import letter
from remora.engine.delivery.shard_state import Redelivery
from remora.engine.delivery.triage import Rejected, same_target, triage
from remora.model.ledger import Cause
from remora.model.record import Attempt, DeadLetter, Page
from remora.model.shard import LockToken, Origin, Shard
from remora.policy.delivery.lifetime import LifetimeLimits

LIMITS = LifetimeLimits(time_to_live_s=3600, max_retries=2)


@dataclass(frozen=True)
class Kind:
    """What is wrong with an entry; `attempts` is how often it failed."""

    garbage: bool
    old: bool
    done: bool
    letter: bool
    attempts: int

    def fate(self, limits: LifetimeLimits) -> str:
        """What must become of it, the first reason that counts."""
        if self.done:
            return "skipped"
        if self.letter:
            return "refused"
        if self.garbage:
            return "undecodable"
        if self.old and limits.time_to_live_s:
            return "expired"
        return "exhausted" if self.attempts > 2 and limits.max_retries else "sent"


ANY = st.builds(Kind, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 4))
UNTRIED = st.builds(Kind, st.booleans(), st.booleans(), st.just(False), st.just(False), st.just(0))


def test_records_have_numbers_where_their_topic_has_a_sequence() -> None:
    """`<topic id>:<number>` for a topic that numbers its events; the bytes behind an entry of another one are none."""
    page = Page([b"0/0", b"0/1"], [with_number(raw_entry("k"), 42)], False)
    topic = replace(a_topic(), id="t1")

    found = [
        triage(page, each, LifetimeLimits(), Redelivery(), Renderer()).records[0].sequence
        for each in (topic, replace(topic, is_sequenced=True))
    ]

    assert found == [b"", b"t1:42"]


@pytest.mark.parametrize(("cause", "sequence"), [("expired", "t1:42"), ("undecodable", "t1:42"), ("corrupt", "")])
def test_letters_name_the_number_of_their_entry(cause: str, sequence: str) -> None:
    """Whatever an entry became a letter for, save where its bytes are not those that were committed."""
    raw = with_number(b"garbage" if cause == "undecodable" else raw_entry("k"), 42)
    page, token = Page([b"0/0", b"0/1"], [raw], False), LockToken(Shard("t", Origin.REMORA), "w", "i")
    topic = replace(a_topic(), id="t1", is_sequenced=True)

    assert letter(token, topic, page, Rejected(0, cause, "why")).sequence == sequence
    assert letter(token, replace(topic, is_sequenced=False), page, Rejected(0, cause, "why")).sequence == ""
    assert letter(token, None, page, Rejected(0, cause, "why")).sequence == ""


@given(st.lists(ANY, max_size=12) | st.lists(UNTRIED, max_size=4), st.sampled_from([LifetimeLimits(), LIMITS]))
def test_each_entry_has_one_fate(kinds: list[Kind], limits: LifetimeLimits) -> None:
    """What was done is skipped, whatever else is wrong with it; what has a letter keeps its cause; then what cannot be
    read, is too old or was tried too often is rejected; all else is sent. Each in the queue's order, and once."""
    now = time.time()
    entries = [
        b"garbage" if kind.garbage else raw_entry("k", i, created=now - (7200 if kind.old else 0))
        for i, kind in enumerate(kinds)
    ]
    positions = [b"0/%d" % i for i in range(len(kinds) + 1)]
    done = {positions[i]: Cause.DELIVERED for i, kind in enumerate(kinds) if kind.done}
    attempts = {positions[i]: Attempt(kind.attempts, now) for i, kind in enumerate(kinds) if kind.attempts}
    letters = {
        position: DeadLetter("t", "i", position.decode(), "", "refused", "by the broker", 1, now, now, b"")
        for position, kind in zip(positions, kinds, strict=False)
        if kind.letter
    }
    page = Page(positions, entries, truncated=False)

    found = triage(page, a_topic(), limits, Redelivery(done, attempts, letters=letters), Renderer())

    fates = [kind.fate(limits) for kind in kinds]
    assert [each.ordinal for each in found.records] == [i for i, fate in enumerate(fates) if fate == "sent"]
    assert found.skipped == [i for i, fate in enumerate(fates) if fate == "skipped"]
    assert [(each.ordinal, each.cause) for each in found.rejected] == [
        (i, fate) for i, fate in enumerate(fates) if fate not in ("sent", "skipped")
    ]


def test_what_is_corrupt_says_nothing() -> None:
    """A corrupt entry is rejected as that, readable or not, unless it was done; what it names as its target ends no
    listing, and a part of a listing still says which of its entries are corrupt."""
    entries = [raw_entry("k", 0), raw_entry("k", 1, topic="other"), b"garbage", raw_entry("k", 3), raw_entry("k", 4)]
    entries.append(raw_entry("k", 5, topic="other"))
    page = Page([b"0/%d" % i for i in range(7)], entries, False, {1: "one", 2: "two", 3: "three"})
    target = attributes(entries[0]).target

    part = same_target(page, target)
    found = triage(part, a_topic(), LifetimeLimits(), Redelivery({b"0/3": Cause.DELIVERED}), Renderer())

    assert part.entries == entries[:5]
    assert [each.event_id for each in found.records] == [b"id-0", b"id-4"]
    assert found.rejected == [Rejected(1, "corrupt", "one"), Rejected(2, "corrupt", "two")]
    assert found.skipped == [3]
