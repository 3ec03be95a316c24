"""What is committed together: pages, with what becomes of each of their entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remora.codec.speedups import joined
from remora.engine.delivery.triage import Rejected
from remora.model.record import Page, Record
from remora.policy.delivery.acks import PageAcks
from remora.ports.endpoint import Batch


@dataclass(slots=True)
class TransactionPart:
    """A page of a transaction, triaged."""

    page: Page
    acks: PageAcks
    records: Sequence[Record]
    rejected: list[Rejected]
    skipped: list[int]


@dataclass(slots=True)
class Transaction:
    """What is committed together. `is_due` when it need not wait for more; `batches` once nothing joins it any more.

    `began_at` is when it was opened by the loop's clock, `waits_since` by that of the stages.
    """

    began_at: float
    waits_since: float
    parts: list[TransactionPart] = field(default_factory=list)
    entries: int = 0
    nbytes: int = 0
    is_due: bool = False
    batches: list[Batch] | None = None

    @property
    def begins_at(self) -> bytes:
        """The position of its first entry."""
        return self.parts[0].page.positions[0]

    @property
    def upto(self) -> bytes:
        """The position behind its last entry."""
        return self.parts[-1].page.positions[-1]

    def records(self) -> Sequence[Record]:
        """Those that are sent, in the queue's order."""
        return joined([part.records for part in self.parts])


class Commits(Protocol):
    """What the sender of transactions asks of the part that commits them."""

    def begin_at(self, position: bytes) -> None:
        """Everything before this position is committed, and has left the queue."""
        ...

    async def commit(self, transaction: Transaction) -> None:
        """Commit a transaction, and mark its entries as done; a failure ends the session."""
        ...


def reject(part: TransactionPart, cause: str, reasons: Mapping[bytes, str]) -> None:
    """Dead-letter those records of a part, instead of sending them, that there is a reason for, by position."""
    found = [record for record in part.records if record.position in reasons]
    if found:
        part.rejected += [Rejected(record.ordinal, cause, reasons[record.position]) for record in found]
        part.records = [record for record in part.records if record.position not in reasons]
