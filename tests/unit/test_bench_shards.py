"""What the benchmark of sharded topics makes of commits and turns."""

from __future__ import annotations

import math

from devkit.bench.shards import Account, Row, Turn, table


def turn(writers: int, queues: int, rate: float, p50_s: float = 0.001, met: float = 0.0) -> Turn:
    return Turn("rados", writers, queues, rate, p50_s, 2 * p50_s, met, {})


def row(turns: list[Turn], writers: int, queues: int) -> Row:
    (found,) = [each for each in table(turns) if (each.writers, each.queues) == (writers, queues)]
    return found


def test_only_commits_to_the_same_queue_meet() -> None:
    """A commit meets another one that is under way on its queue, not one on another queue or one that has ended."""
    account = Account()

    first, other, second = account.begin(1), account.begin(2), account.begin(1)
    account.end(1, 0.5, first)
    account.end(1, 0.25, second)
    after = account.begin(1)

    assert (first, other, second, after) == (False, False, True, False)
    assert account.take() == ([0.5, 0.25], 1)


def test_what_was_taken_is_not_counted_again() -> None:
    """A window counts only commits that ended since the window before it."""
    account = Account()
    account.end(0, 0.5, account.begin(0))
    account.take()

    account.end(0, 0.25, account.begin(0))

    assert account.take() == ([0.25], 0)


def test_a_row_has_the_medians_of_its_turns() -> None:
    """Turns of one combination become one row of their medians."""
    turns = [turn(8, 4, rate, met=met) for rate, met in ((10.0, 0.1), (30.0, 0.9), (20.0, 0.5))]

    found = row(turns, 8, 4)

    assert (len(table(turns)), found.rate, found.met) == (1, 20.0, 0.5)


def test_ratios_are_to_one_queue_and_to_a_lone_writer() -> None:
    """The rate is compared with one queue of as many writers, the time of a commit with a lone writer's."""
    turns = [turn(1, 1, 5.0, 0.001), turn(8, 1, 10.0, 0.008), turn(8, 4, 25.0, 0.004)]

    found = row(turns, 8, 4)

    assert (found.ratio, found.slower) == (2.5, 4.0)


def test_what_others_used_is_no_cost_of_an_event() -> None:
    """The processor time of an event is that of writers and OSDs, without what else the machine did."""
    processors = {"writers": 0.25, "osds": 0.75, "others": 0.9}

    (found,) = table([Turn("rados", 8, 1, 1000.0, 0.001, 0.002, 0.0, processors)])

    assert found.cpu_us == 1000.0


def test_what_was_not_measured_is_not_compared() -> None:
    """Without one queue and without a lone writer there is no ratio."""
    found = row([turn(8, 4, 25.0)], 8, 4)

    assert math.isnan(found.ratio)
    assert math.isnan(found.slower)
