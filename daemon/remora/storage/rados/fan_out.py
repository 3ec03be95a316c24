"""Stores events in several topics, all copies or none, also over a crash.

Room is reserved in the queues of all topics first; then one operation on one object commits the envelope with all
payloads (`envelope.py`); then each part is committed to its queue, by this process or by one that recovers it. The
envelope of a request with a key is named by the key alone, since by the time that it is repeated its events may match
other notifications.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

from remora.model.errors import OnceConflict, StoreError, StoreUnavailable
from remora.model.ingest import FannedOut, IdempotencyKey, TopicCopies
from remora.storage.rados.envelope import FanOutEnvelope
from remora.storage.rados.finisher import RequestLog
from remora.storage.rados.ingest import RadosIngest, clearest_of, demands_of, filled, payloads_of
from remora.storage.rados.intent_log import Intent, IntentState, LoggedIntent, now_ms
from remora.storage.rados.own_queues import OwnQueues, each_of
from remora.storage.rados.own_topics import RadosOwnTopics
from remora.storage.rados.refusals import ExistsError


class RadosFanOut(RadosIngest):
    """Ingest, and events for several topics at once; see `ports.FanningOut`. `fan_outs` is the log of such requests."""

    def __init__(
        self, log: RequestLog[Intent], queues: OwnQueues, topics: RadosOwnTopics, fan_outs: RequestLog[FanOutEnvelope]
    ) -> None:
        super().__init__(log, queues, topics)
        self.fan_outs = fan_outs

    def fan_out_soon(
        self, copies: Sequence[TopicCopies], answer: FannedOut, done: Callable[[FannedOut | Exception], None]
    ) -> bool:
        """False: each request takes several operations."""
        return False

    async def fan_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None = None
    ) -> FannedOut:
        """Store the copies; returns when all are durable."""
        if once is None and len(copies) < 2:
            for each in copies:
                await self.publish(each.topic, each.events)
            return answer
        topic, events = (copies[0].topic.name, copies[0].events) if copies else ("", ())
        return await self._observed(topic, events, self._stored(copies, answer, once))

    async def _stored(self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None) -> FannedOut:
        """Store the copies by an envelope, unless there is one of this key."""
        name = _name(once) if once else f"~any-{secrets.token_hex(16)}"
        if once is not None and (before := await self.fanned_out(once)) is not None:
            return before
        intents = await self._reserve_copies(copies, repeated=once is not None)
        envelope = FanOutEnvelope(
            FanOutEnvelope.VERSION, now := now_ms(), intents, once is not None, now, once.digest if once else b"",
            answer.accepted, answer.unmatched, dict(answer.topics),
        )  # fmt: skip
        try:
            await self._commit(self.fan_outs, name, envelope)
        except ExistsError as exc:
            if once is not None and (before := await self.fanned_out(once)) is not None:
                return before
            raise StoreUnavailable("an earlier request of this key was just being deleted") from exc
        return answer

    async def fanned_out(self, once: IdempotencyKey) -> FannedOut | None:
        """The answer that a request with this key had before, when every topic has its copies."""
        known = await self.fan_outs.intents.load(name := _name(once))
        if known is None:
            return None
        if known.intent.digest != once.digest:
            raise OnceConflict("something else was stored under this key before")
        return await self._completed(name, known)

    async def _completed(self, name: str, known: LoggedIntent[FanOutEnvelope]) -> FannedOut:
        """The answer of a request that was committed before, once it is completed."""
        if known.state is IntentState.COMMITTED:
            await self.fan_outs.finisher.complete(name, known.intent)
        found = known.intent
        return FannedOut(found.accepted, found.unmatched, found.topics, repeated=True)

    async def _reserve_copies(self, copies: Sequence[TopicCopies], *, repeated: bool) -> list[Intent]:
        """Intents with their payloads and with room reserved in all topics; what was reserved is given back where one
        refuses."""
        payloads = [payloads_of(each.topic, each.events) for each in copies]

        async def reserve(number: int) -> Intent:
            return await self._reserve(copies[number].topic, demands_of(payloads[number]), repeated=repeated)

        intents = await self._all_or_none(await each_of(range(len(copies)), reserve))
        return [intent.committed(filled(intent, of), b"") for intent, of in zip(intents, payloads, strict=True)]

    async def _all_or_none(self, found: Sequence[Intent | StoreError]) -> list[Intent]:
        """What was reserved in each topic; where one refuses, give it back and raise why."""
        intents = [each for each in found if not isinstance(each, StoreError)]
        if (error := clearest_of(found)) is not None:
            await each_of(intents, self._finisher.release)
            raise error
        return intents


def _name(once: IdempotencyKey) -> str:
    return f"~once-{hashlib.sha256(once.key.encode()).hexdigest()[:40]}"
