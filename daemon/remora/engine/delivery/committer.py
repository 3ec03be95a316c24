"""Commits transactions of one shard, one after the other: the only place where any of their entries is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remora.codec.speedups import joined, totals
from remora.engine.delivery.letters import dead_letter
from remora.engine.delivery.packer import pack_surely
from remora.engine.delivery.session import Session
from remora.engine.delivery.triage import Rejected
from remora.model.errors import EndpointError, EndpointFenced, EndpointUnavailable, EntryRefused, StoreError
from remora.model.ledger import Cause
from remora.model.record import DeadLetter, Page, Record
from remora.policy.acks import PageAcks
from remora.ports.endpoint import Batch, ExactRoute

SEARCH_PARTS = 8
"""A transaction with a refused record is repeated in this many parts, and so on until the record stands alone."""


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


class Committer:
    """See the module. Each transaction begins where the last one that was committed ended."""

    def __init__(self, session: Session, route: ExactRoute) -> None:
        self._session = session
        self._scope = session.scope
        self._redelivery = session.scope.state.redelivery
        self._reads = session.scope.state.reads
        self._progress = session.scope.state.progress
        self._route = route
        self._reached = b""

    def begin_at(self, position: bytes) -> None:
        """Everything before this position is committed, and has left the queue."""
        self._reached, self._redelivery.in_doubt = position, False

    async def commit(self, transaction: Transaction) -> None:
        """Commit a transaction, and mark its entries as done; a failure ends the session."""
        begun = self._scope.clock()
        try:
            await self._send(transaction)
        except EntryRefused as exc:
            self._search(transaction, exc)
        except EndpointFenced as exc:
            self._session.fail(exc)
        except EndpointError as exc:
            self._session.count_attempts(transaction.records(), exc)
            self._session.fail(exc)
        except StoreError as exc:
            self._session.fail(exc)
        else:
            self._scope.pushed(transaction.waits_since, begun)
            self._committed(transaction)

    async def _packed(self, transaction: Transaction) -> list[Batch]:
        """The batches of a transaction; what does not fit is rejected."""
        if transaction.batches is not None:
            return transaction.batches
        batches, refused = await pack_surely(self._route, transaction.records())
        if refused:
            reasons = {record.position: why for record, why in refused}
            for part in transaction.parts:
                reject(part, "too_large", reasons)
        return batches

    async def _send(self, transaction: Transaction) -> None:
        """Dead-letter what cannot be sent, which asks for trust itself, then commit while the lock is to be trusted."""
        if transaction.begins_at != self._reached:
            raise RuntimeError(f"a transaction from {transaction.begins_at!r} on would pass over {self._reached!r}")
        batches = await self._packed(transaction)
        letters: list[DeadLetter] = []
        for part in transaction.parts:
            letters += await dead_letter(self._scope, part.page, part.rejected)
        self._scope.lease.require_trust()
        self._redelivery.in_doubt = True
        held = self._session.reader.held
        held.force(letters)
        with held.handed(*[part.records for part in transaction.parts]):
            await self._route.commit(batches, transaction.upto, letters)
        self._reached, self._redelivery.in_doubt = transaction.upto, False

    def _committed(self, transaction: Transaction) -> None:
        """Everything of it is done with; it may leave the queue."""
        now_ns = time.time_ns()
        for part in transaction.parts:
            positions, (nbytes, created_ns, ordinals) = part.page.positions, totals(part.records)
            if ordinals:
                self._scope.delivered(len(ordinals), nbytes, created_ns, now_ns)
            self._session.trimmer.finish(part.acks, ordinals, Cause.DELIVERED)
            for each in part.rejected:
                self._session.trimmer.finish(part.acks, [each.ordinal], Cause.of_letter(each.cause))
            for ordinal in part.skipped:
                self._session.trimmer.finish(part.acks, [ordinal], self._redelivery.done.pop(positions[ordinal]))
            self._redelivery.forget(positions)
        self._session.reader.held.hold(-transaction.nbytes)
        self._session.reader.held.done(transaction.entries)
        self._progress.progress_at = asyncio.get_running_loop().time()
        self._reads.pages_delivered += len(transaction.parts)
        self._session.on_progress()

    def _search(self, transaction: Transaction, exc: EntryRefused) -> None:
        """A record of an aborted transaction was refused for good: find it; the next session dead-letters it."""
        records = transaction.records()
        if len(records) == 1:
            self._redelivery.refused[records[0].position] = str(exc)
        else:
            self._redelivery.read_singly = transaction.entries
            self._redelivery.search_entries = max(1, transaction.entries // SEARCH_PARTS)
        self._session.fail(
            exc if records else EndpointUnavailable(f"dead letters of {self._scope.lease.shard} were refused: {exc}")
        )


def reject(part: TransactionPart, cause: str, reasons: Mapping[bytes, str]) -> None:
    """Dead-letter those records of a part, instead of sending them, that there is a reason for, by position."""
    found = [record for record in part.records if record.position in reasons]
    if found:
        part.rejected += [Rejected(record.ordinal, cause, reasons[record.position]) for record in found]
        part.records = [record for record in part.records if record.position not in reasons]
