"""What a process wrote to the files of an embedded store, and what a power cut may leave of it; see record_writes.c."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from devkit.processes.programs import program

SOURCE = Path(__file__).with_name("record_writes.c")
_HEAD = struct.Struct("<cHQI")
SECTOR = 512
"""A disk writes this much whole or not at all."""


def recorder(folder: Path) -> Path:
    """The library that is to be preloaded, compiled into a folder."""
    library = folder / "record_writes.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([program("cc", "gcc"), *flags, "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Record(NamedTuple):
    """One thing that was done to a file: `w`ritten, `t`runcated, `s`ynced; a sync that `f`ailed; or `a`ppended, to the
    acknowledgements."""

    kind: str
    name: str
    offset: int
    data: bytes


def records(log: Path) -> Iterator[Record]:
    """What was recorded, in order."""
    raw, at = log.read_bytes(), 0
    while at < len(raw):
        kind, name_length, offset, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        name = raw[at : at + name_length].decode()
        at += name_length
        yield Record(kind.decode(), name, offset, raw[at : at + length])
        at += length


@dataclass
class Written:
    """The files as the disk is sure to have them, and what was done since each was synced last.

    The names of files are taken as durable at once: all files are there before anything is recorded.
    """

    durable: dict[str, bytearray]
    unsynced: dict[str, list[Record]] = field(default_factory=dict)
    told: list[Any] = field(default_factory=list)

    def add(self, record: Record) -> bool:
        """Whether something is durable by this record that was not before."""
        if record.kind == "a":
            self.told += [json.loads(line) for line in record.data.splitlines()]
            return False
        if record.kind == "f":
            self.unsynced[record.name] = []  # the disk never gets it, and no later sync says so
            return False
        waiting = self.unsynced.setdefault(record.name, [])
        if record.kind != "s":
            waiting.append(record)
            return False
        for each in waiting:
            _do(self.durable.setdefault(record.name, bytearray()), each)
        self.unsynced[record.name] = []
        return bool(waiting)

    def images(self, rng: random.Random) -> Iterator[tuple[str, Mapping[str, bytearray]]]:
        """What the disk may have after a power cut now, each with a word for it: nothing of what is not synced, all of
        it, a part, and a part whose last write is torn."""
        yield "dropped", self.durable
        if not any(self.unsynced.values()):
            return
        yield "kept", self._with(self.unsynced)
        chosen = {name: [each for each in waiting if rng.random() < 0.5] for name, waiting in self.unsynced.items()}
        yield "in part", self._with(chosen)
        yield "torn", self._with({name: _torn(waiting, rng) for name, waiting in self.unsynced.items()})

    def _with(self, chosen: Mapping[str, Sequence[Record]]) -> Mapping[str, bytearray]:
        found = {name: bytearray(content) for name, content in self.durable.items()}
        for name, waiting in chosen.items():
            for each in waiting:
                _do(found.setdefault(name, bytearray()), each)
        return found


def _torn(waiting: Sequence[Record], rng: random.Random) -> Sequence[Record]:
    """The first of some writes, and some sectors of the one behind them."""
    if not waiting:
        return ()
    count = rng.randrange(len(waiting))
    last = waiting[count]
    sectors = range(0, len(last.data), SECTOR)
    kept = [
        last._replace(offset=last.offset + at, data=last.data[at : at + SECTOR]) for at in sectors if rng.random() < 0.5
    ]
    return [*waiting[:count], *kept]


def _do(content: bytearray, record: Record) -> None:
    end = record.offset + len(record.data)
    if record.kind == "t":
        del content[record.offset :]
        content.extend(bytes(record.offset - len(content)))
        return
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[record.offset : end] = record.data
