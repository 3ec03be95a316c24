from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.ledger import Cause, Tally
from remora.policy.delivery.acks import PageAcks, Prefix, Window


def positions(start: int, count: int) -> list[bytes]:
    return [b"0/%d" % (start + i) for i in range(count + 1)]


def test_nothing_is_removable_before_the_oldest_entry_is_done() -> None:
    """However much is done behind it, an unfinished first entry keeps everything in the queue."""
    window = Window()
    first = window.add(positions(0, 3))
    second = window.add(positions(3, 2))

    first.mark_done([1, 2], Cause.DELIVERED)
    second.mark_done([0, 1], Cause.EXPIRED)

    assert window.removable(whole_pages=False) is None


def test_a_part_of_a_round_is_removable_only_when_asked_for() -> None:
    """With whole pages a prefix ends where a page ended, otherwise at the first unfinished entry."""
    window = Window()
    first = window.add(positions(0, 2))
    second = window.add(positions(2, 3))
    first.mark_done([0, 1], Cause.DELIVERED)
    second.mark_done([0, 2], Cause.EXPIRED)

    assert window.removable(whole_pages=True) == Prefix(b"0/2", 2, Tally(delivered=2))
    assert window.removable(whole_pages=False) == Prefix(b"0/3", 3, Tally(delivered=2, expired=1))


def test_what_is_done_behind_a_gap_is_remembered_for_the_next_reading() -> None:
    """Abandoning a window gives the entries that are done and stand in the queue yet, each with its cause."""
    window = Window()
    first = window.add(positions(0, 4))
    first.mark_done([0, 2], Cause.DELIVERED)
    first.mark_done([3], Cause.DEAD_LETTERED)
    prefix = window.removable(whole_pages=False)
    assert prefix == Prefix(b"0/1", 1, Tally(delivered=1))
    window.removed(prefix)

    assert window.forget() == {b"0/2": Cause.DELIVERED, b"0/3": Cause.DEAD_LETTERED}
    assert window.is_empty


def test_an_entry_cannot_be_finished_twice() -> None:
    """Finishing an entry again is refused, because the count of open entries would lie from then on."""
    window = Window()
    added = window.add(positions(0, 2))
    added.mark_done([1], Cause.DELIVERED)

    with pytest.raises(ValueError, match="done before"):
        added.mark_done([1], Cause.DELIVERED)


def test_a_round_must_follow_the_last_one() -> None:
    """A page that does not begin where the last one ended is refused: a removal over the gap would lose entries."""
    window = Window()
    window.add(positions(0, 2))

    with pytest.raises(ValueError, match="does not follow"):
        window.add(positions(3, 1))


@given(st.data())
def test_exactly_the_done_prefix_is_removed(data: st.DataObject) -> None:
    """Over any order of acks and removals, what was removed is the longest prefix of done entries, under its causes."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    window, places, start = Window(), [], 0
    for size in sizes:
        added = window.add(positions(start, size))
        places += [(added, i) for i in range(size)]
        start += size
    order = data.draw(st.permutations(range(len(places))))
    causes = data.draw(st.lists(st.sampled_from(Cause), min_size=len(places), max_size=len(places)))
    done: set[int] = set()
    removed, booked = 0, Tally()

    for place in order:
        added, ordinal = places[place]
        added.mark_done([ordinal], causes[place])
        done.add(place)
        if data.draw(st.booleans()):
            whole = data.draw(st.booleans())
            prefix = window.removable(whole_pages=whole)
            if prefix is not None:
                window.removed(prefix)
                removed += prefix.count
                booked += prefix.tally
                assert prefix.upto == b"0/%d" % removed
            expected = next((i for i in range(len(places)) if i not in done), len(places))
            assert removed <= expected
            if not whole:
                assert removed == expected

    assert booked == sum((Tally.of(cause) for cause in causes[:removed]), Tally())
    behind = {b"0/%d" % i: causes[i] for i in done if i >= removed}
    assert window.forget() == behind


def test_only_the_newest_untouched_page_is_dropped() -> None:
    """A page that others follow, or of which something is done, stays in the window."""
    window = Window()
    first, second = window.add(positions(0, 2)), window.add(positions(2, 2))

    with pytest.raises(ValueError, match="not the newest"):
        window.drop(first)
    second.mark_done([1], Cause.DELIVERED)
    with pytest.raises(ValueError, match="some of it is done"):
        window.drop(second)

    assert len(window) == 3


@given(st.data())
def test_a_dropped_page_is_as_if_it_had_never_been_read(data: st.DataObject) -> None:
    """Over any order of pages, acks, removals and drops, exactly the done prefix of what was not dropped is removed,
    and the next page follows what is left."""
    window, done, taken, end = Window(), set[int](), [], 0
    removed = 0
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["add", "finish", "remove", "drop"])):
            case "add":
                size = data.draw(st.integers(1, 4))
                taken.append((window.add(positions(end, size)), end))
                end += size
            case "finish" if left := [
                (page, at, i) for page, at in taken for i in range(_size(page)) if at + i not in done
            ]:
                page, at, i = data.draw(st.sampled_from(left))
                page.mark_done([i], Cause.DELIVERED)
                done.add(at + i)
            case "remove" if prefix := window.removable(whole_pages=data.draw(st.booleans())):
                assert prefix.upto == b"0/%d" % (removed + prefix.count)
                assert set(range(removed, removed + prefix.count)) <= done
                window.removed(prefix)
                removed += prefix.count
            case "drop" if taken and not done & set(range(taken[-1][1], end)):
                page, end = taken.pop()
                window.drop(page)
        assert len(window) == end - len(done)

    prefix = window.removable(whole_pages=False)
    ahead = next(i for i in range(removed, end + 1) if i not in done)
    assert (prefix.count if prefix else 0) == ahead - removed
    assert set(window.forget()) == {b"0/%d" % i for i in done if i >= removed}
    assert window.is_empty


def _size(page: PageAcks) -> int:
    return len(page.positions) - 1
