"""The two loops of a replay: how many requests are under way, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from devkit.clock import in_virtual_time
from remora.cli import group
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import RunDirectory, write
from remora_pipeline.replay.loop import ReplayLoop, loop_of, share
from remora_pipeline.replay.run.job import resumed
from remora_pipeline.replay.run.journal import Line
from remora_pipeline.replay.run.plan import INGEST, ReplayPlan
from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.sender import ReplaySender, WallClock
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer
from replay.verified import TRACE, run


def plan(closed_loop: int | None) -> ReplayPlan:
    """A replay without a schedule."""
    return ReplayPlan("run", "r1", 0, INGEST, "unix:/ingest", "photos", 0.0, closed_loop=closed_loop)


class Counting:
    """A target that takes 10 ms for each request, and counts those under way; several tasks may have one."""

    batch, is_repeatable = 1, True

    def __init__(self) -> None:
        self.under_way = self.most = self.taken = 0

    async def send(self, events: Sequence[DueEvent], _request: str) -> TargetAnswer:
        """Take them."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        self.taken += len(events)
        return TargetAnswer(AttemptResult.DONE, 200)


class Nowhere:
    """A journal that keeps nothing."""

    def write(self, line: Line) -> None:
        """Forget it."""


async def events_of(part: int) -> AsyncIterator[Sequence[DueEvent]]:
    """Forty events of as many keys, all due at once."""
    yield [DueEvent(seq, 0, "PUT", "b", f"k{seq}", 1, 0, seq) for seq in range(part * 40, part * 40 + 40)]


@pytest.mark.parametrize(("requests", "parts"), [(7, 3), (3, 3), (16, 5), (1, 1)])
@in_virtual_time
async def test_all_tasks_together_have_so_many_requests_under_way(requests: int, parts: int) -> None:
    """A closed loop has exactly as many requests under way as it may, however many tasks share them."""
    target, loop = Counting(), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group_of_tasks:
        for part in range(parts):
            limits = plan(requests).of_part(part, parts).limits
            sender = ReplaySender(target, Nowhere(), WallClock(0, loop.time), limits, f"run/{part}")
            group_of_tasks.create_task(sender.run(events_of(part)))

    assert target.most == requests
    assert target.taken == 40 * parts


def test_an_open_loop_leaves_each_task_its_own_limit() -> None:
    """Without --closed-loop the plan of a part is that of all."""
    assert plan(None).of_part(1, 4) == plan(None)


def test_shares_are_all_of_it_and_none_is_empty() -> None:
    """The shares of all parts make the whole, differ by one at most, and each part has one."""
    for requests in range(1, 40):
        for parts in range(1, requests + 1):
            shares = [share(requests, parts, part) for part in range(parts)]
            assert sum(shares) == requests
            assert min(shares) >= 1
            assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("speed", "options", "expected"),
    [
        (1.0, {"concurrency": 8}, ReplayLoop("open", 16)),
        (0.0, {"concurrency": 8}, ReplayLoop("closed", 16)),
        (0.0, {"concurrency": 8, "closed_loop": 5}, ReplayLoop("closed", 5)),
        (60.0, {}, ReplayLoop("open", None)),
    ],
)
def test_a_run_says_which_loop_it_was(speed: float, options: dict[str, int], expected: ReplayLoop) -> None:
    """With a schedule it is open; without one, requests wait for answers, and it is closed."""
    found = loop_of(msgspec.structs.replace(run(speed=speed), options=options, parts=2))

    assert found == expected
    assert str(found).startswith(expected.kind)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--speed", "2"], "leave --speed and --concurrency out"),
        (["--concurrency", "4"], "leave --speed and --concurrency out"),
        (["--parts", "9"], "--closed-loop must be --parts or more"),
    ],
)
def test_what_a_closed_loop_does_not_go_with_is_refused(options: list[str], told: str, tmp_path: Path) -> None:
    """A schedule, another bound and more tasks than requests are refused before anything starts."""
    argv = ["replay", "run", str(tmp_path), "--out", str(tmp_path / "run"), "--null", "--closed-loop", "8", *options]
    done = CliRunner().invoke(group, argv)

    assert done.exit_code == 2
    assert told in done.output


def test_a_closed_loop_is_resumed_as_one(tmp_path: Path) -> None:
    """--resume with another loop than the replay was begun with is refused."""
    directory = RunDirectory(tmp_path)
    begun = msgspec.structs.replace(run(speed=0.0), options={"closed_loop": 4}, trace=TRACE)
    write(directory.run, begun)

    for other in (None, 5):
        with pytest.raises(ReplayRefused, match="--closed-loop was 4"):
            resumed(plan(other), directory, TRACE, None)
    assert resumed(plan(4), directory, TRACE, None)[1] == begun.parts
