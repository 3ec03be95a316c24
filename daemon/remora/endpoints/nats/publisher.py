"""What one topic has under way over a connection: messages and questions for them, and what the server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from remora.endpoints.arrived import Arrived
from remora.endpoints.nats.errors import NOBODY, TOO_LARGE, why_refused
from remora.endpoints.nats.lines import ServerOperation, is_nobody, last_payload, last_subject, question, read_answer
from remora.endpoints.nats.messages import MessageSource, NatsMessage
from remora.endpoints.nats.streams import Before, SubjectLooks, last_place, read_last
from remora.endpoints.runs import Carrier, Run
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import Record
from remora.policy.ownership.quarantine import ANSWERED

ACKED = b'{"stream":'
"""How an acknowledgement begins. Which stream it is was said with the message."""


class PublishRun(Run):
    """A run of messages of a lane; `make` encodes one that is due.

    With `looks` the stream is asked first for messages that it may have. Dead letters go to a subject of their own, and
    perhaps into another stream.
    """

    __slots__ = ("are_letters", "lane", "looks", "make", "records", "sender")

    def __init__(
        self,
        ids: Sequence[bytes],
        make: Callable[[int], NatsMessage],
        keys: Sequence[bytes] = (),
        *,
        are_letters: bool = False,
    ) -> None:
        super().__init__(ids, keys)
        self.make = make
        self.are_letters = are_letters
        self.looks: SubjectLooks | None = None
        self.lane = 0
        self.records: Sequence[Record] = ()
        self.sender: MessageSource | None = None

    def look_first(self, looks: SubjectLooks, lane: int, records: Sequence[Record], sender: MessageSource) -> None:
        """Have the stream asked for what it may have of these records."""
        self.looks, self.lane, self.records, self.sender = looks, lane, records, sender

    def before(self, at: int) -> Before:
        """What is known of a message before it is sent."""
        if self.looks is None:
            return Before.NEW
        return self.looks.before(self.lane, self.records[at], time.time_ns())


@dataclass(slots=True, eq=False)
class UnderWay:
    """A message without an answer yet, number `at` of a run; the last that was written for it is the question for it
    where it `is_asked_for`. That went to `subject`, at `written_at`, and its answer comes to `reply`."""

    message_id: bytes
    run: PublishRun
    at: int
    publisher: StreamPublisher
    is_asked_for: bool
    subject: bytes = b""
    reply: bytes = b""
    written_at: float = 0.0

    def answered(self, operation: ServerOperation) -> None:
        """The server has answered."""
        self.publisher.answered(self, operation)

    def denied(self) -> None:
        """The user may not do this."""
        self.publisher.denied(self)

    def failed(self, error: EndpointError) -> None:
        """The connection has ended."""
        self.publisher.end(error)


class Wire(Protocol):
    """What a publisher needs of its connection."""

    def due(self, publisher: StreamPublisher, run: PublishRun) -> None:
        """Have the next message of a run written as soon as may be."""
        ...

    def expect(self, who: UnderWay) -> bytes:
        """The subject to which the answer is to go."""
        ...

    def forget(self, reply: bytes) -> None:
        """Nobody expects the answer any more that was to go to this subject."""
        ...

    def write(self, data: bytes) -> None:
        """Write this, behind what was written."""
        ...


class StreamPublisher(Carrier[PublishRun, UnderWay]):
    """See the module. `what` names the stream in errors, `known` counts what the stream had, by how that was found.

    A message without an answer for `patience_s` is sent again by the next push of it: a stream that changes its leader
    loses messages, and a server that has too much to do drops questions, and neither says so. A stream that has the
    message after all drops the copy by its id.
    """

    def __init__(
        self,
        stream: str,
        what: str,
        wire: Wire,
        arrived: Arrived,
        known: Callable[[str], None],
        *,
        patience_s: float,
    ) -> None:
        super().__init__(what, arrived)
        self._patience_s = patience_s
        self._now = asyncio.get_running_loop().time
        self._stream = stream.encode()
        self._wire = wire
        self._known = known

    @property
    def unanswered(self) -> int:
        """Messages without an answer, of pushes that wait and of those given up."""
        return len(self._by_id)

    def may_confirm(self, message_id: bytes) -> bool:
        """Whether an acknowledgement of this message may still come."""
        found = self._by_id.get(message_id)
        return found is not None and not found.is_asked_for

    def write_soon(self, run: PublishRun) -> None:
        """Have the connection ask for the next message."""
        self._wire.due(self, run)

    def encode(self, run: PublishRun) -> bytes:
        """A run's next message, or the question for it, which counts as under way; nothing of a push given up."""
        if not self.may_encode(run):
            return b""
        before = run.before(run.next)
        if before is Before.ARRIVED:
            self._known("look")
            run.arrived(run.begin())
            self.submit(run)
            return b""
        at = run.begin()
        one = UnderWay(run.ids[at], run, at, self, before is Before.UNKNOWN)
        self._by_id[one.message_id] = one
        made = self._operation(one)
        self.submit(run)
        return made

    def was_taken_over(self, one: UnderWay) -> None:
        """Send it again where its answer is overdue, as if nobody had begun it."""
        if self._now() - one.written_at < self._patience_s:
            return
        before = one.run.before(one.at)
        if before is Before.ARRIVED:
            self._known("look")
            self._ack(one)
            return
        one.is_asked_for = before is Before.UNKNOWN
        self._wire.write(self._operation(one))

    def _operation(self, one: UnderWay) -> bytes:
        """What has a message stored, or asks for it; from now on its answer is expected, and no earlier one."""
        message = one.run.make(one.at)
        self._wire.forget(one.reply)
        one.reply, one.written_at = self._wire.expect(one), self._now()
        if one.is_asked_for:
            one.subject = last_subject(self._stream)
            return question(one.subject, one.reply, last_payload(message.subject))
        one.subject = message.subject
        return message.publish(one.reply)

    # ------------------------------------------------------------------------------- what the server says

    def answered(self, one: UnderWay, operation: ServerOperation) -> None:
        """To a message, or to the question for it."""
        if self.error is not None:
            return
        if one.is_asked_for:
            self._found(one, operation)
            return
        if operation.payload.startswith(ACKED):
            if b"duplicate" in operation.payload:
                self._known("window")
            self._ack(one)
        elif is_nobody(operation) and one.run.are_letters:
            text = f"{self.what}: no stream takes {one.subject.decode()}, the subject of dead letters"
            self._refuse(one, EndpointUnavailable(text, ANSWERED))
        elif is_nobody(operation):
            self.end(EndpointUnavailable(f"{self.what}: {NOBODY}", ANSWERED))  # another look says what it is
        else:
            self._refuse(one, self._why(operation, one))

    def _why(self, operation: ServerOperation, one: UnderWay) -> EndpointError:
        try:
            error = read_answer(operation.payload, self.what).get("error")
        except EndpointUnavailable as exc:
            return exc
        if isinstance(error, dict) and error.get("err_code") in TOO_LARGE:
            nbytes = one.run.make(one.at).nbytes
            return EntryRefused(f"{self.what}: {nbytes} bytes with headers, more than the stream takes")
        return why_refused(error, self.what)

    def _found(self, one: UnderWay, operation: ServerOperation) -> None:
        run = one.run
        assert run.looks is not None
        assert run.sender is not None
        if run.is_over:  # nothing of it was sent
            self._forget(one)
            self._arrived.news()
            return
        try:
            headers = {} if is_nobody(operation) else read_last(operation.payload, self.what)
        except EndpointError as exc:
            self._refuse(one, exc)
            return
        place = last_place(headers, run.sender.shard, run.sender.prefix)
        if run.looks.found(run.lane, run.records[one.at], place) is Before.ARRIVED:
            self._known("look")
            self._ack(one)
            return
        one.is_asked_for = False
        self._wire.write(self._operation(one))

    def denied(self, one: UnderWay) -> None:
        """The user may not publish to the message's subject; or may no longer ask for it, and another way does without
        that."""
        if self.error is not None:
            return
        if one.is_asked_for:
            self.end(EndpointUnavailable(f"{self.what}: the user may not read messages of the stream", ANSWERED))
        else:
            text = f"{self.what}: the user may not publish to the subjects of this topic"
            self._refuse(one, EndpointMisconfigured(text))

    def end(self, error: EndpointError) -> None:
        """Nothing is acknowledged any more, and no answer expected."""
        for one in self._by_id.values():
            self._wire.forget(one.reply)
        super().end(error)

    def _forget(self, one: UnderWay) -> None:
        if self._by_id.get(one.message_id) is one:
            self._wire.forget(one.reply)
            del self._by_id[one.message_id]

    def _ack(self, one: UnderWay) -> None:
        self._forget(one)
        self.has_arrived(one)

    def _refuse(self, one: UnderWay, error: EndpointError) -> None:
        self._forget(one)
        self.was_refused(one, error)
