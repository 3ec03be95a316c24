"""A worker that cannot allocate memory ends, wherever that shows, and says why."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.model.exits import Exit
from remora.worker import memory
from remora.worker.memory import MemoryGuard, is_want_of_memory


class Ended(BaseException):
    """In place of the end of the process, which no handler of exceptions catches."""


@pytest.fixture
def ends() -> list[int]:
    """The exit codes that the process would have ended with."""
    return []


@pytest.fixture
def guard(ends: list[int]) -> Iterator[MemoryGuard]:
    """A guard that watches, and writes the end down."""

    def end(code: int) -> NoReturn:
        ends.append(code)
        raise Ended

    guard = MemoryGuard(7, Telemetry(), end)
    with guard.watching():
        yield guard


def fails() -> NoReturn:
    """Do what needs more memory than there is."""
    raise MemoryError


def in_a_callback() -> None:
    """The event loop logs what its callbacks raise, and goes on."""

    async def main() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(fails)
        asyncio.get_running_loop().call_soon(done.set)
        await done.wait()

    asyncio.run(main())


def in_a_task_that_nobody_awaits() -> None:
    """Its exception is logged when the task is collected."""

    async def task() -> None:
        fails()

    async def main() -> None:
        started = asyncio.ensure_future(task())
        await asyncio.wait([started])
        del started
        gc.collect()

    asyncio.run(main())


def in_a_thread() -> None:
    """Its end is told to a hook only."""
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()


def in_a_destructor() -> None:
    """As in callbacks of C libraries, there is nobody to raise it to."""

    class Thing:
        def __del__(self) -> None:
            fails()

    Thing()
    gc.collect()


def in_a_shard() -> None:
    """A defect costs its shard only, but for this one."""
    try:
        try:
            fails()
        except MemoryError as exc:
            raise StoreUnavailable("the store does not answer") from exc
    except StoreUnavailable:
        Telemetry().crashed("a queue")


def in_a_library() -> None:
    """aiokafka catches whatever its sender fails with."""
    try:
        fails()
    except MemoryError:
        logging.getLogger("aiokafka.producer.sender").exception("Unexpected error in sender routine")


PLACES = [in_a_callback, in_a_task_that_nobody_awaits, in_a_thread, in_a_destructor, in_a_shard, in_a_library]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("place", PLACES)
def test_a_want_of_memory_ends_the_process_wherever_it_shows(
    guard: MemoryGuard, ends: list[int], caplog: pytest.LogCaptureFixture, place: Callable[[], None]
) -> None:
    """Once, with the exit code that says so, and one line that names the worker and what limits it."""
    with contextlib.suppress(Ended):
        place()

    assert ends == [Exit.OUT_OF_MEMORY]
    (line,) = [each for each in caplog.records if getattr(each, "event", "") == "out_of_memory"]
    assert line.getMessage().startswith("worker 7 cannot allocate memory and ends: ")
    assert memory.limit_shown() in line.getMessage()


def test_other_failures_end_nothing(guard: MemoryGuard, ends: list[int]) -> None:
    """A defect goes on costing its shard only."""
    try:
        raise ValueError("a defect")
    except ValueError:
        Telemetry().crashed("a queue")

    assert guard.has(memory.START_BYTES)
    assert ends == []


def test_a_want_of_memory_is_found_inside_of_others() -> None:
    """In groups, in causes, in what was being handled, and as the system says it; nowhere else."""
    caused = RuntimeError("can't start new thread")
    caused.__context__ = MemoryError()
    round_about = ValueError()
    round_about.__cause__ = KeyError()
    round_about.__cause__.__context__ = round_about

    assert is_want_of_memory(ExceptionGroup("", [ValueError(), ExceptionGroup("", [caused])]))
    assert is_want_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_want_of_memory(round_about)
    assert not is_want_of_memory(OSError(errno.ENOSPC, "No space left on device"))


STARVED = """
import resource, sys
from remora.metrics import Telemetry, configure_logging
from remora.config import LogSettings
from remora.worker.memory import PROBE_BYTES, MemoryGuard, _held_bytes
configure_logging(LogSettings())
guard = MemoryGuard(7, Telemetry())
with guard.watching():
    assert guard.has(PROBE_BYTES)
    most = _held_bytes() + PROBE_BYTES // 2
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print(most >> 20, flush=True)
    if not guard.has(PROBE_BYTES):
        guard.end()
print("goes on")
"""


def test_a_process_whose_address_space_is_used_up_ends_by_itself() -> None:
    """A look finds that before anything else fails, and it is said once which limit it is."""
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == Exit.OUT_OF_MEMORY, done.stderr
    assert done.stderr.count(f"its address space is limited to {done.stdout.strip()} MiB (ulimit -v, LimitAS=)") == 1


NARROW = """
import concurrent.futures, resource, socket, sys
import msgspec, uvloop
from remora.config import Settings, SqliteSettings, SupervisorSettings
from remora.process.pipe import Start
from remora.worker import process
from remora.worker.memory import _held_bytes
start = Start(
    number=7, cookie="remora/host/boot/own", settings=Settings(
        supervisor=SupervisorSettings(run_directory=sys.argv[1]), sqlite=SqliteSettings(directory=sys.argv[1])
    ), listeners={}, load=-1, workers=1, dead=(), sweeps=True, drains=False,
)
loop = uvloop.new_event_loop()
loop.set_default_executor(concurrent.futures.ThreadPoolExecutor())  # as one that has served a scrape has
uvloop.new_event_loop = lambda: loop
ours, its = socket.socketpair()
ours.sendall(msgspec.json.encode(start) + b"\\n")
most = _held_bytes() + (6 << 20)  # more than the last words take, less than a thread's stack
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(process.run(its.detach()))
"""


def test_a_worker_without_memory_for_a_thread_ends_with_the_code_that_says_so(tmp_path: Path) -> None:
    """It closes nothing that would start a thread, and its log has one line and no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", NARROW, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == Exit.OUT_OF_MEMORY, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("its address space is limited to") == 1


@pytest.mark.parametrize(("is_short", "expected"), [(True, [Exit.OUT_OF_MEMORY]), (False, [])])
def test_a_thread_that_does_not_start_ends_the_process_where_memory_is_short(
    guard: MemoryGuard, ends: list[int], monkeypatch: pytest.MonkeyPatch, is_short: bool, expected: list[int]
) -> None:
    """And costs its part only where the system allows no more threads."""
    monkeypatch.setattr(memory, "PROBE_BYTES", 1 << 62 if is_short else 1 << 20)

    with contextlib.suppress(Ended):
        guard.saw(RuntimeError("can't start new thread"))

    assert ends == expected
