"""An endpoint that appends each record to a file: what a third kind of endpoint takes, and no more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from remora.config import Settings
from remora.metrics import Telemetry
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Batch


@dataclass(frozen=True, slots=True)
class Lines:
    """Records that are appended at once."""

    records: Sequence[Record]
    lane: int = 0


class FileRoute:
    """A way to one file. All keys are of one lane."""

    stale = False
    acks_show_load = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """All records at once; none is refused."""
        return ([Lines(records)] if records else []), []

    async def look_again(self) -> None:
        """Nothing: no limit is known."""

    async def push(self, batch: Batch) -> None:
        """Append the records, and sync the file."""
        try:
            with self._path.open("ab") as file:
                file.writelines(record.body + b"\n" for record in batch.records)
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise EndpointUnavailable(f"{self._path}: {exc.strerror}") from exc

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Nothing: letters are in the store."""


class FileEndpoint:
    """Delivers to `file:///path`."""

    schemes = frozenset({"file"})

    def __init__(self, settings: Settings, telemetry: Telemetry | None) -> None:
        """No option is this endpoint's."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def check(self, target: Target) -> list[str]:
        """Raises EndpointMisconfigured for a target without an absolute path."""
        if not target.uri.startswith("file:///"):
            raise EndpointMisconfigured(f"{target.uri} has no absolute path")
        return []

    def publishes_letters(self, target: Target) -> bool:
        """No file takes letters."""
        return False

    async def up(self, target: Target) -> frozenset[str]:
        """A folder that is there is up."""
        return frozenset({"file"}) if Path(target.uri.removeprefix("file://")).parent.is_dir() else frozenset()

    def destination(self, target: Target) -> str:
        """Each file is a destination of its own."""
        return target.uri

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[FileRoute]:
        """A way to the target's file."""
        yield FileRoute(Path(target.uri.removeprefix("file://")))
