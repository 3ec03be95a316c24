"""What lies in the folder of a reconcile. Needs no Spark.

::

    RECONCILED/
      listing/*.parquet     findings.LISTED, of a bucket that was listed here
      listing.json          Listing: when that was; written when all of it is there
      _unsorted/            findings on their way
      findings/*.parquet    findings.FINDING, by key over all files in the order of their names
      reconcile.json        Reconcile; written when all findings are there
      index.html            the page
      emit/                 how far the sending has come (emit.py)
      _lock                 held by the process that compares or sends
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import held, read, write

VERSION = 1
MOST_EXAMPLES = 20
"""Findings of each kind that the summary and the page show."""


class Listing(msgspec.Struct, frozen=True):
    """A listing of a bucket that was made here, from when to when."""

    bucket: str
    source: str
    begun_us: int
    ended_us: int


class ReconcileFinding(msgspec.Struct, frozen=True):
    """A finding as the summary shows it."""

    kind: str
    key: str
    differs: tuple[str, ...]
    listed: str
    event: str


class Reconcile(msgspec.Struct, frozen=True, kw_only=True):
    """What a reconcile has found. `counts` has the findings by kind, and `changing`: those that the grace leaves out.

    `landing` and `batch` say which events were known; a landing of None is a backfill, which knows none.
    """

    version: int
    id: str
    bucket: str
    tenant: str
    source: str
    landed: str
    landing: str | None
    batch: int
    begun_us: int
    ended_us: int
    grace_us: int
    listed: int
    told: int
    counts: dict[str, int]
    examples: tuple[ReconcileFinding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether events and bucket agree."""
        return not any(number for kind, number in self.counts.items() if kind != "changing")


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event that the server will never take, or whose object S3 does not show, and why."""

    event_id: str
    key: str
    reason: str


@dataclass(frozen=True)
class ReconciledDirectory:
    """Where a reconcile is."""

    path: Path

    @property
    def listing(self) -> Path:
        """The listing that was made here."""
        return self.path / "listing"

    @property
    def findings(self) -> Path:
        """The table of findings."""
        return self.path / "findings"

    @property
    def unsorted(self) -> Path:
        """Findings on their way; readers of tables pass over it."""
        return self.path / "_unsorted"

    @property
    def page(self) -> Path:
        """The page."""
        return self.path / "index.html"

    @property
    def emit(self) -> Path:
        """How far the sending has come."""
        return self.path / "emit"

    def refused(self) -> Iterator[RefusedEvent]:
        """All events that the server will never take, in the order of their findings."""
        for file in sorted((self.emit / "refused").glob("*.json")):
            yield from read(file, tuple[RefusedEvent, ...])

    def made(self) -> Reconcile | None:
        """What was found; None before it was."""
        path = self.path / "reconcile.json"
        if not path.exists():
            return None
        found = read(path, Reconcile)
        if found.version != VERSION:
            raise ReplayRefused(f"{path}: has version {found.version}; this remora knows {VERSION}")
        return found

    def keep(self, found: Reconcile) -> None:
        """Say that all of it is there."""
        write(self.path / "reconcile.json", found)

    def listed(self) -> Listing | None:
        """The listing that was made here; None before it was whole."""
        path = self.path / "listing.json"
        return read(path, Listing) if path.exists() else None

    def keep_listing(self, listing: Listing) -> None:
        """Say that the listing is whole."""
        write(self.path / "listing.json", listing)

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from comparing and sending here while the block runs. Raises ReplayRefused while another process
        does."""
        return held(self.path / "_lock", f"{self.path}: another process compares or sends there")

    def refuse_others(self) -> None:
        """Raise ReplayRefused for a folder with anything in it that no reconcile has made."""
        ours = {
            "_unsorted",
            "listing",
            "listing.json",
            "findings",
            "reconcile.json",
            "index.html",
            "emit",
            "_lock",
            "listing.json.partial",
            "reconcile.json.partial",
        }
        if self.path.exists() and (others := sorted({each.name for each in self.path.iterdir()} - ours)):
            raise ReplayRefused(f"{self.path}: there are files in it that no reconcile has made, as {others[0]}")
