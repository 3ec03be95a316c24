"""What a process uses of its host: processor and memory."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from devkit.clock import ClockLoop, in_virtual_time
from remora.config import BalanceSettings
from remora.process import usage as module
from remora.process.groups import memory_limit
from remora.process.lag import PROBE_S, Kept
from remora.process.usage import PAGE_BYTES, Usage


def host(proc: Path, ticks: str, pages: int = 0) -> Path:
    """A folder like /proc with these columns of the processor line, and this many resident pages."""
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu  {ticks}\ncpu0 1 1 1 1\nintr 5\n")
    (proc / "self" / "statm").write_text(f"1000 {pages} 0 0 0 0 0\n")
    return proc


def test_percents_are_of_the_time_since_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a core is 50 % of `cpu`; waiting for a disk is no use of the host; memory is of the configured limit."""
    clock, process = iter([100.0, 110.0, 120.0]), iter([5.0, 10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "process_time", lambda: next(process))
    settings = BalanceSettings(memory_limit=64 << 20)
    used = Usage(1, host(tmp_path, "100 0 100 700 100 0 0 0 50 50", pages=0))

    host(tmp_path, "150 0 125 760 165 0 0 0 90 50", pages=(16 << 20) // PAGE_BYTES)
    assert used.percents(settings) == {"cpu": 50.0, "host_cpu": 37.5, "memory": 25.0}
    host(tmp_path, "250 0 125 760 165 0 0 0 90 50", pages=(32 << 20) // PAGE_BYTES)
    assert used.percents(settings) == {"cpu": 20.0, "host_cpu": 100.0, "memory": 50.0}


@pytest.mark.parametrize(("used_s", "cpu"), [(0.0, 30.0), (1.0, 30.0), (3.0, 30.0), (4.0, 40.0)])
@in_virtual_time
async def test_time_that_a_process_is_kept_from_running_counts_as_used(
    monkeypatch: pytest.MonkeyPatch, used_s: float, cpu: float
) -> None:
    """Where the loop wakes up 3 of 10 s late, its process has used these or was kept from running for the rest."""
    loop, process_s = asyncio.get_running_loop(), itertools.count(0.0, 0.0)
    assert isinstance(loop, ClockLoop)
    monkeypatch.setattr(time, "monotonic", loop.time)
    monkeypatch.setattr(time, "process_time", lambda: next(process_s))
    kept = Kept()
    used = Usage(1, kept_s=lambda: kept.seconds)

    def stand_still() -> None:
        nonlocal process_s
        loop.pass_by(3.0)
        process_s = itertools.count(used_s, 0.0)

    loop.call_later(PROBE_S / 2, stand_still)
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(kept.run())
        await asyncio.sleep(10.0)
        counting.cancel()

    assert used.percents(BalanceSettings())["cpu"] == pytest.approx(cpu, abs=0.3)


def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, or without a limit, those resources are 0."""
    monkeypatch.setattr(module, "memory_limit", lambda: 0)
    used = Usage(2, tmp_path / "none")

    percents = used.percents(BalanceSettings())

    assert (percents["host_cpu"], percents["memory"]) == (0.0, 0.0)
    assert percents["cpu"] >= 0.0


@pytest.mark.parametrize(
    ("own", "above", "limit"),
    [("max", "max", 0), ("1048576", "max", 1048576), ("4194304", "2097152", 2097152), ("nonsense", "max", 0)],
)
def test_the_smallest_limit_of_memory_counts(tmp_path: Path, own: str, above: str, limit: int) -> None:
    """That of the process's control group, or of one that it lies in; 0 where there is none."""
    group = tmp_path / "system.slice" / "remora.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(own + "\n")
    (group.parent / "memory.max").write_text(above + "\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/remora.service\n")

    assert memory_limit(tmp_path / "cgroup", tmp_path) == limit
