"""Which dead letters a command means, and in which order they are re-driven."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.model.position import Position
from remora.model.record import CorruptLetter, DeadLetter
from remora.policy.delivery.letters import Selection, in_order

NOW = 1_000_000.0
CAUSES = ["expired", "exhausted", "undecodable"]


def letter(queue: str, incarnation: str, position: str, cause: str, parked_at: float) -> DeadLetter:
    return DeadLetter(queue, incarnation, position, "0/0", cause, "", 0, 0.0, parked_at, b"")


letters = st.builds(
    letter,
    st.sampled_from(["t", "t.1", "u"]),
    st.sampled_from(["aa", "bb"]),
    st.builds("{}/{}".format, st.integers(0, 12), st.integers(0, 20_000)),
    st.sampled_from(CAUSES),
    st.floats(0, NOW),
)
keys = st.none() | st.sampled_from([b"bkt/a", b"bkt/ab", b"bkt/*", b"other/a"])


@given(letters, keys)
def test_nothing_asked_for_is_everything(each: DeadLetter, key: bytes | None) -> None:
    """A selection without any condition means every letter."""
    assert Selection().means(each, key, NOW)


@given(
    letters,
    keys,
    st.none() | st.frozensets(st.sampled_from(["t", "u"])),
    st.none() | st.frozensets(st.sampled_from(CAUSES)),
    st.none() | st.sampled_from([b"bkt/a", b"bkt/a*", b"*", b"bkt/*"]),
    st.none() | st.floats(0, NOW),
    st.none() | st.floats(0, NOW),
)
def test_all_conditions_hold(
    each: DeadLetter,
    key: bytes | None,
    queues: frozenset[str] | None,
    causes: frozenset[str] | None,
    wanted: bytes | None,
    older: float | None,
    newer: float | None,
) -> None:
    """A letter is meant exactly when each condition that was given, taken alone, means it."""
    selection = Selection(queues, causes, wanted, older, newer)
    alone = (
        Selection(queues=queues),
        Selection(causes=causes),
        Selection(key=wanted),
        Selection(older_than_s=older),
        Selection(newer_than_s=newer),
    )

    assert selection.means(each, key, NOW) == all(one.means(each, key, NOW) for one in alone)


def test_keys() -> None:
    """A key is meant whole, or by its beginning where a star ends it; an entry without a key is never meant by it."""
    a = letter("t", "aa", "0/1", "expired", 0.0)

    def means(wanted: bytes, key: bytes | None) -> bool:
        return Selection(key=wanted).means(a, key, NOW)

    assert means(b"bkt/a", b"bkt/a")
    assert not means(b"bkt/a", b"bkt/ab")
    assert means(b"bkt/a*", b"bkt/ab")
    assert not means(b"bkt/a*", b"bkt/b")
    assert means(b"*", b"x")
    assert not means(b"*", None)


def test_ages() -> None:
    """Ages count from when a letter was parked."""
    a = letter("t", "aa", "0/1", "expired", NOW - 60)

    assert Selection(older_than_s=59).means(a, None, NOW)
    assert not Selection(older_than_s=61).means(a, None, NOW)
    assert Selection(newer_than_s=61).means(a, None, NOW)
    assert not Selection(newer_than_s=59).means(a, None, NOW)


def corrupt(queue: str, incarnation: str, position: str) -> DeadLetter:
    return CorruptLetter(queue, incarnation, position, "0/0", "corrupt", "", 0, 0.0, 0.0, b"")


def test_a_corrupt_letter_has_no_age() -> None:
    """A letter that changed in the store is meant by its cause and by no age: no command drops it as an old one."""
    changed = corrupt("t", "aa", "0/1")

    assert not Selection(older_than_s=1).means(changed, None, NOW)
    assert not Selection(newer_than_s=1e12).means(changed, None, NOW)
    assert Selection(causes=frozenset({"corrupt"})).means(changed, None, NOW)


def test_a_corrupt_letter_moves_no_other() -> None:
    """The first letter of a queue that was made anew may be corrupt: the earlier queue's letters still come first."""
    old, new = letter("t", "zz", "0/5", "expired", 10.0), letter("t", "aa", "0/2", "expired", 20.0)
    changed = corrupt("t", "aa", "0/1")

    assert list(in_order([new, changed, old])) == [old, changed, new]


@given(st.lists(letters, unique_by=lambda each: (each.queue, each.incarnation, each.position)))
def test_queue_order(some: list[DeadLetter]) -> None:
    """Letters of one queue come in the order of their positions, none is lost, and a queue made anew comes later."""
    ordered = in_order(some)

    assert sorted(map(id, ordered)) == sorted(map(id, some))
    begun: list[float] = []
    for of in dict.fromkeys((each.queue, each.incarnation) for each in ordered):
        mine = [each for each in ordered if (each.queue, each.incarnation) == of]
        positions = [Position.parse(each.position) for each in mine]
        assert positions == sorted(positions)
        begun.append(min(each.parked_at for each in mine))
    assert begun == sorted(begun)
