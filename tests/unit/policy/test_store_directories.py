"""Where the topics of a store of several directories lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.queues.store_directories import StoreDirectories, StoreDirectory

ONE, TWO, THREE = (StoreDirectory(number, f"/d{number}") for number in range(3))
LEAVING = StoreDirectory(1, "/d1", takes_topics=False)


@pytest.mark.parametrize(
    ("directories", "place", "number"),
    [
        ([], 7, 0),
        ([ONE], 7, 0),
        ([ONE, TWO], 6, 0),
        ([ONE, TWO], 7, 1),
        ([ONE, LEAVING, THREE], 7, 2),  # one that is to be removed takes no topic
        ([ONE, LEAVING, THREE], 6, 0),
    ],
)
def test_a_topic_is_placed_by_its_name(directories: list[StoreDirectory], place: int, number: int) -> None:
    """The hash of a name chooses among the directories that take topics."""
    assert StoreDirectories().changed(directories, {}).directory_of("t", place) == number


@given(st.lists(st.sampled_from([(ONE,), (ONE, TWO), (ONE, LEAVING), (ONE, TWO, THREE), (ONE, THREE)]), max_size=6))
def test_no_change_of_directories_moves_a_topic(changes: list[tuple[StoreDirectory, ...]]) -> None:
    """Whatever is added and removed, a topic that is there stays where it is; new ones go where the rule says."""
    placement = StoreDirectories()
    known: dict[str, tuple[int, int]] = {}
    for step, directories in enumerate(changes):
        kept = {name: at for name, at in known.items() if at[0] in {each.number for each in directories}}
        placement = placement.changed(directories, kept)
        for place in range(9):
            known[f"t{step}-{place}"] = placement.directory_of(f"t{step}-{place}", place), place
        known = {**kept, **{name: at for name, at in known.items() if name.startswith(f"t{step}-")}}

        assert {name: placement.directory_of(name, at[1]) for name, at in known.items()} == {
            name: at[0] for name, at in known.items()
        }
    assert placement.generation == len(changes)


def test_a_number_is_used_once() -> None:
    """Another directory than one that was removed never has its number."""
    placement = StoreDirectories().changed([ONE, TWO], {}).changed([ONE], {})

    assert placement.next_number == 2
    assert placement.at("/d0") == ONE
    assert placement.at("/d1") is None
