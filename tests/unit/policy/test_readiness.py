"""What a host says of its own use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from remora.model.health import Health, Use, Waiting
from remora.policy.status.readiness import MOST_REASONS, HostReadiness, ready, ready_to_deliver, ready_to_ingest

WELL = Use()


def waits(destination: str, cause: Literal["", "away", "refused"] = "", age_s: float = 60.0, *reasons: str) -> Waiting:
    return Waiting(destination, cause, age_s, reasons or (f"t: {destination} {cause}",))


def with_entries(*waiting: Waiting, has_way: bool = False) -> Use:
    return Use(has_way=has_way, waiting=waiting)


def host(*workers: Use | None, **said: bool) -> HostReadiness:
    return HostReadiness(**{"has_started": True, **said}, workers=workers)


@pytest.mark.parametrize(
    ("of", "use", "ingest", "delivery"),
    [
        (host(WELL, WELL), True, True, True),
        (host(has_started=False), False, False, False),
        (host(), False, False, False),
        (host(WELL, None), False, False, False),
        (host(WELL, replace(WELL, has_started=False)), False, False, False),
        (host(WELL, replace(WELL, store="no answer")), False, False, False),
        (host(WELL, replace(WELL, full="no room")), False, False, True),
        (host(WELL, stops=True), False, False, False),
        (host(WELL, drains=True), False, True, False),
        (host(replace(WELL, takes_events=False)), True, False, True),
        (host(replace(WELL, lost=("a part",))), True, True, True),
    ],
)
def test_the_three_questions(of: HostReadiness, use: bool, ingest: bool, delivery: bool) -> None:
    """Workers and store matter to all three, a drain not to events that come in, the ingest API to these alone; a full
    disk does not matter to delivery."""
    assert (ready(of).ok, ready_to_ingest(of).ok, ready_to_deliver(of).ok) == (use, ingest, delivery)


@pytest.mark.parametrize(
    ("of", "delivers"),
    [
        # One destination, or what one topic asks for, is no affair of the host's.
        (host(with_entries(waits("a", "away"))), True),
        (host(with_entries(waits("a", "away")), with_entries(waits("a", "away"))), True),
        (host(with_entries(waits("a", "refused"))), True),
        (host(with_entries(waits("a", "refused"), waits("b", "refused"))), True),
        # Several that cannot be reached are, unless something shows that this host is connected.
        (host(with_entries(waits("a", "away"), waits("b", "away"))), False),
        (host(with_entries(waits("a", "away")), with_entries(waits("b", "away"))), False),
        (host(with_entries(waits("a", "away"), waits("b", "away"), has_way=True)), True),
        (host(with_entries(waits("a", "away"), waits("b", "away")), Use(has_way=True)), True),
        (host(with_entries(waits("a", "away"), waits("b", "away"), waits("c", "refused"))), True),
        (host(with_entries(waits("a", "away"), waits("b", "away")), with_entries(waits("c", "", 1.0))), True),
        # What no failure of an endpoint explains always is.
        (host(with_entries(waits("a"))), False),
        (host(with_entries(waits("a"), waits("b", "refused"))), False),
        (host(with_entries(waits("a"), has_way=True)), False),
        (host(with_entries(waits("a")), with_entries(waits("b", "", 1.0))), True),
        # A moment is no stall.
        (host(with_entries(waits("a", "", 15.0))), True),
        (host(with_entries(waits("a", "", 15.1))), False),
    ],
)
def test_when_waiting_entries_are_the_host_s_affair(of: HostReadiness, delivers: bool) -> None:
    """A queue that waits for its own endpoint makes no host unready; it stays ready in all other respects anyway."""
    assert ready_to_deliver(of).ok is delivers
    assert ready(of).ok
    assert ready_to_ingest(of).ok


@pytest.mark.parametrize("question", [ready, ready_to_ingest, ready_to_deliver])
def test_a_lost_part_of_the_store_is_a_remark(question: Callable[[HostReadiness], Health]) -> None:
    """Each answer names it, once, behind the reasons of a no; of a store that is away nothing more is said."""
    lost = replace(WELL, lost=("directory a is lost",))

    assert question(host(lost, lost)) == Health(True, ("store: directory a is lost",))
    assert question(host(lost, stops=True)) == Health(False, ("draining", "store: directory a is lost"))
    assert question(host(replace(lost, store="no answer"))) == Health(False, ("store: no answer",))


def test_reasons_are_said_once_and_are_few() -> None:
    """Workers that share a trouble name it together, and thousands of topics do not make a page of it."""
    away = replace(WELL, store="no answer")
    many = with_entries(waits("a", "", 60.0, *(f"t{i:04}: x" for i in range(1000))))

    assert ready(host(away, away)) == Health(False, ("store: no answer",))
    assert ready_to_deliver(host(many)).reasons[:2] == (
        "nothing was delivered for 60 s although entries wait",
        "t0000: x",
    )
    assert len(ready_to_deliver(host(many)).reasons) == 1 + MOST_REASONS
