"""A host's status of topics that an operator holds."""

from __future__ import annotations

from typing import Any

import pytest

from remora.cli.status import status_lines
from remora.supervisor.merged import topics_shown

HOLD = {"topic": "t", "text": "held by an operator until it is resumed", "since_seconds": 60.0}


def queue(state: str, reason: str = "") -> dict[str, Any]:
    return {
        "queue": "t", "topic": "t", "state": state, "reason": reason, "since_seconds": 5.0, "trying": False,
        "next_attempt_seconds": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (["idle", "idle"], "held"),
        (["held", "idle"], "held"),
        (["delivering", "held"], "held"),
        (["stopped", "held"], "stopped"),
        ([], None),
    ],
)
def test_a_held_topic_is_held_whatever_its_queues_do(states: list[str], shown: str | None) -> None:
    """It is held since the hold began, also while nothing waits in it or a batch is under way; but what fails in it is
    shown as failing, and a topic without a queue here is in no state."""
    topics = topics_shown([], [queue(each) for each in states], {"t": HOLD})

    assert [each["state"] for each in topics] == ([shown] if states else [])
    if shown == "held":
        assert (topics[0]["reason"], topics[0]["since_seconds"]) == (HOLD["text"], 60.0)


def test_the_status_has_a_line_for_each_held_topic() -> None:
    """Also one whose queues another host has is named, with until when and why; an older daemon's status names none."""
    shown = {
        "version": "1", "ready": True, "reasons": [], "ingest": "", "topics": [], "workers": [],
        "store": {"description": "files", "connected": True, "state": "", "damaged": []},
    }  # fmt: skip

    assert f"held: topic t is {HOLD['text']}" in status_lines(shown | {"holds": [HOLD]})
    assert not any(line.startswith("held") for line in status_lines(shown))
