"""What decides on the next read of a queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.delivery.flow import ALONE_AFTER_S, LONG, EmptyQueue, Flow
from remora.policy.delivery.pace import ACTIVE_AT_EASE, PASSIVATE_AFTER_S
from remora.policy.delivery.retry import GROWTH, PROBE_ENTRIES

WIDE = 1 << 40


def flow(
    *,
    reach: int = WIDE,
    delivered: int = 64,
    singly: int = 0,
    search: int = 1,
    behind: bool = False,
    caught_s: float = 0,
) -> Flow:
    """A flow whose pages have 1,000 entries by the settings, of 1,000 bytes each."""
    return Flow(1000, reach, 1000.0, delivered, singly, search, behind, caught_s)


@pytest.mark.parametrize(
    ("of", "entries"),
    [
        (flow(), 1000),  # nothing limits it
        (flow(delivered=0), PROBE_ENTRIES),  # the first after a failure
        (flow(delivered=1), GROWTH * PROBE_ENTRIES),  # and the second
        (flow(singly=7), 1),  # a refused record is looked for
        (flow(reach=400_000), 200),  # half of what the shard may hold
        (flow(reach=0), 1),  # a page has one entry at least
        (flow(behind=True), 1000),  # another queue of the worker has no backlog
        (flow(behind=True, caught_s=ALONE_AFTER_S + 1), LONG * 1000),  # all queues have one
        (flow(caught_s=ALONE_AFTER_S + 1), 1000),  # this queue has none
        (flow(behind=True, caught_s=9, reach=3_000_000), 1500),  # memory limits the long page, too
    ],
)
def test_the_next_page_has_so_many_entries(of: Flow, entries: int) -> None:
    """A page is as long as the setting says, unless a failure, a search, the memory or a backlog says otherwise."""
    assert of.page_entries == entries


@pytest.mark.parametrize(
    ("of", "entries"),
    [
        (flow(), 5000),
        (flow(delivered=0), PROBE_ENTRIES),
        (flow(reach=400_000), 200),
        (flow(singly=64, search=8), 8),
        (flow(singly=0, search=8), 5000),
    ],
)
def test_a_transaction_takes_so_many_entries(of: Flow, entries: int) -> None:
    """A transaction grows to its setting, less after a failure, in little memory, and while a record is looked for."""
    assert of.transaction_entries(5000) == entries


FLOWS = st.builds(
    Flow,
    st.integers(1, 10_000),
    st.integers(0, 1 << 32),
    st.floats(1, 1e6),
    st.integers(0, 80),
    st.integers(0, 100),
    st.integers(1, 100),
    st.booleans(),
    st.floats(0, 100),
)


@given(FLOWS, st.integers(1, 100_000), st.integers(0, 100_000))
def test_a_read_is_never_empty_nor_above_the_memory(of: Flow, most: int, joined: int) -> None:
    """Every page has an entry and at most half of the shard's memory; what joins a transaction never overfills it."""
    assert 1 <= of.page_entries <= of.half
    assert 1 <= of.transaction_entries(most) <= min(most, of.half)
    joining = of.joining_entries(most, joined)
    assert 0 <= joining <= of.list_entries
    assert joining + joined <= max(joined, of.transaction_entries(most))


def empty(
    empty_s: float = PASSIVATE_AFTER_S,
    *,
    active: int = 1,
    notifies: bool = True,
    news: bool = False,
    removed: bool = True,
) -> EmptyQueue:
    """A queue that may be passivated, unless an argument says otherwise."""
    return EmptyQueue(empty_s, active, notifies, news, removed)


@pytest.mark.parametrize(
    ("of", "with_watch", "without"),
    [
        (empty(), True, True),
        (empty(PASSIVATE_AFTER_S - 1), False, False),  # not yet
        (empty(PASSIVATE_AFTER_S - 1, active=10 * ACTIVE_AT_EASE), True, True),  # too many are active
        (empty(news=True), False, False),  # entries have come
        (empty(removed=False), False, False),  # a removal is under way
        (empty(notifies=False), False, True),  # somebody must look, though not over a route
    ],
)
def test_when_a_shard_is_passivated(of: EmptyQueue, with_watch: bool, without: bool) -> None:
    """Nothing runs for a shard whose queue has been empty for long, that is whole, and of whose entries we hear."""
    assert of.passivates(keeps_watch=True) is with_watch
    assert of.passivates(keeps_watch=False) is without


@given(st.floats(0, 1e6), st.integers(1, 10_000), st.floats(0.001, 1), st.floats(1, 60))
def test_pauses_stay_within_the_settings(empty_s: float, active: int, least_s: float, most_s: float) -> None:
    """However long a queue has been empty, a wait is at least the shorter and at most the longer of the settings."""
    of = empty(empty_s, active=active)

    assert least_s <= of.pause_s(least_s, most_s) <= most_s
    assert least_s <= of.look_s(least_s, most_s) <= most_s
