"""Commits transactions of one shard, one after the other: the only place where any of their entries is sent."""

from __future__ import annotations

import asyncio
import time

from remora.codec.speedups import totals
from remora.engine.delivery.letters import dead_letter
from remora.engine.delivery.session import Session
from remora.engine.delivery.transaction import Transaction, reject
from remora.engine.delivery.triage import pack_surely
from remora.model.errors import EndpointError, EndpointFenced, EndpointUnavailable, EntryRefused, StoreError
from remora.model.ledger import Cause
from remora.model.record import DeadLetter
from remora.ports.endpoint import Batch, ExactRoute

SEARCH_PARTS = 8
"""A transaction with a refused record is repeated in this many parts, and so on until the record stands alone."""


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
            self._session.trimmer.mark_done(part.acks, ordinals, Cause.DELIVERED)
            for each in part.rejected:
                self._session.trimmer.mark_done(part.acks, [each.ordinal], Cause.of_letter(each.cause))
            for ordinal in part.skipped:
                self._session.trimmer.mark_done(part.acks, [ordinal], self._redelivery.done.pop(positions[ordinal]))
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
