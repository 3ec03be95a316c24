"""What the commands leave for each other: folders, files, and what the small ones say. Needs no Spark.

::

    PREPARED/                     made by `remora replay prepare`
      events/*.parquet            one row an event (shape.EVENT), in order of time within each file
      trace.json                  Trace: where it comes from, how it was shaped, what it asks of a server

    RUN/                          made by `remora replay run`
      run.json                    Run: what was replayed against what, and how
      journal/part=P/attempt=A.jsonl   what a task meant to send and what came of it, in the order of that (see below)
      tasks/                      what each task counted, for the summary that `run` prints
      faults.json                 list of Fault: what the server suffered; written by the program that made the faults
      verify/verdict.json         results.Verdict, made by `remora replay verify`; the same offsets give the same bytes
      verify/series.json          results.Series: what the report draws
      report/                     index.html, *.png and summary.json, made by `remora replay report`

All times are whole microseconds since 1970 in UTC, unless a name says otherwise.

A journal has one JSON object on each line, of one of three kinds (shape.JOURNAL). Each line is handed to the
operating system at once, an intent before its request is sent, so that a killed generator leaves no request untold:

* ``{"kind":"start","part":P,"attempt":A,"t0_us":...,"ts0_us":...,"speed":...}``, the first line. An event of the trace
  is due at ``t0_us + (ts_us - ts0_us) / speed``. A journal that resumes another one has a `t0_us` of its own, such
  that what is still to be sent keeps its distances. With speed 0 everything is due at once, in order.
* ``{"kind":"intent","seqs":[...],"sent_us":...,"tries":n}``: these events go into one request, for the n-th time.
* ``{"kind":"outcome","seqs":[...],"outcome":...,"sent_us":...,"done_us":...,"status":...,"tries":n,"error":...,
  "limited":n,"limited_us":...,"held_us":[...]}``: what is final of them (shape.OUTCOMES). `sent_us` is that of the
  first attempt; both are null for what was never sent. `limited` answers to their request were those of a rate limit
  (429), for which it waited so long; of a request with several of these lines only one has the numbers. `held_us` has
  for each of `seqs` how much of the time between due and sent requests of this journal waited so; without it that is 0.

An event with an intent and no outcome is `unknown`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

import msgspec

from remora_pipeline.replay.errors import ReplayRefused, named_by_path

T = TypeVar("T")

Options = dict[str, str | int | float | bool | None]
"""Options of a command by their names."""


class HotKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key with many events, and the most of them that are due within one second of the trace, at speed 1."""

    bucket: str
    key: str
    events: int
    peak_per_s: int


class Trace(msgspec.Struct, frozen=True):
    """What was prepared. `sha256` is of the sources' contents, in their order; `dropped` counts lines by reason.

    `unread` has those of the sources that were not read, or not to their end, and why; lines of the first are dropped.
    """

    name: str
    sha256: str
    sources: tuple[str, ...]
    format: str
    options: Options
    events: int
    keys: int
    buckets: int
    first_us: int
    last_us: int
    bytes: int
    operations: dict[str, int]
    dropped: dict[str, int]
    peak_per_s: int
    hottest: tuple[HotKey, ...]
    unread: dict[str, str] = {}


class ReplayRun(msgspec.Struct, frozen=True):
    """A replay. `target` is `ingest`, `s3` or `null`, and `address` where that is; secrets are never in it.

    `topic` is remora's topic, to which the events were sent or which the bucket notifies, and `is_numbered` whether it
    numbers its events; None where that is not known. `kafka_topic` is where remora delivers them; empty where that is
    not known. `speed` 0 is as fast as allowed. `parts` is the number of tasks
    that sent side by side.
    """

    run_id: str
    trace: Trace
    prepared: str
    target: str
    address: str
    topic: str
    speed: float
    parts: int
    overload: str
    started_us: int
    options: Options
    host: str
    cores: int
    versions: dict[str, str]
    is_numbered: bool | None = None
    kafka_topic: str = ""


class Fault(msgspec.Struct, frozen=True):
    """Something that was done to the server while a replay ran, for the pictures."""

    name: str
    from_us: int
    to_us: int


@dataclass(frozen=True)
class PreparedDirectory:
    """Events that are ready to be replayed."""

    path: Path

    @property
    def events(self) -> Path:
        """Parquet files of shape.EVENT."""
        return self.path / "events"

    @property
    def trace(self) -> Path:
        """A Trace; written last, so that a directory that has it is whole."""
        return self.path / "trace.json"


@dataclass(frozen=True)
class RunDirectory:
    """A replay and everything that was found out about it."""

    path: Path

    @property
    def run(self) -> Path:
        """A Run."""
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """Folders `part=P` with files `attempt=A.jsonl`."""
        return self.path / "journal"

    @property
    def tasks(self) -> Path:
        """A folder for each time that the run was begun or resumed, with Parquet of a row a task."""
        return self.path / "tasks"

    @property
    def faults(self) -> Path:
        """A list of Fault; there need not be one."""
        return self.path / "faults.json"

    @property
    def verdict(self) -> Path:
        """A results.Verdict."""
        return self.path / "verify" / "verdict.json"

    @property
    def series(self) -> Path:
        """A results.Series."""
        return self.path / "verify" / "series.json"

    @property
    def report(self) -> Path:
        """The folder of the report."""
        return self.path / "report"


def read(path: Path, kind: type[T]) -> T:
    """What a small file says. Raises ReplayRefused with its name when it is missing, or not what it should be."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as exc:
        raise ReplayRefused(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, RecursionError) as exc:  # the former also of what is not UTF-8
        raise ReplayRefused(f"{path}: {exc}") from exc


@contextmanager
def held(lock: Path, why: str) -> Iterator[None]:
    """Hold the lock of a folder, which is made with it, while the block runs. Raises ReplayRefused where another
    process does."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ReplayRefused(why) from exc
        yield


def see_folder(folder: Path) -> None:
    """See that a folder, or what it is to be made in, takes files: before hours go into them. Raises ReplayError."""
    with (
        named_by_path(folder),
        TemporaryFile(dir=next(each for each in (folder, *folder.absolute().parents) if each.exists())),
    ):
        pass


def write(path: Path, value: object) -> None:
    """Make or replace a small file, whole or not at all; the same value gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2) + b"\n")
    partial.replace(path)
