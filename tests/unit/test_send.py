"""`remora send` stores everything once, in the order of each key, or tells exactly what it did not store."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from remora.cli import group, record_sender
from remora.cli.record_sender import Outcome, RecordSender, SendPlan, reservable
from remora.cli.records import GivenRecord
from remora.client import EventsRefused, IngestClient, IngestUnavailable, NotPermitted, Problem, Taken, TopicNotFound
from remora.codec.event_entry import decode
from remora.model.entry import Time
from remora.model.errors import QueueFull
from remora.model.exits import Exit
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.topic import Topic
from remora.servers.ingest import problems
from support.ingest import ScriptedStore, ingest_site, own_topic, record
from support.placed import place


def plan(**changes: object) -> SendPlan:
    """How to send, save for what a test changes."""
    given: dict[str, object] = {
        "topic": "t", "batch": 10, "connections": 3, "name": "run", "repeatable": False, "two_phase": False,
        "skip_malformed": False,
    }  # fmt: skip
    return SendPlan(**given | changes)  # type: ignore[arg-type]  # a wrong one fails in the test


def given(number: int, keys: int = 7, **changes: object) -> GivenRecord:
    """A record whose id is its number and whose key is one of a few."""
    line = json.dumps(record(f"k{number % keys}", eventId=f"{number}", **changes)).encode()
    (part,) = place(line, own_topic("t"), ndjson=True, most=1, created=Time(0, 0), seed=b"")
    return GivenRecord(number + 1, line, part.events[0].key, part.events[0].payload)


async def send_all(client: IngestClient, how: SendPlan, records: Sequence[GivenRecord]) -> Outcome:
    """Send records as the command does, up to where the sender is stopped."""
    outcome = Outcome()
    async with RecordSender(client, how, outcome) as sender:
        for each in records:
            outcome.counts.read += 1
            await sender.give(each)
    return outcome


def order_of(events: Sequence[RoutedEvent]) -> dict[bytes, list[int]]:
    """The numbers of the events of each key, in the order in which they are stored."""
    order = defaultdict(list)
    for event in events:
        order[event.key].append(int(decode(event.payload).event.event_id))
    return order


class Flaky(ScriptedStore):
    """Has no room for every other request, and takes its time for the others."""

    def __init__(self) -> None:
        super().__init__(own_topic("t"))
        self._rng = random.Random(1)
        self._asked = 0

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        self._asked += 1
        if self._asked % 2:
            raise QueueFull("no room just now")
        for _ in range(self._rng.randrange(20)):
            await asyncio.sleep(0)
        return await super().publish(topic, events, once)


async def test_each_key_is_stored_in_its_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several connections, though many requests are refused at first and repeated later."""
    monkeypatch.setattr(problems, "RETRY_AFTER_S", 0)
    store = Flaky()
    async with ingest_site(store, folder), IngestClient(f"unix:{folder}/ingest.sock") as client:
        outcome = await send_all(client, plan(), [given(number) for number in range(300)])

    stored = [event for _, events, _ in store.published for event in events]
    assert (outcome.counts.read, outcome.counts.stored, outcome.counts.all_stored) == (300, 300, True)
    assert order_of(stored) == {b"b:k%d" % key: list(range(key, 300, 7)) for key in range(7)}
    assert len(store.published) < 50, "batches were small"


async def test_batches_that_are_too_large_for_the_server_are_split(folder: Path) -> None:
    """Down to what it takes, in order, and with a key of its own for each part."""
    store = ScriptedStore(own_topic("t"))
    async with ingest_site(store, folder, max_events=3), IngestClient(f"unix:{folder}/ingest.sock") as client:
        outcome = await send_all(client, plan(), [given(number) for number in range(100)])

    stored = [event for _, events, _ in store.published for event in events]
    assert (outcome.counts.stored, outcome.counts.refused, outcome.refusals) == (100, 0, [])
    assert order_of(stored) == {b"b:k%d" % key: list(range(key, 100, 7)) for key in range(7)}
    assert max(len(events) for _, events, _ in store.published) <= 3
    assert len({once.key for _, _, once in store.published if once}) == len(store.published)


async def test_the_same_name_and_input_are_the_same_requests(folder: Path) -> None:
    """The second time everything is recognised, and nothing stored."""
    store = ScriptedStore(own_topic("t"))
    async with ingest_site(store, folder), IngestClient(f"unix:{folder}/ingest.sock") as client:
        await send_all(client, plan(), [given(number) for number in range(50)])
        again = await send_all(client, plan(), [given(number) for number in range(50)])
        other = await send_all(client, plan(name="other"), [given(number) for number in range(50)])

    assert (again.counts.stored, again.counts.repeated, again.counts.all_stored) == (0, 50, True)
    assert (other.counts.stored, other.counts.repeated) == (50, 0)


async def test_two_phases_reserve_what_the_entries_need(folder: Path) -> None:
    """Each batch is reserved by bucket and key, with room for its entries, and then committed in order."""
    store = ScriptedStore(own_topic("t"))
    large = [given(number, x="y" * 10, eventName="n" * 8000) for number in range(4)]
    async with ingest_site(store, folder), IngestClient(f"unix:{folder}/ingest.sock") as client:
        outcome = await send_all(client, plan(two_phase=True, connections=1), [*large, given(4)])

    ((rooms,), ((_, events, _),)) = store.reserved, store.committed
    assert [(room.shard, room.key) for room in rooms] == [(event.shard, event.key) for event in events]
    assert all(room.nbytes >= len(event.payload) for room, event in zip(rooms, events, strict=True))
    assert rooms[4].nbytes == 4096
    assert (outcome.counts.stored, outcome.counts.dropped_fields) == (5, 4)


def test_a_key_that_is_no_text_cannot_be_reserved() -> None:
    """A reservation is JSON; such a record is only fit for one step."""
    thing = {"bucket": {"name": "b"}, "object": {"key": "%FF"}}

    assert not reservable(given(1, eventSource="aws:s3", s3=thing))
    assert reservable(given(1, eventSource="aws:s3", s3=thing | {"object": {"key": "%C3%A9"}}))


class Scripted(IngestClient):
    """Answers each batch by a function of its numbers, and notes what it took."""

    def __init__(self, answer: Callable[[list[int]], Awaitable[None]]) -> None:
        super().__init__("unix:/nowhere")
        self._answer = answer
        self.taken: list[list[int]] = []

    async def publish_ndjson(
        self, topic: str, lines: bytes, *, idempotency_key: str | None = None, traceparent: str = ""
    ) -> Taken:
        numbers = [int(json.loads(line)["eventId"]) for line in lines.split(b"\n")]
        await self._answer(numbers)
        self.taken.append(numbers)
        return Taken(len(numbers), repeated=False, dropped_fields=0)


def refusing(*bad: int, named: bool = True) -> Callable[[list[int]], Awaitable[None]]:
    """Refuses batches with these numbers, as a server does whose rules are stricter than ours."""

    async def answer(numbers: list[int]) -> None:
        for at, number in enumerate(numbers):
            if number in bad:
                place = {"record": at, "code": "MalformedEvent"} if named else {"code": "EntityTooLarge"}
                raise EventsRefused("so not", Problem(status=422, **place))

    return answer


@pytest.mark.parametrize("named", [True, False])
async def test_what_only_the_server_refuses_is_skipped_when_asked(named: bool) -> None:
    """All others are stored in order, also where the server does not say which record it means."""
    client = Scripted(refusing(3, 4, 19, 29, named=named))

    outcome = await send_all(client, plan(connections=1, skip_malformed=True), [given(n, 1) for n in range(30)])

    assert [number for batch in client.taken for number in batch] == [n for n in range(30) if n not in (3, 4, 19, 29)]
    assert (outcome.counts.stored, outcome.counts.refused, outcome.counts.not_stored) == (26, 4, 0)
    assert [bad.line for bad in outcome.refusals] == [4, 5, 20, 30]
    assert outcome.refusals[0].reason == "refused by the server: so not"


@pytest.mark.parametrize("named", [True, False])
async def test_what_the_server_refuses_ends_the_sending(named: bool) -> None:
    """What stands before it over the same connection is stored, and nothing behind it."""
    client = Scripted(refusing(13, 17, named=named))

    outcome = await send_all(client, plan(connections=1), [given(n, 1) for n in range(40)])

    assert [number for batch in client.taken for number in batch] == list(range(13))
    counts = outcome.counts
    assert (counts.read, counts.stored, counts.refused, counts.not_stored, counts.unknown) == (40, 13, 1, 26, 0)
    assert [bad.line for bad in outcome.refusals] == [14]


async def test_only_the_first_refusals_are_kept() -> None:
    """The others are counted."""
    outcome = await send_all(
        Scripted(refusing(*range(30))), plan(skip_malformed=True), [given(number) for number in range(30)]
    )

    assert (len(outcome.refusals), outcome.counts.refused) == (record_sender.SHOWN, 30)


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (TopicNotFound("there is no such topic"), 0),
        (NotPermitted("no token"), 0),
        (IngestUnavailable("away", outcome_unknown=False), 0),
        (IngestUnavailable("away", outcome_unknown=True), 10),
    ],
)
async def test_a_failure_ends_the_sending(error: Exception, unknown: int) -> None:
    """What was stored before is told, and so is what may be; nothing more is sent."""

    async def answer(numbers: list[int]) -> None:
        if 10 in numbers:
            raise error

    client = Scripted(answer)

    outcome = await send_all(client, plan(connections=1), [given(n, 1) for n in range(40)])

    assert client.taken == [list(range(10))]
    counts = outcome.counts
    assert (counts.stored, counts.unknown, counts.not_stored) == (10, unknown, 30 - unknown)
    assert outcome.failure is error
    assert not counts.all_stored


async def test_a_stopped_sender_finishes_what_is_under_way() -> None:
    """Requests that were begun are waited for and counted; waiting ones are not sent."""
    begun, gate = asyncio.Event(), asyncio.Event()

    async def answer(numbers: list[int]) -> None:
        begun.set()
        await gate.wait()

    client, outcome = Scripted(answer), Outcome()
    async with RecordSender(client, plan(connections=1), outcome) as sender:
        for number in range(25):
            outcome.counts.read += 1
            await sender.give(given(number, 1))
        await begun.wait()
        sender.stopped.set()
        gate.set()

    assert client.taken == [list(range(10))]
    assert (outcome.counts.stored, outcome.counts.not_stored, outcome.counts.unknown) == (10, 15, 0)


async def test_what_is_not_answered_in_the_end_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped sender waits for a while only; such requests may have been carried out."""
    monkeypatch.setattr(record_sender, "GRACE_S", 0.01)
    begun = asyncio.Event()

    async def answer(numbers: list[int]) -> None:
        begun.set()
        await asyncio.Event().wait()

    outcome = Outcome()
    async with RecordSender(Scripted(answer), plan(connections=1), outcome) as sender:
        for number in range(25):
            outcome.counts.read += 1
            await sender.give(given(number, 1))
        await begun.wait()
        sender.stopped.set()

    assert (outcome.counts.stored, outcome.counts.not_stored, outcome.counts.unknown) == (0, 15, 10)


async def test_a_defect_is_not_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception comes out of the block, though more waits to be sent than there is room for."""
    monkeypatch.setattr(record_sender, "GRACE_S", 0.01)

    async def answer(numbers: list[int]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await send_all(Scripted(answer), plan(connections=1), [given(number, 1) for number in range(25)])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--to", "host:9751"), "--to"),
        (("--to", "http://host:99999"), "--to"),
        (("--timeout", "5x"), "--timeout"),
        (("--timeout", "-1"), "--timeout"),
        (("--idempotency-prefix", "a\nb"), "--idempotency-prefix"),
        (("--idempotency-prefix", "é"), "--idempotency-prefix"),
        (("--idempotency-prefix", "x" * 201), "--idempotency-prefix"),
    ],
    ids=str,
)
def test_wrong_options_of_send(words: tuple[str, ...], names: str) -> None:
    """They are wrong usage, and named; nothing is read or sent."""
    ended = CliRunner().invoke(group, ["send", "t", *words], input="{}")

    assert ended.exit_code == Exit.USAGE
    assert f"Invalid value for '{names}'" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("status", "words", "names_option"),
    [(401, [], True), (403, [], False), (401, ["--token-file", "token"], False)],
    ids=["none given", "no right", "an unknown one"],
)
def test_a_missing_token_is_named_by_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, words: list[str], names_option: bool
) -> None:
    """Where the server wants a token and none was given, the error names the option; other errors are the server's."""
    said = "send the token as Authorization: Bearer"

    async def refused(_client: object, _plan: object, _fd: int, outcome: Outcome, _on_read: object) -> None:
        outcome.failure = NotPermitted(said, Problem(status=status, detail=said))

    monkeypatch.setattr(sys.modules["remora.cli.send"], "_send", refused)
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("rmr_x")
    Path("events").write_text("")

    ended = CliRunner().invoke(group, ["send", "t", "events", "--to", "http://localhost:1", *words])

    assert ended.exit_code == Exit.NO_PERMISSION
    assert ("--token-file" in ended.stderr, said in ended.stderr) == (names_option, not names_option)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), "Missing argument 'TOPIC'"),
        (("--matching", "t", "/dev/null"), "with --matching no topic is named"),
        (("--matching", "no such file"), "'no such file' does not exist"),
    ],
    ids=str,
)
def test_send_with_the_wrong_arguments(words: tuple[str, ...], names: str) -> None:
    """A topic is named, or --matching is given with nothing but the input."""
    ended = CliRunner().invoke(group, ["send", *words])

    assert ended.exit_code == Exit.USAGE
    assert names in " ".join(ended.stderr.split())
