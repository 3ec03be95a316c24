"""A channel's confirms against a model: never an ack for what has no confirm, nor a copy on a living channel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from remora.endpoints.amqp.channels import Channel, MessageRun
from remora.endpoints.amqp.errors import why_closed
from remora.endpoints.amqp.frames import BadFrames, Confirm, Envelope, MessageContent, Splitter, make_content
from remora.endpoints.amqp.messages import MessageOrigin, MessagePacker
from remora.endpoints.arrived import MOST_ARRIVED, Arrived
from remora.endpoints.runs import WINDOW
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from support.kafka_sender import make_records

PLACE = Envelope(b"x", b"t")


class Wire:
    """The connection of a channel: it writes what is due when the test says so."""

    frame_bytes = 4096

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.waiting: list[tuple[Channel, MessageRun]] = []
        self.written: list[bytes] = []

    def due(self, channel: Channel, run: MessageRun) -> None:
        self.waiting.append((channel, run))

    def learn_limit(self, nbytes: int) -> None:
        self.limits.append(nbytes)

    def flush(self) -> None:
        """Write what is due; `written` has the ids of the messages, in order."""
        while self.waiting:
            channel, run = self.waiting.pop(0)
            due = run.ids[run.next]
            frames = channel.encode(run)
            if frames:
                assert len(list(Splitter().feed(b"".join(frames)))) == 3
                self.written.append(due)


def run_of(names: Sequence[bytes], keys: Sequence[bytes] = (), *, unroutable: str = "") -> MessageRun:
    def make(at: int) -> MessageContent:
        return make_content(names[at], [], b"body")

    return MessageRun(names, make, PLACE, keys, unroutable=unroutable)


class Story:
    """Lanes of messages over a channel, and what is known to have arrived; without `keys` a lane has one key."""

    def __init__(self, lanes: int, each: int, keys: Sequence[bytes] = ()) -> None:
        self.wire = Wire()
        self.arrived = Arrived()
        self.unroutable = 0
        self.open()
        self.confirmed: list[bytes] = []
        self.names = [[b"%d.%d" % (lane, n) for n in range(each)] for lane in range(lanes)]
        self.keys = keys
        self.runs: list[MessageRun | None] = [None] * lanes

    def open(self) -> None:
        """A new channel."""
        self.channel = Channel(1, self.wire, "exchange x", self.arrived, self._count)
        self.tags: list[bytes] = []
        self.done: set[int] = set()

    def _count(self) -> None:
        self.unroutable += 1

    def has_arrived(self, lane: int) -> bool:
        """Whether the last run of a lane ended well: nobody pushes its messages again then."""
        run = self.runs[lane]
        if run is None or not run.is_over or run.done.cancelled():
            return False
        return run.done.exception() is None

    def push(self, lane: int) -> None:
        run = self.runs[lane]
        if (run is None or run.is_over) and not self.has_arrived(lane):
            self.runs[lane] = run = run_of(self.names[lane], self.keys)
            self.channel.submit(run)

    def flush(self) -> None:
        before = len(self.wire.written)
        self.wire.flush()
        self.tags += self.wire.written[before:]
        for each in self.wire.written[before:]:
            assert set(self.before(each)) <= set(self.confirmed), (
                "written before an earlier one of its key is confirmed"
            )

    def before(self, name: bytes) -> Sequence[bytes]:
        """The earlier messages of the same key."""
        return next(each[: each.index(name)] for each in self.by_key() if name in each)

    def by_key(self) -> Sequence[Sequence[bytes]]:
        """The messages of each lane's keys."""
        keys = self.keys or [b""] * len(self.names[0])
        return [
            [name for name, of in zip(names, keys, strict=True) if of == key]
            for names in self.names
            for key in dict.fromkeys(keys)
        ]

    def confirm(self, tag: int, *, multiple: bool, ack: bool) -> None:
        """What a broker may say: each tag once."""
        tags = [n for n in range(1, tag + 1) if n not in self.done] if multiple else [tag]
        if not 1 <= tag <= len(self.tags) or tag in self.done:
            return
        self.done.update(tags)
        if ack:
            self.confirmed += [self.tags[n - 1] for n in tags]
        (self.channel.acked if ack else self.channel.nacked)(Confirm(tag, multiple))

    def do(self, what: str, number: int) -> None:
        """One step: of the pushes, of the connection, or of the broker."""
        match what:
            case "push":
                self.push(number)
            case "flush":
                self.flush()
            case "give up":
                if (run := self.runs[number]) is not None:
                    self.channel.forget(run)
            case _:
                self.confirm(number, multiple=what.endswith("s"), ack=what.startswith("ack"))

    def finish(self) -> None:
        """Push until all has arrived, which a broker that confirms everything lets happen."""
        for lane in range(len(self.runs)):
            while not self.has_arrived(lane):
                self.push(lane)
                self.flush()
                for tag in range(1, len(self.tags) + 1):
                    self.confirm(tag, multiple=False, ack=True)
                self.check()

    def check(self) -> None:
        """A run is done only when each of its messages was confirmed, and none is written out of turn."""
        for lane, names in enumerate(self.names):
            if self.has_arrived(lane):
                assert set(names) <= set(self.confirmed)
        for each_key in self.by_key():
            first = list(dict.fromkeys(each for each in self.wire.written if each in each_key))
            assert first == each_key[: len(first)]
        assert len(self.confirmed) == len(set(self.confirmed)), "a confirmed message was written again"


STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 3)),
    st.tuples(st.just("give up"), st.integers(0, 3)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.sampled_from(["ack", "acks", "nack", "nacks"]), st.integers(1, 12)),
)


@given(st.lists(STEPS, max_size=40))
def test_against_a_model(steps: list[tuple[str, int]]) -> None:
    """Whatever is pushed, given up, written and confirmed in whichever order, the promises of `Story.check` hold."""

    async def play() -> None:
        story = Story(lanes=4, each=3)
        for what, number in steps:
            story.do(what, number)
            story.check()
        story.finish()

    asyncio.run(play())


@given(st.lists(STEPS, max_size=60), st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=6, max_size=6))
def test_keys_side_by_side_against_a_model(steps: list[tuple[str, int]], keys: list[bytes]) -> None:
    """Messages of several keys in a lane keep the promises of `Story.check`, and the order of each key."""

    async def play() -> None:
        story = Story(lanes=4, each=6, keys=keys)
        for what, number in steps:
            story.do(what, number)
            story.check()
        story.finish()

    asyncio.run(play())


async def test_messages_of_different_keys_are_under_way_together() -> None:
    """A run has WINDOW messages of as many keys without a confirm, and stops before the second one of a key."""
    many = run_of([b"%d" % n for n in range(WINDOW + 4)], [b"k%d" % n for n in range(WINDOW + 4)])
    repeated = run_of([b"p", b"q", b"r"], [b"1", b"2", b"1"])
    story = Story(lanes=1, each=1)
    for run in (many, repeated):
        story.channel.submit(run)
    story.wire.flush()

    assert sorted(story.wire.written) == sorted([*many.ids[:WINDOW], b"p", b"q"])
    story.channel.acked(Confirm(len(story.wire.written), True))
    story.wire.flush()
    assert sorted(story.wire.written[WINDOW + 2 :]) == sorted([*many.ids[WINDOW:], b"r"])


@pytest.mark.parametrize(("refused", "arrived", "again"), [([2], 1, [b"0.1"]), ([2, 1], 0, [b"0.0", b"0.1"])])
async def test_a_refusal_among_others(refused: list[int], arrived: int, again: list[bytes]) -> None:
    """A run fails when all before the first refused message are known; what arrived behind it is not sent again."""
    story = Story(lanes=1, each=3, keys=[b"a", b"b", b"c"])
    story.push(0)
    story.flush()
    story.confirm(3, multiple=False, ack=True)
    (run,) = story.runs
    assert run is not None
    for tag in refused:
        assert not run.is_over
        story.confirm(tag, multiple=False, ack=False)
    story.confirm(1, multiple=False, ack=True)
    error = run.done.exception()
    before = len(story.wire.written)
    story.push(0)
    story.flush()

    assert isinstance(error, EndpointUnavailable)
    assert (error.arrived, error.tries) == (arrived, 1)
    assert story.wire.written[before:] == again


@pytest.mark.parametrize("large", [0, 1])
async def test_a_message_too_large_among_others(large: int) -> None:
    """A message that closes the channel by its size is refused where all before it arrived; else all are tried again,
    and its size is known then."""
    story = Story(lanes=1, each=1)
    bodies = [b"x" * (100 if n == large else 10) for n in range(3)]
    names = [b"%d" % n for n in range(3)]
    run = MessageRun(names, lambda at: make_content(names[at], [], bodies[at]), PLACE, names, unroutable="")
    story.channel.submit(run)
    story.wire.flush()

    story.channel.closed(406, "PRECONDITION_FAILED - message size 100 is larger than configured max size 50")

    error = run.done.exception()
    assert type(error) is (EndpointUnavailable if large else EntryRefused)
    assert isinstance(error, EndpointError)
    assert (error.arrived, error.tries) == (0, None if large else 1)
    assert story.wire.limits == [50]


async def test_a_channel_that_ends() -> None:
    """What arrived before a channel ended is not sent again on the next one; what was under way is."""
    story = Story(lanes=2, each=3)
    story.push(0)
    story.push(1)
    story.flush()
    story.confirm(1, multiple=False, ack=True)
    story.flush()

    story.channel.closed(404, "NOT_FOUND")
    failed = [run.done.exception() for run in story.runs if run is not None]
    story.open()
    story.push(0)
    story.flush()

    assert [type(each) for each in failed] == [EndpointMisconfigured, EndpointMisconfigured]
    assert [(each.arrived, each.tries) for each in failed if isinstance(each, EndpointError)] == [(1, None), (0, None)]
    assert story.wire.written == [b"0.0", b"1.0", b"0.1", b"0.1"]


@pytest.mark.parametrize(("code", "kind"), [(404, "configuration"), (403, "configuration"), (506, "answered")])
async def test_what_closes_a_channel_is_not_its_brokers(code: int, kind: str) -> None:
    """A missing exchange, or anything else that closes a topic's channel, is about this topic: each of its lanes fails
    with that; the same connection serves the other topics."""
    story = Story(lanes=2, each=3)
    story.push(0)
    story.push(1)
    story.flush()

    story.channel.closed(code, "why")

    failed = [run.done.exception() for run in story.runs if run is not None]
    assert [each.kind for each in failed if isinstance(each, EndpointError)] == [kind] * 2


@pytest.mark.parametrize(
    ("code", "is_channel", "kind"),
    [(320, False, "unavailable"), (541, False, "unavailable"), (541, True, "answered"), (405, True, "answered")],
)
def test_what_closes_a_connection_is_its_brokers(code: int, is_channel: bool, kind: str) -> None:
    """The same code is about the broker where it ends the connection, and about a topic where it ends its channel."""
    assert why_closed(code, "x", channel=is_channel).kind == kind


async def test_a_full_queue_is_not_its_brokers() -> None:
    """A message that the broker did not take counts for its topic alone."""
    story = Story(lanes=1, each=1)
    story.push(0)
    story.flush()
    story.confirm(1, multiple=False, ack=False)

    (run,) = story.runs
    assert run is not None
    error = run.done.exception()
    assert isinstance(error, EndpointUnavailable)
    assert error.kind == "answered"


async def test_tag_0_of_several_means_all_that_are_outstanding() -> None:
    """AMQP 0-9-1 says so: an ack with it ends all runs that are sent whole, a nack refuses all, and with nothing
    outstanding neither does anything."""
    for answered in ("acked", "nacked"):
        story = Story(lanes=2, each=1)
        getattr(story.channel, answered)(Confirm(0, True))
        for lane in range(2):
            story.push(lane)
        story.flush()

        getattr(story.channel, answered)(Confirm(0, True))

        assert all(run is not None and run.is_over for run in story.runs)
        assert [story.has_arrived(lane) for lane in range(2)] == [answered == "acked"] * 2


@pytest.mark.parametrize("confirm", [Confirm(0, False), Confirm(2, True), Confirm(2, False)])
async def test_a_confirm_of_what_was_not_sent(confirm: Confirm) -> None:
    """A tag that no message has ends the connection; so does tag 0 alone, which means no message."""
    story = Story(lanes=1, each=1)
    story.push(0)
    story.flush()

    for answer in (story.channel.acked, story.channel.nacked):
        with pytest.raises(BadFrames, match="never got"):
            answer(confirm)


async def test_how_far_a_refused_run_came() -> None:
    """A refusal tells how many messages arrived before it, and that the one behind them was tried once."""
    story = Story(lanes=1, each=3)
    story.push(0)
    story.flush()
    story.confirm(1, multiple=False, ack=True)
    story.flush()
    story.confirm(2, multiple=False, ack=False)

    (run,) = story.runs
    assert run is not None
    error = run.done.exception()
    assert isinstance(error, EndpointUnavailable)
    assert (error.arrived, error.tries) == (1, 1)


async def test_a_message_under_way_is_waited_for() -> None:
    """A message that is pushed again before it is confirmed is not due again, and its confirm ends the new push."""
    story = Story(lanes=1, each=1)
    story.push(0)
    story.flush()
    story.do("give up", 0)

    story.push(0)

    assert not story.wire.waiting
    story.confirm(1, multiple=False, ack=True)
    assert story.has_arrived(0)
    assert story.wire.written == [b"0.0"]


@pytest.mark.parametrize("confirmed", [0, 1], ids=["first", "next"])
async def test_a_push_that_was_given_up_sends_nothing(confirmed: int) -> None:
    """A message whose push is given up before it is written stays unsent, whichever of its run it is: another worker
    may own the shard by now."""
    story = Story(lanes=1, each=3)
    story.push(0)
    if confirmed:
        story.flush()
        story.confirm(1, multiple=False, ack=True)
    before = list(story.wire.written)

    story.do("give up", 0)
    story.flush()

    assert story.wire.written == before
    assert story.channel.unconfirmed == 0


async def test_a_run_on_a_channel_that_ended() -> None:
    """A run that comes too late for its channel fails as the channel did."""
    story = Story(lanes=1, each=1)
    story.channel.end(EndpointUnavailable("gone"))

    story.push(0)

    (run,) = story.runs
    assert run is not None
    assert run.is_over
    with pytest.raises(EndpointUnavailable, match="gone"):
        await run.done


@pytest.mark.parametrize("unroutable", ["", "no queue is bound"])
async def test_returned(unroutable: str) -> None:
    """A returned message is delivered with its confirm and counted, or refused for the reason that its run has."""
    story = Story(lanes=1, each=1)
    run = run_of([b"m"], unroutable=unroutable)
    story.channel.submit(run)
    story.wire.flush()
    story.channel.returned(commands.Basic.Return(312, "NO_ROUTE", "x", "t"))
    story.channel.content_header(header.ContentHeader(0, 4, commands.Basic.Properties(message_id="m")))
    story.channel.content_body(4)

    story.channel.acked(Confirm(1, False))

    assert story.unroutable == (0 if unroutable else 1)
    if unroutable:
        with pytest.raises(EndpointMisconfigured, match=r": no queue is bound$"):
            await run.done
    else:
        await run.done


async def test_returns_that_are_none() -> None:
    """A return of a message that was never sent, and pieces of messages that are none, are refused."""
    channel = Story(lanes=1, each=1).channel
    stranger = header.ContentHeader(0, 4, commands.Basic.Properties(message_id="m"))

    with pytest.raises(BadFrames, match="a body of no message"):
        channel.content_body(1)
    with pytest.raises(BadFrames, match="a header of no message"):
        channel.content_header(stranger)
    channel.returned(commands.Basic.Return(312, "", "x", "t"))
    with pytest.raises(BadFrames, match="returns a message that it never got"):
        channel.content_header(stranger)


def test_arrived_is_bounded() -> None:
    """No more than this many messages are remembered; a message is remembered until it is asked for."""
    arrived = Arrived()
    for number in range(MOST_ARRIVED + 10):
        arrived.add(b"%d" % number)

    assert len(arrived) == MOST_ARRIVED
    assert not arrived.take(b"9")
    assert arrived.take(b"10")
    assert not arrived.take(b"10")


def test_long_names() -> None:
    """A message's id names queue, incarnation and position, or is a digest of them where AMQP has no room."""
    short, long = MessageOrigin(b"q", b"inc:"), MessageOrigin(b"q" * 255, b"inc:")

    assert short.message_id(b"0/7") == b"q/inc:0/7"
    assert len(long.message_id(b"0/7")) == 64
    assert long.message_id(b"0/7") != long.message_id(b"0/8")


def test_packing() -> None:
    """All records of a key are of one lane, in order; what the broker will not take is refused with why."""
    records = make_records(0, 500)
    large = records[7]._replace(body=b"x" * 1001)
    odd = records[8]._replace(event_id=b"e" * 5000)

    batches, refused = MessagePacker(MessageOrigin(b"q", b"inc:"), 256).pack([*records, large, odd], 4096, 1000)

    lanes: dict[bytes, int] = {}
    for batch in batches:
        for each in batch.records:
            assert lanes.setdefault(each.key, batch.lane) == batch.lane
        assert list(batch.records) == sorted(batch.records, key=lambda each: each.ordinal)
    assert sum(map(len, batches)) == 500
    assert [each for each, _ in refused] == [large, odd]
    assert ["max_message_size" in why for _, why in refused] == [True, False]


async def test_nothing_is_sent_behind_a_refused_message() -> None:
    """Once the broker has refused a message of a run no further one is sent, of no key: it may be refused like it."""
    names = [b"%d" % n for n in range(3 * WINDOW)]
    wire = Wire()
    channel = Channel(1, wire, "exchange x", Arrived(), lambda: None)
    run = run_of(names, names)
    channel.submit(run)
    wire.flush()
    assert wire.written == names[:WINDOW]

    channel.nacked(Confirm(2, False))
    channel.acked(Confirm(3, False))
    wire.flush()
    assert wire.written == names[:WINDOW]

    channel.acked(Confirm(1, False))
    error = run.done.exception()
    assert isinstance(error, EndpointUnavailable)
    assert (error.arrived, error.tries) == (1, 1)
