"""Sequencers that stand still at a step of their work, as if they were halted or killed just there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from devkit.processes.programs import program
from devkit.waits import until

SOURCE = Path(__file__).with_name("stop_at_step.c")
IN_TURN = SOURCE.with_name("stop_in_turn.c")


class Stopping:
    """Has processes that run with its `environment` stop at a step; see stop_at_step.c and stop_in_turn.c."""

    def __init__(self, folder: Path, source: Path = SOURCE) -> None:
        """`folder` is where the library is compiled to; `source` says what the steps are."""
        self._library = folder / "stop_at_step.so"
        self._orders = folder / "stop_at"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
        subprocess.run([program("cc", "gcc"), *flags, "-o", self._library, source, "-ldl"], check=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process that is to stop has in its environment."""
        return {"LD_PRELOAD": str(self._library), "STOP_AT": str(self._orders)}

    def order(self, step: int) -> None:
        """Have the process stop at this step, counted from now; the first is 1."""
        made = self._orders.with_suffix(".new")
        made.write_text(str(step))
        made.rename(self._orders)


async def until_stopped(pid: int, within_s: float) -> None:
    """Wait until all threads of a process stand still."""

    async def stands_still() -> bool:
        return _states(pid) == {"T"}

    await until(stands_still, within_s=within_s)


def _states(pid: int) -> set[str]:
    """The states of a process's threads, as /proc names them."""
    found = set()
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            found.add(each.read_text().rpartition(")")[2].split()[0])
    return found
