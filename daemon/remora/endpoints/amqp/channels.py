"""One channel of a connection: its messages, their confirms, and what the broker has against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pamqp import commands, header

from remora.endpoints.amqp.errors import NO_ROUTE, too_large, why_closed
from remora.endpoints.amqp.frames import BadFrames, Confirm, Envelope, MessageContent
from remora.endpoints.arrived import Arrived
from remora.endpoints.runs import Carrier, Run
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.ownership.quarantine import ANSWERED


class MessageRun(Run):
    """A run of AMQP messages: `make` encodes one that is due.

    One that reaches no queue is refused as `unroutable` says, and counts as delivered where that is empty.
    """

    __slots__ = ("envelope", "make", "unroutable")

    def __init__(
        self,
        ids: Sequence[bytes],
        make: Callable[[int], MessageContent],
        envelope: Envelope,
        keys: Sequence[bytes] = (),
        *,
        unroutable: str,
    ) -> None:
        super().__init__(ids, keys)
        self.make = make
        self.envelope = envelope
        self.unroutable = unroutable


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


class Channel(Carrier[MessageRun, Sent]):
    """A channel in confirm mode. `what` names its topic in errors; `unroutable` counts what reached no queue."""

    def __init__(self, number: int, line: Line, what: str, arrived: Arrived, unroutable: Callable[[], None]) -> None:
        super().__init__(what, arrived)
        self.number = number
        self.flowing = True
        self._line = line
        self._unroutable = unroutable
        self._tag = 0
        self._sent: dict[int, Sent] = {}  # by delivery tag, in order
        self._return: tuple[int, int] | None = None  # reply code, and bytes of the body to come; -1 before its header

    @property
    def unconfirmed(self) -> int:
        """Messages without a confirm, of pushes that wait and of those given up."""
        return len(self._sent)

    def may_confirm(self, message_id: bytes) -> bool:
        """Whether a confirm of this message may still come."""
        return message_id in self._by_id

    def write_soon(self, run: MessageRun) -> None:
        """Have the connection ask for the next message."""
        self._line.due(self, run)

    def encode(self, run: MessageRun) -> list[bytes]:
        """The frames of a run's next message, which counts as sent from now on; none where the push was given up."""
        if not self.may_encode(run):
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
            self.was_refused(sent, refused)

    def _confirmed(self, confirm: Confirm) -> list[Sent]:
        tag, found = confirm.tag, []
        if confirm.multiple and not tag:  # AMQP 0-9-1 has it mean all that are outstanding
            tag = self._tag
        elif not 0 < tag <= self._tag:
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
        if sent.returned:
            if sent.run.unroutable:
                why = sent.run.unroutable if sent.returned == NO_ROUTE else f"it was returned (reply {sent.returned})"
                self.was_refused(sent, EndpointMisconfigured(f"{self.what}: {why}"))
                return
            self._unroutable()
        self.has_arrived(sent)

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
        self._sent.clear()
        super().end(error)
