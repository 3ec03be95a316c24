"""One channel of a connection: its messages, their confirms, and what the broker has against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pamqp import commands, header

from remora.endpoints.amqp.errors import NO_ROUTE, too_large, why_closed
from remora.endpoints.amqp.frames import BadFrames, Confirm, Content, Envelope
from remora.endpoints.arrived import Arrived
from remora.endpoints.runs import Run
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.quarantine import ANSWERED


class MessageRun(Run):
    """A run of AMQP messages: `make` encodes one that is due; with `routable` one that reaches no queue is refused."""

    __slots__ = ("envelope", "make", "routable")

    def __init__(
        self,
        ids: Sequence[bytes],
        make: Callable[[int], Content],
        envelope: Envelope,
        keys: Sequence[bytes] = (),
        *,
        routable: bool,
    ) -> None:
        super().__init__(ids, keys)
        self.make = make
        self.envelope = envelope
        self.routable = routable


@dataclass(slots=True, eq=False)
class Sent:
    """A message without a confirm yet, number `at` of a run; `returned` is the code of the broker that returned it."""

    message_id: bytes
    nbytes: int
    run: MessageRun
    at: int
    returned: int = 0


class Line(Protocol):
    """What a channel needs of its connection."""

    @property
    def frame_bytes(self) -> int: ...

    def due(self, channel: Channel, run: MessageRun) -> None:
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
        self._runs: set[MessageRun] = set()  # whose next message is not written yet
        self._return: tuple[int, int] | None = None  # reply code, and bytes of the body to come; -1 before its header

    @property
    def unconfirmed(self) -> int:
        """Messages without a confirm, of pushes that wait and of those given up."""
        return len(self._sent)

    def may_confirm(self, message_id: bytes) -> bool:
        """Whether a confirm of this message may still come."""
        return message_id in self._by_id

    def submit(self, run: MessageRun) -> None:
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

    def encode(self, run: MessageRun) -> list[bytes]:
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

    def _settle(self, run: MessageRun) -> None:
        """Send more of a run, or have it fail once all messages before the refused one have arrived."""
        if run.refused is not None:
            self._fail(run, run.refused, tries=1)
        else:
            self.submit(run)

    def _fail(self, run: MessageRun, error: EndpointError, tries: int | None = None) -> None:
        if not run.is_over:
            self._remember(run)
            run.fail(error, tries)

    def _remember(self, run: MessageRun) -> None:
        for message_id in run.all_arrived():
            self._arrived.add(message_id)

    def abandon(self, run: MessageRun) -> None:
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
