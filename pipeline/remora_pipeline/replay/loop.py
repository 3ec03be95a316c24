"""Which loop a replay was: whether its requests came at their own time, or waited for answers to others."""

from __future__ import annotations

from typing import Literal, NamedTuple

from remora_pipeline.replay.layout import ReplayRun


class ReplayLoop(NamedTuple):
    """`open`: events are sent when they are due. `closed`: at most `requests` are under way, and the next one waits for
    an answer, as a client would; a server that is slow is asked less."""

    kind: Literal["open", "closed"]
    requests: int | None

    def __str__(self) -> str:
        """In words."""
        most = f", at most {self.requests:,} requests under way" if self.requests else ""
        return f"{self.kind}{most}"


def loop_of(run: ReplayRun) -> ReplayLoop:
    """The loop that a run was. Without a schedule everything is due at once, and only answers let the next one go."""
    of_all, of_task = (run.options.get(name) for name in ("closed_loop", "concurrency"))
    if isinstance(of_all, int):
        return ReplayLoop("closed", of_all)
    most = of_task * run.parts if isinstance(of_task, int) else None
    return ReplayLoop("closed" if run.speed == 0 else "open", most)


def share(requests: int, parts: int, part: int) -> int:
    """How many of the requests under way are a part's; all parts' are `requests` together."""
    return requests // parts + (part < requests % parts)
