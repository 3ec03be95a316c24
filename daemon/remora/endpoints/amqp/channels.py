"""One channel of a connection: its messages, their confirms, and what the broker has against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pamqp import commands, header

from remora.endpoints.amqp.errors import NO_ROUTE, too_large, why_closed
from remora.endpoints.amqp.frames import BadFrames, Confirm, Content, Envelope
from remora.endpoints.arrived import Arrived
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.quarantine import ANSWERED

WINDOW = 16
"""Messages of a run without a confirm at once, of as many keys."""


class Run:
    """Messages of one lane, sent in their order: those of one key one after the other, of others side by side.

    A message is sent once all earlier ones of its key are confirmed, while at most WINDOW of the run have no confirm.
    `done` ends when all have arrived, or with an EndpointError. `at` of them have arrived, from the front.
    """

    __slots__ = (
        "_ahead", "_busy", "_keys", "_nacked", "_refusal", "at", "done", "envelope", "ids", "is_due", "make", "next",
        "routable",
    )  # fmt: skip

    def __init__(
        self,
        ids: Sequence[bytes],
        make: Callable[[int], Content],
        envelope: Envelope,
        keys: Sequence[bytes] = (),
        *,
        routable: bool,
    ) -> None:
        """`make` encodes one that is due, `ids` name them; without `keys` all are of one key."""
        self.ids = ids
        self.make = make
        self.envelope = envelope
        self.routable = routable
        self.at = self.next = 0
        self.is_due = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keys = keys
        self._busy: set[bytes] = set()
        self._ahead: set[int] = set()  # which have arrived although one before them has no confirm
        self._refusal: tuple[int, EndpointError] | None = None
        self._nacked: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether its push was given up."""
        return self.done.done()

    @property
    def may_send(self) -> bool:
        """Whether the next message may be under way beside those that are."""
        at, busy = self.next, self._busy
        return (
            at < len(self.ids)
            and len(busy) < WINDOW
            and self._key(at) not in busy
            and self._refusal is None
            and not self.done.done()
        )

    def _key(self, at: int) -> bytes:
        return self._keys[at] if self._keys else b""

    def begin(self) -> int:
        """The next message is under way; returns which it is."""
        at = self.next
        self._busy.add(self._key(at))
        self.next = at + 1
        return at

    def arrived(self, at: int) -> None:
        """A message that was under way has arrived; with the last one it is done."""
        self._busy.discard(self._key(at))
        self._ahead.add(at)
        while self.at in self._ahead:
            self._ahead.remove(self.at)
            self.at += 1
        if self.at == len(self.ids) and not self.done.done():
            self.done.set_result(None)

    def refuse(self, at: int, error: EndpointError) -> None:
        """The broker refused a message that was under way: no other is sent. Of several the first counts."""
        self._busy.discard(self._key(at))
        self._nacked.add(at)
        if self._refusal is None or at < self._refusal[0]:
            self._refusal = at, error

    @property
    def refused(self) -> EndpointError | None:
        """Why the broker refused the message behind those that have arrived, if it did."""
        return self._refusal[1] if self._refusal is not None and self._refusal[0] == self.at else None

    def fail(self, error: EndpointError, tries: int | None = None) -> None:
        """End it; each run gets an exception of its own, since each of them is raised, that tells how far it came.

        `tries` is 1 where the broker refused the message behind those that have arrived.
        """
        if not self.done.done():
            own = error.again().at(self.at, tries)
            own.unclear = self.unclear
            self.done.set_exception(own)

    @property
    def unclear(self) -> list[int]:
        """Those that were sent and not refused, behind the front of those that have arrived."""
        return [each for each in range(self.at, self.next) if each not in self._nacked]

    def all_arrived(self) -> list[bytes]:
        """The ids of all that have arrived."""
        return [*self.ids[: self.at], *map(self.ids.__getitem__, self._ahead)]


@dataclass(slots=True, eq=False)
class Sent:
    """A message without a confirm yet, number `at` of a run; `returned` is the code of the broker that returned it."""

    message_id: bytes
    nbytes: int
    run: Run
    at: int
    returned: int = 0


class Line(Protocol):
    """What a channel needs of its connection."""

    @property
    def frame_bytes(self) -> int: ...

    def due(self, channel: Channel, run: Run) -> None:
        """Have the next message of a run written as soon as may be."""
        ...

    def learn_limit(self, nbytes: int) -> None:
        """Remember the size of messages that the broker still takes."""
        ...


class Channel:
    """A channel in confirm mode. `what` names its topic in errors; `unroutable` counts what reached no queue."""

    def __init__(self, number: int, line: Line, what: str, arrived: Arrived, unroutable: Callable[[], None]) -> None:
        self.number = number
        self.what = what
        self.flowing = True
        self.error: EndpointError | None = None
        self._line = line
        self._arrived = arrived
        self._unroutable = unroutable
        self._tag = 0
        self._sent: dict[int, Sent] = {}  # by delivery tag, in order
        self._by_id: dict[bytes, Sent] = {}
        self._runs: set[Run] = set()  # whose next message is not written yet
        self._return: tuple[int, int] | None = None  # reply code, and bytes of the body to come; -1 before its header

    @property
    def unconfirmed(self) -> int:
        """Messages without a confirm, of pushes that wait and of those given up."""
        return len(self._sent)

    def may_confirm(self, message_id: bytes) -> bool:
        """Whether a confirm of this message may still come."""
        return message_id in self._by_id

    def submit(self, run: Run) -> None:
        """Send what may be sent of a run, but what has arrived or is under way already; then wait for that."""
        while run.may_send:
            message_id = run.ids[run.next]
            if self._arrived.take(message_id):
                run.arrived(run.begin())
                continue
            if self.error is not None:
                self._fail(run, self.error)
                return
            sent = self._by_id.get(message_id)
            if sent is not None:
                sent.run, sent.at = run, run.begin()
                continue
            if not run.is_due:
                run.is_due = True
                self._runs.add(run)
                self._line.due(self, run)
            return

    def encode(self, run: Run) -> list[bytes]:
        """The frames of a run's next message, which counts as sent from now on; none where the push was given up."""
        self._runs.discard(run)
        run.is_due = False
        if self.error is not None or not run.may_send:
            return []
        if run.ids[run.next] in self._by_id:
            self.submit(run)
            return []
        content = run.make(run.next)
        self._tag += 1
        sent = Sent(content.message_id, len(content.body), run, run.begin())
        self._sent[self._tag] = self._by_id[content.message_id] = sent
        self.submit(run)
        return [run.envelope.publish(self.number), *content.frames(self.number, self._line.frame_bytes)]

    # ------------------------------------------------------------------------------- what the broker says

    def acked(self, confirm: Confirm) -> None:
        """Messages are where the broker wants them. Raises BadFrames for one that it never got."""
        for sent in self._confirmed(confirm) if self.error is None else ():
            self._ack(sent)

    def nacked(self, confirm: Confirm) -> None:
        """The broker did not take messages. Raises BadFrames for one that it never got."""
        text = f"{self.what}: the broker did not take the message; a queue may be full"
        refused = EndpointUnavailable(text, ANSWERED)
        for sent in self._confirmed(confirm) if self.error is None else ():
            self._refuse(sent, refused)

    def _confirmed(self, confirm: Confirm) -> list[Sent]:
        tag, found = confirm.tag, []
        if not 0 < tag <= self._tag:
            raise BadFrames("the broker confirms a message that it never got")
        if not confirm.multiple:
            one = self._sent.pop(tag, None)
            if one is None:
                raise BadFrames("the broker confirms a message twice")
            found = [one]
        else:
            for each in list(self._sent):
                if each > tag:
                    break
                found.append(self._sent.pop(each))
        for sent in found:
            self._by_id.pop(sent.message_id, None)
        return found

    def _ack(self, sent: Sent) -> None:
        run = sent.run
        if sent.returned:
            if run.routable:
                why = "no queue is bound with this routing key" if sent.returned == NO_ROUTE else "it was returned"
                self._refuse(sent, EndpointMisconfigured(f"{self.what}: {why}, and amqp-ack-level is routable"))
                return
            self._unroutable()
        if run.is_over:
            self._arrived.add(sent.message_id)
            return
        run.arrived(sent.at)
        self._settle(run)

    def _refuse(self, sent: Sent, error: EndpointError) -> None:
        if sent.run.is_over:
            self._arrived.news()
            return
        sent.run.refuse(sent.at, error)
        self._settle(sent.run)

    def _settle(self, run: Run) -> None:
        """Send more of a run, or have it fail once all messages before the refused one have arrived."""
        if run.refused is not None:
            self._fail(run, run.refused, tries=1)
        else:
            self.submit(run)

    def _fail(self, run: Run, error: EndpointError, tries: int | None = None) -> None:
        if not run.is_over:
            self._remember(run)
            run.fail(error, tries)

    def _remember(self, run: Run) -> None:
        for message_id in run.all_arrived():
            self._arrived.add(message_id)

    def abandon(self, run: Run) -> None:
        """Gives a run up. A message of it that was written keeps its place until it is confirmed."""
        if not run.done.done():
            self._remember(run)
            run.done.cancel()
        elif not run.done.cancelled():
            run.done.exception()  # the waiting push may have been cancelled in the same turn of the loop

    def returned(self, method: commands.Basic.Return) -> None:
        """A message reached no queue; its header and body follow, then its confirm."""
        if self.error is not None:
            return
        if self._return is not None:
            raise BadFrames("a message is returned within another one")
        self._return = method.reply_code or NO_ROUTE, -1

    def content_header(self, found: header.ContentHeader) -> None:
        """The header of a returned message."""
        if self.error is not None:
            return
        if self._return is None or self._return[1] >= 0:
            raise BadFrames("a header of no message")
        code, left = self._return[0], found.body_size or 0
        message_id = (found.properties.message_id or "").encode()
        sent = self._by_id.get(message_id)
        if sent is None:
            raise BadFrames("the broker returns a message that it never got")
        sent.returned = code
        self._return = (code, left) if left else None

    def content_body(self, nbytes: int) -> None:
        """A piece of the body of a returned message."""
        if self.error is not None:
            return
        if self._return is None or nbytes > self._return[1]:
            raise BadFrames("a body of no message")
        code, left = self._return
        self._return = (code, left - nbytes) if left > nbytes else None

    def closed(self, code: int, text: str) -> None:
        """The broker closed the channel, and with it whatever has no confirm."""
        error = why_closed(code, self.what, channel=True)
        sizes = too_large(code, text)
        if sizes is not None:
            nbytes, most = sizes
            self._line.learn_limit(most)
            text = f"{self.what}: a message was larger than the broker takes ({most} bytes)"
            error = EndpointUnavailable(text, "too_large")
            for sent in self._sent.values():
                if sent.nbytes == nbytes:
                    refused = EntryRefused(f"{self.what}: {nbytes} bytes, the broker takes {most}")
                    sent.run.refuse(sent.at, refused)  # its fate is known
                    if sent.at == sent.run.at:
                        self._fail(sent.run, refused, tries=1)
                    break
        self.end(error)

    def end(self, error: EndpointError) -> None:
        """Nothing of this channel is confirmed any more."""
        if self.error is not None:
            return
        self.error = error
        runs = [*(each.run for each in self._sent.values()), *self._runs]
        self._sent.clear()
        self._by_id.clear()
        self._runs.clear()
        for run in runs:
            self._fail(run, error)
        self._arrived.news()
