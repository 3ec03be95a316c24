"""An endpoint that appends each record to a file as a line of JSON: what a kind of endpoint takes, and no more.

`file:///path`. Topics of one file share its handle. Who writes holds the file's lock, so that several processes may.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from remora.codec.topic import parse_args
from remora.config import Settings
from remora.endpoints.arguments import Argument, Number, Truth, remarks_on_others
from remora.endpoints.kinds import EndpointKind
from remora.endpoints.shared import Shared, sweep
from remora.endpoints.tasks import CrashLog, CrashObserver, Tasks
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import ALL_LANES, Batch

MOST_BYTES = Argument("file-most-bytes", "file", Number(1 << 28), "most bytes of a record", str(1 << 24))
SYNC = Argument("file-sync", "file", Truth(), "whether a record is on the disk when it is acknowledged", "true")
ARGUMENTS = (MOST_BYTES, SYNC)

RETRY_S = 0.005
"""Between two looks whether the file's lock is free."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and how it is written: what topics share a handle by."""

    path: Path
    is_synced: bool


def place_of(target: Target) -> tuple[Place, int]:
    """A target's place, and the most bytes of a record there. Raises EndpointMisconfigured."""
    authority, slash, path = target.uri.removeprefix("file://").partition("/")
    if authority or not path:
        raise EndpointMisconfigured("the endpoint is no file:///PATH: it names a user or a host, or no path")
    args = parse_args(target.args)
    return Place(Path(slash + path), SYNC.read(args)), MOST_BYTES.read(args)


class OpenFile:
    """A handle."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._fd = os.open(place.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to it."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self._place.path), os.fstat(self._fd))
        return False

    def lock(self) -> bool:
        """Whether nobody else writes."""
        with suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def append(self, lines: bytes) -> None:
        """Append all or nothing, and release the lock."""
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, lines) < len(lines):
                raise OSError(errno.ENOSPC, "the disk is full")
            if self._place.is_synced:
                os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, size)
            raise
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Lines:
    """Records that are appended at once."""

    records: Sequence[Record]
    lane: int = 0


class FileRoute:
    """A way from a shard to a file. All keys are of one lane."""

    stale = False
    acks_show_load = False
    width = ALL_LANES

    def __init__(self, file: Shared[OpenFile], about: dict[str, str], most_bytes: int, patience_s: float) -> None:
        """`about` stands in each line: topic, shard and incarnation."""
        self._file = file
        self._about = about
        self._most_bytes = most_bytes
        self._patience_s = patience_s

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """All records at once but those that are too large."""
        most = self._most_bytes
        refused = [(each, f"more than {MOST_BYTES.name}={most}") for each in records if len(each.body) > most]
        taken = [each for each in records if len(each.body) <= most]
        return ([Lines(taken)] if taken else []), refused

    async def look_again(self) -> None:
        """Nothing: the topic says its limit."""

    async def push(self, batch: Batch) -> None:
        """Append the records when nobody else writes."""
        if self._file.current is not None and not self._file.current.is_there:
            self._file.close_current()
        await asyncio.sleep(0)  # nothing of a file waits, and others are to have their turn
        with self._file.in_use():
            file = await self._file.ready()
            await self._locked(file, len(batch.records))
            try:
                file.append(b"".join(map(self._line, batch.records)))
            except OSError as exc:
                raise EndpointUnavailable(f"{self._file.what}: {exc.strerror}") from exc

    async def _locked(self, file: OpenFile, count: int) -> None:
        until = asyncio.get_running_loop().time() + self._patience_s
        while not file.lock():
            if self._file.is_closed:
                raise EndpointUnavailable(f"{self._file.what}: the endpoint is closed", "aborted")
            if asyncio.get_running_loop().time() > until:
                error = EndpointUnavailable(f"{self._file.what}: locked for {self._patience_s:g} s", "timeout")
                error.unclear = range(count)
                raise error
            await asyncio.sleep(RETRY_S)

    def _line(self, record: Record) -> bytes:
        line = self._about | {
            "position": record.position.decode(),
            "next": record.next_position.decode(),
            "id": record.event_id.decode(errors="surrogateescape"),
            "body": record.body.decode(errors="surrogateescape"),
        }
        return json.dumps(line).encode() + b"\n"

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Nothing: letters are in the store."""


class FileEndpoint:
    """Delivers to `file:///path`."""

    schemes = frozenset({"file"})

    def __init__(
        self, settings: Settings, observer: CrashObserver | None, *, idle_s: float = 60.0, patience_s: float = 20.0
    ) -> None:
        """No option of the settings is this endpoint's."""
        self.opened = self.closed = 0
        self._files: dict[Place, Shared[OpenFile]] = {}
        self._tasks = Tasks(observer or CrashLog())
        self._idle_s, self._patience_s = idle_s, patience_s
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.begin(sweep(self._idle_s, self._close_idle), name="close idle files")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        for each in self._files.values():
            each.close()
        await self._tasks.__aexit__()

    def check(self, target: Target) -> list[str]:
        """Raises EndpointMisconfigured for a target without an absolute path."""
        place_of(target)
        return list(remarks_on_others(parse_args(target.args), "file"))

    def publishes_letters(self, target: Target) -> bool:
        """No file takes letters."""
        return False

    async def up(self, target: Target) -> frozenset[str]:
        """A folder that is there is up."""
        folder = Path(target.uri.removeprefix("file://")).parent
        return frozenset({str(folder)}) if folder.is_dir() else frozenset()  # a look, and no read

    def destination(self, target: Target) -> str:
        """Each file is a destination of its own."""
        return target.uri

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[FileRoute]:
        """A way to the target's file."""
        place, most_bytes = place_of(target)
        if place not in self._files:
            self._files[place] = Shared(str(place.path), self._tasks, lambda: self._open(place), self._close)
        file = self._files[place]
        await file.ready()
        about = {"topic": target.topic, "shard": shard.queue, "incarnation": incarnation}
        yield FileRoute(file, about, most_bytes, self._patience_s)

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        """None: what was not appended in time never is."""
        return frozenset()

    async def _open(self, place: Place) -> OpenFile:
        try:
            file = OpenFile(place)
        except IsADirectoryError as exc:
            raise EndpointMisconfigured(f"{place.path} is a directory") from exc
        except OSError as exc:
            raise EndpointUnavailable(f"{place.path}: {exc.strerror}") from exc
        self.opened += 1
        return file

    async def _close(self, file: OpenFile, _: float) -> None:
        file.close()
        self.closed += 1

    def _close_idle(self, before: float) -> None:
        for file in self._files.values():
            file.close_idle(before)


KIND = EndpointKind(lambda settings, telemetry: FileEndpoint(settings, telemetry), ARGUMENTS)
"""What a package that has this endpoint would offer as an entry point."""
