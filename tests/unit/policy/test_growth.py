"""How long a queue's room lasts at its growth."""

from __future__ import annotations

import math

import pytest

from remora.model.shard import QueueRoom
from remora.policy.queues.mends import WINDOW_S, Growth


def room(nbytes: int) -> QueueRoom:
    return QueueRoom(100_000, 100_000 - nbytes, 0, 0)


@pytest.mark.parametrize("pause_s", [0.5, 3.0, 10.0, 60.0, 900.0])
def test_growth_is_that_of_the_last_ten_minutes(pause_s: float) -> None:
    """However often is looked: what came before counts no longer, and few looks are kept."""
    growth, now = Growth(), 0.0
    while now < 4 * WINDOW_S:
        growth = growth.after(now, 0)
        now += pause_s
    began = now
    while now <= began + 3 * WINDOW_S:
        growth = growth.after(now, int(100 * (now - began)))
        now += pause_s

    assert growth.lasts_s(room(50_000)) == pytest.approx(500)
    assert len(growth.looks) <= 63


def test_what_does_not_grow_lasts_for_ever() -> None:
    """Neither without a look, nor where bytes stay as they are or become less."""
    assert math.isinf(Growth().lasts_s(room(1)))
    assert math.isinf(Growth().after(0, 5).after(10, 5).lasts_s(room(50_000)))
    assert math.isinf(Growth().after(0, 5).after(10, 4).lasts_s(room(50_000)))
    assert Growth().lasts_s(room(0)) == 0
