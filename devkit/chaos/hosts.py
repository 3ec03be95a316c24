"""A host of a run: a supervisor with its workers, which can be killed, frozen and told that it is another time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from devkit.chaos.clusters import ChaosError
from devkit.processes.daemon import Daemon, Sections, merged
from devkit.processes.processes import children

CLOCK = Path(__file__).with_name("clock")


STEPS = ("name", "store", "move")
"""The operations of a move of entries: its run is named, stored, and takes the place of what leaves the ring."""


class Moves:
    """A file that has a worker hurt itself at a step of its next move."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def hurt(self, step: str, moment: str, how: signal.Signals) -> None:
        """Have the first worker that comes `before` or `after` a step send itself a signal."""
        new = self.file.with_name(f"new-{self.file.name}")
        new.write_text(f"{step}|{moment}|{how.value}")
        new.rename(self.file)

    def hurt_worker(self) -> int:
        """The process that has done so; 0 while none has."""
        return next((int(each.suffix[1:]) for each in self.file.parent.glob(f"{self.file.name}.[0-9]*")), 0)

    def forget(self) -> None:
        """Nobody is to be hurt, or was."""
        for each in self.file.parent.glob(f"{self.file.name}*"):
            each.unlink(missing_ok=True)


class Host(Daemon):
    """One `remora run` with a clock of its own, which does not end by itself."""

    answer_s = 5.0

    def __init__(self, number: int, folder: Path, sections: Sections) -> None:
        self.name = f"chaos-{number}"
        self._clock = folder / f"clock-{number}"
        self._clock.write_bytes(bytes(8))
        own: Sections = {
            "ownership": {"host_id": self.name},
            "kafka": {"client_id": self.name},
            "log": {"format": "json", "repeat_interval": "1s"},
        }
        self.moves = Moves(folder / f"moves-{number}")
        path = os.pathsep.join(filter(None, [str(CLOCK), os.environ.get("PYTHONPATH")]))
        env = {"PYTHONPATH": path, "CHAOS_CLOCK": str(self._clock), "CHAOS_MOVES": str(self.moves.file)}
        super().__init__(folder, merged(sections, own), env=env)
        self._serves_since_start = False

    # ---------------------------------------------------------------------------------------- life

    def reload(self) -> bool:
        """Let it read its file again, if it serves; a process that has just begun would end of the signal."""
        is_serving = self.is_running and self._serves_since_start
        if is_serving:
            self.send(signal.SIGHUP)
        return is_serving

    async def start(self, *, ready: bool = True) -> None:
        """Start it; returns when it is ready. Raises ChaosError."""
        self._serves_since_start = False
        try:
            await super().start(ready=ready)
        except AssertionError as exc:
            raise ChaosError(f"{self.name}: {exc}") from exc
        self._serves_since_start = True

    def check(self) -> None:
        """Raise ChaosError when it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise ChaosError(f"{self.name} ended by itself with {self._process.returncode}: {self.last_words()}")

    @property
    def delivering(self) -> Sequence[int]:
        """The processes that deliver."""
        return children(self.pid) or [self.pid]

    @property
    def everybody(self) -> Sequence[int]:
        """The supervisor, and its workers behind it."""
        return [self.pid, *children(self.pid)]

    def send(self, number: signal.Signals, *pids: int) -> None:
        """Send a signal to these, or to the supervisor; who has ended meanwhile does not get it."""
        for pid in pids or [self.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        """SIGKILL to the supervisor and its workers at once."""
        self.check()
        await self.kill_all()

    async def close(self) -> None:
        """Whatever its state: ended, workers too."""
        await self.kill_all()
        await super().close()

    # --------------------------------------------------------------------------------------- looks

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock this many seconds beside the right time."""
        with self._clock.open("r+b") as file:
            file.write(int(seconds * 1e9).to_bytes(8, "little", signed=True))

    async def owned(self) -> int:
        """How many shards its workers hold; 0 when it does not say."""
        try:
            _, text = await self.get("/-/status")
            return len(json.loads(text)["shards"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
            return 0
