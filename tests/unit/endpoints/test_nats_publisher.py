"""What a topic has under way at a NATS server, answer by answer, without a server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence

import pytest

from remora.endpoints.arrived import Arrived
from remora.endpoints.nats.connection import NatsConnection
from remora.endpoints.nats.lines import ServerOperation
from remora.endpoints.nats.messages import MessageSource, NatsMessage
from remora.endpoints.nats.publisher import PublishRun, StreamPublisher, UnderWay
from remora.endpoints.nats.streams import SubjectLooks
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import Record
from support.kafka_sender import make_records

SENDER = MessageSource("q", "inc", "S")
ACK = b'{"stream":"S", "seq":7}'
NONE = b'{"error":{"code":404,"err_code":10037}}'


class Scripted:
    """A connection that remembers what was written, and answers when a test says so."""

    def __init__(self, patience_s: float = 60.0) -> None:
        self.waiting: list[UnderWay] = []
        self.written: list[bytes] = []
        self.known: list[str] = []
        self.arrived = Arrived()
        self._due: list[PublishRun] = []
        self._replies = 0
        self.publisher = StreamPublisher("S", "stream S", self, self.arrived, self.known.append, patience_s=patience_s)

    def due(self, publisher: StreamPublisher, run: PublishRun) -> None:
        self._due.append(run)

    def expect(self, who: UnderWay) -> bytes:
        self.waiting.append(who)
        self._replies += 1
        return b"_I.%d" % self._replies

    def forget(self, reply: bytes) -> None:
        self.waiting = [each for each in self.waiting if each.reply != reply]

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def submit(self, records: Sequence[Record], looks: SubjectLooks | None = None) -> PublishRun:
        """Push these, and write what is due."""
        run = PublishRun(
            [SENDER.message_id(each.position) for each in records],
            lambda at: SENDER.message(records[at], b"t." + records[at].key.replace(b"/", b".")),
            [each.key for each in records],
        )
        if looks is not None:
            run.look_first(looks, 0, records, SENDER)
        self.publisher.submit(run)
        self.flush()
        return run

    def flush(self) -> None:
        """Write what is due."""
        while self._due:
            if made := self.publisher.encode(self._due.pop(0)):
                self.written.append(made)

    def answer(self, payload: bytes, headers: bytes = b"") -> None:
        """The server answers what it was sent first."""
        self.waiting.pop(0).answered(ServerOperation(b"MSG", b"", b"", headers, payload))
        self.flush()

    @property
    def kinds(self) -> list[str]:
        """What was written: messages by their number, and looks."""
        return ["look" if each.startswith(b"PUB $JS.API.STREAM.MSG.GET.S ") else _number(each) for each in self.written]


def _number(message: bytes) -> str:
    return message.partition(b"\r\n\r\n")[2].partition(b",")[0].decode()


@pytest.fixture
async def wire() -> Scripted:
    return Scripted()


@pytest.fixture
async def impatient() -> Scripted:
    """One over which each answer is overdue at once."""
    return Scripted(patience_s=0.0)


def last(position: bytes) -> bytes:
    headers = b"NATS/1.0\r\nremora-shard: q\r\nremora-pos: inc:%b\r\n\r\n" % position
    return json.dumps({"message": {"hdrs": base64.b64encode(headers).decode()}}).encode()


def failure(run: PublishRun) -> EndpointError:
    error = run.done.exception()
    assert isinstance(error, EndpointError)
    return error


async def test_one_message_of_a_key_at_a_time(wire: Scripted) -> None:
    """The next of a key is written when the one before is acknowledged; those of other keys go side by side."""
    run = wire.submit(make_records(0, 4, keys=2))
    assert wire.kinds == ["0", "1"]

    wire.answer(ACK)
    assert wire.kinds == ["0", "1", "2"]
    for _ in range(3):
        wire.answer(b'{"stream":"S","seq":7,"duplicate":true}')

    assert run.done.done()
    assert wire.known == ["window"] * 3


async def test_looks(wire: Scripted) -> None:
    """What a subject's last message shows is not sent, nor asked for again; what it does not show is sent behind it."""
    run = wire.submit(make_records(0, 3, keys=1), SubjectLooks(120.0))
    assert wire.kinds == ["look"]

    wire.answer(last(b"0/1"))
    assert wire.kinds == ["look", "2"]
    wire.answer(ACK)

    assert run.done.done()
    assert wire.known == ["look", "look"]


async def test_a_look_that_finds_nothing(wire: Scripted) -> None:
    """The message is sent when the stream has none of its subject."""
    wire.submit(make_records(0, 1), SubjectLooks(120.0))
    wire.answer(NONE)

    assert wire.kinds == ["look", "0"]


async def test_a_look_that_is_answered_too_late(wire: Scripted) -> None:
    """Of a push that was given up nothing is sent any more, and none of its messages may arrive."""
    run = wire.submit(make_records(0, 1), SubjectLooks(120.0))
    wire.publisher.forget(run)
    wire.answer(NONE)

    assert wire.kinds == ["look"]
    assert wire.publisher.unanswered == 0
    assert not wire.publisher.may_confirm(run.ids[0])


async def test_a_message_that_is_acknowledged_too_late(wire: Scripted) -> None:
    """It has arrived: the next push of it sends nothing. Meanwhile a push waits for it."""
    records = make_records(0, 1)
    run = wire.submit(records)
    wire.publisher.forget(run)
    assert wire.publisher.may_confirm(run.ids[0])
    wire.answer(ACK)
    again = wire.submit(records)

    assert again.done.done()
    assert wire.kinds == ["0"]


async def test_a_push_of_what_is_under_way(wire: Scripted) -> None:
    """It is not written again, and its acknowledgement is that of the new push."""
    records = make_records(0, 1)
    wire.publisher.forget(wire.submit(records))
    again = wire.submit(records)
    assert not again.done.done()
    wire.answer(ACK)

    assert again.done.done()
    assert wire.kinds == ["0"]


async def test_a_message_whose_answer_is_overdue(impatient: Scripted) -> None:
    """The next push of it sends it again, and of all its answers the last one counts alone."""
    records = make_records(0, 2, keys=1)
    impatient.publisher.forget(impatient.submit(records))
    again = impatient.submit(records)
    assert impatient.kinds == ["0", "0"]
    assert len(impatient.waiting) == 1
    impatient.answer(ACK)
    impatient.answer(ACK)

    assert again.done.done()
    assert impatient.kinds == ["0", "0", "1"]
    assert impatient.publisher.unanswered == 0


async def test_a_look_whose_answer_is_overdue(impatient: Scripted) -> None:
    """The next push asks again, and what was sent without an answer is looked for before it is sent again."""
    records = make_records(0, 1)
    impatient.publisher.forget(impatient.submit(records, SubjectLooks(120.0)))
    impatient.publisher.forget(impatient.submit(records, SubjectLooks(120.0)))
    impatient.publisher.forget(impatient.submit(records))
    again = impatient.submit(records, SubjectLooks(120.0))
    assert impatient.kinds == ["look", "look", "0", "look"]
    impatient.answer(last(b"0/0"))

    assert again.done.done()
    assert impatient.known == ["look"]


async def test_a_publisher_that_has_ended_expects_nothing(wire: Scripted) -> None:
    """No answer is waited for over a connection that goes on without it."""
    wire.submit(make_records(0, 2))
    wire.publisher.end(EndpointUnavailable("stream S: it was closed"))

    assert wire.waiting == []


@pytest.mark.parametrize(
    ("payload", "kind", "tries"),
    [
        (b'{"error":{"code":503,"err_code":10077,"description":"x"},"stream":"S","seq":0}', EndpointUnavailable, 1),
        (b'{"error":{"code":400,"err_code":10060},"stream":"S","seq":0}', EndpointMisconfigured, 1),
        (b'{"error":{"code":400,"err_code":10054},"stream":"S","seq":0}', EntryRefused, 1),
        (b"nonsense", EndpointUnavailable, 1),
    ],
)
async def test_a_message_that_is_refused(wire: Scripted, payload: bytes, kind: type[EndpointError], tries: int) -> None:
    """Nothing of its push is sent behind it, and the push says how far it came."""
    run = wire.submit(make_records(0, 3, keys=1))
    wire.answer(ACK)
    wire.answer(payload)

    error = failure(run)
    assert type(error) is kind
    assert (error.arrived, error.tries) == (1, tries)
    assert wire.kinds == ["0", "1"]


async def test_nobody_listens(wire: Scripted) -> None:
    """A subject without a stream ends the way, so that the next one asks for the stream anew."""
    run = wire.submit(make_records(0, 2))
    wire.answer(b"", b"NATS/1.0 503\r\n\r\n")

    assert failure(run).kind == "answered"
    assert wire.publisher.error is not None
    assert failure(wire.submit(make_records(0, 1))).kind == "answered"


async def test_nobody_listens_to_dead_letters(wire: Scripted) -> None:
    """A subject of dead letters that no stream takes is named, and fails their push alone: events go on."""
    events = wire.submit(make_records(0, 2, keys=1))
    letters = PublishRun([b"l"], lambda _: NatsMessage(b"parked", b"", b""), are_letters=True)
    wire.publisher.submit(letters)
    wire.flush()
    wire.waiting.pop().answered(ServerOperation(b"HMSG", b"", b"", b"NATS/1.0 503\r\n\r\n", b""))
    wire.answer(ACK)
    wire.answer(ACK)

    assert "no stream takes parked, the subject of dead letters" in str(failure(letters))
    assert (failure(letters).kind, failure(letters).tries) == ("answered", 1)
    assert events.done.done()
    assert events.done.exception() is None


async def test_what_a_user_may_not_do(wire: Scripted) -> None:
    """A message that is denied is a matter of configuration; a look that is denied ends the way, and the next one does
    without looks."""
    sent, looked = wire.submit(make_records(0, 1)), wire.submit(make_records(0, 1, start=1), SubjectLooks(120.0))
    message, question = wire.waiting
    message.denied()
    question.denied()

    assert "may not publish to the subjects of this topic" in str(failure(sent))
    assert "may not read messages of the stream" in str(failure(looked))
    assert (type(failure(sent)), type(failure(looked))) == (EndpointMisconfigured, EndpointUnavailable)
    assert wire.publisher.error is not None


async def test_a_connection_that_ends(wire: Scripted) -> None:
    """What was written and not acknowledged may have arrived; what arrived before is told."""
    run = wire.submit(make_records(0, 4, keys=2))
    wire.answer(ACK)
    wire.waiting[0].failed(EndpointUnavailable("n:4222: the connection broke"))

    error = failure(run)
    assert (error.arrived, list(error.unclear)) == (1, [1, 2])
    await asyncio.sleep(0)


async def test_a_connection_that_ends_before_anything_is_written() -> None:
    """A push fails with its connection before anything of it is written, and not when its time is over."""
    connection = NatsConnection("n:4222", 60.0, lambda _: None)
    publisher = StreamPublisher("S", "stream S", connection, Arrived(), lambda _: None, patience_s=60.0)
    run = PublishRun([b"i"], lambda _: NatsMessage(b"t", b"", b""))
    publisher.submit(run)
    connection.connection_lost(None)

    assert "the connection broke" in str(failure(run))
