"""When workers are started again, and when a silent one has hung."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.policy.restart import CAP_S, SERVED_WELL_S, Watchdog, failures_in_a_row, restart_pause_s


def test_the_first_end_costs_no_pause_and_further_ones_ever_more() -> None:
    """A worker that was killed once is replaced at once; one that ends again and again less and less often."""
    pauses = [restart_pause_s(failures) for failures in range(1, 5000)]

    assert pauses[:4] == [0.0, 0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert max(pauses) == CAP_S


def test_who_served_for_a_while_begins_anew() -> None:
    """Ends in a row are those between which no worker served well."""
    assert failures_in_a_row(7, SERVED_WELL_S) == 1
    assert failures_in_a_row(7, SERVED_WELL_S - 0.1) == 8
    assert failures_in_a_row(0, 0.0) == 1


def test_the_silent_one_is_found_and_no_other() -> None:
    """Who was heard within the limit is spared; who was not is named until it is forgotten."""
    watchdog = Watchdog(limit_s=20.0, looked_at=0.0)
    watchdog.watch(1, 0.0)
    watchdog.watch(2, 0.0)
    found = {}
    for now in range(1, 23):
        watchdog.heard(1, float(now))
        found[now] = watchdog.look(float(now))

    assert found[20] == []
    assert found[21] == found[22] == [2]
    assert watchdog.silent_s(2, 22.0) == 22.0
    watchdog.forget(2)
    assert watchdog.look(23.0) == []


def test_a_new_one_has_its_patience_and_no_more() -> None:
    """Before its first word a worker may be silent for longer; once it is ready it may not."""
    watchdog = Watchdog(limit_s=20.0, looked_at=0.0)
    watchdog.watch(1, 0.0, patience_s=60.0)
    looks = {now: watchdog.look(float(now)) for now in range(1, 82)}

    assert [now for now, found in looks.items() if found] == [81]
    watchdog.watch(1, 81.0)
    assert [now for now in range(82, 103) if watchdog.look(float(now))] == [102]


def test_a_word_in_time_of_patience_does_not_shorten_it() -> None:
    """A worker that has said something may still be busy opening its store."""
    watchdog = Watchdog(limit_s=20.0, looked_at=0.0)
    watchdog.watch(1, 0.0, patience_s=60.0)
    watchdog.heard(1, 1.0)

    assert [now for now in range(1, 82) if watchdog.look(float(now))] == [81]


@given(
    limit=st.floats(1, 100),
    silences=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    gap=st.floats(0.26, 1000),
)
def test_nobody_is_killed_for_what_its_watcher_slept_through(limit: float, silences: list[float], gap: float) -> None:
    """After a gap in the looks of any length everybody has the whole time again, however long they were silent."""
    watchdog = Watchdog(limit_s=limit, looked_at=100.0)
    for number, silence in enumerate(silences):
        watchdog.watch(number, 100.0 - silence * limit * 0.99)
    thawed = 100.0 + gap * limit
    step = limit / 8

    assert watchdog.look(thawed) == []
    assert all(watchdog.look(thawed + step * number) == [] for number in range(1, 8))
    assert watchdog.look(thawed + limit * 1.1) == list(range(len(silences)))


def test_a_late_word_of_one_that_has_ended_has_it_watched_by_nobody() -> None:
    """What was in its pipe when it ended is no sign of life: its silence from then on is no hang."""
    watchdog = Watchdog(10.0, 0.0)
    watchdog.watch(1, 0.0)
    watchdog.forget(1)

    watchdog.heard(1, 1.0)

    assert [watchdog.look(float(now)) for now in range(1, 30)] == [[]] * 29
