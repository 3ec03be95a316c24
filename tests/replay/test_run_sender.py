"""The sender in virtual time, against a target that answers as scripted."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from remora_pipeline.replay.run.journal import FinalOutcome, Line, SendIntent
from remora_pipeline.replay.run.lateness import merged, percentile_us, rounded
from remora_pipeline.replay.run.schedule import DueEvent, Timeline
from remora_pipeline.replay.run.sender import Overloaded, ReplaySender, TaskLimits, TaskTally, WallClock
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer

MS = 1000
DONE = TargetAnswer(AttemptResult.DONE, 200)
CUT = TargetAnswer(AttemptResult.LOST, error="cut")
REFUSED = TargetAnswer(AttemptResult.REFUSED, 400, "no")


def slow_down(seconds: float) -> TargetAnswer:
    return TargetAnswer(AttemptResult.BUSY, 503, "SlowDown", seconds)


def event(seq: int, due_us: int, lane: int, kseq: int = 0) -> DueEvent:
    return DueEvent(seq, due_us, "PUT", "b", f"k{lane}", 1, kseq, lane)


class Script:
    """A target that takes `service_s` for each request, and answers what `answers` says, else that it is done."""

    def __init__(
        self,
        batch: int = 1,
        *,
        service_s: Callable[[Sequence[DueEvent]], float] = lambda _events: 0.0,
        is_repeatable: bool = True,
    ) -> None:
        self.batch, self.is_repeatable = batch, is_repeatable
        self.answers: dict[int, list[TargetAnswer]] = {}
        """By the number of the first event of a request: the answers to its first attempts."""
        self.asked: list[tuple[int, list[int], str]] = []
        """When, which events, and the name of the request."""
        self.taken: list[int] = []
        self._service_s = service_s

    async def send(self, events: Sequence[DueEvent], request: str) -> TargetAnswer:
        seqs = [each.seq for each in events]
        self.asked.append((int(asyncio.get_running_loop().time() * 1e6), seqs, request))
        await asyncio.sleep(self._service_s(events))
        answers = self.answers.get(seqs[0])
        answer = answers.pop(0) if answers else DONE
        if answer.result is AttemptResult.DONE:
            self.taken += seqs
        return answer


class Kept:
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def write(self, line: Line) -> None:
        self.lines.append(line)

    def outcomes(self) -> dict[int, FinalOutcome]:
        """The outcome of each event; fails where one has two."""
        found: dict[int, FinalOutcome] = {}
        for line in self.lines:
            if isinstance(line, FinalOutcome):
                assert not found.keys() & set(line.seqs)
                found |= dict.fromkeys(line.seqs, line)
        return found


async def send(
    target: Script, journal: Kept, events: Iterable[DueEvent], size: int = 100, **limits: object
) -> TaskTally:
    """Send events whose times count from the beginning of the loop."""
    given = list(events)

    async def source() -> AsyncIterator[Sequence[DueEvent]]:
        for start in range(0, len(given), size):
            yield given[start : start + size]

    loop = asyncio.get_running_loop()
    chosen = TaskLimits(**limits)  # type: ignore[arg-type]  # each test gives those that it is about
    return await ReplaySender(target, journal, WallClock(0, loop.time), chosen, "run/0/0").run(source())


@in_virtual_time
async def test_events_are_sent_when_they_are_due() -> None:
    """Every event is sent exactly when it is due, and intent and outcome say so."""
    target, journal = Script(service_s=lambda _events: 0.002), Kept()

    tally = await send(target, journal, [event(n, n * 3 * MS, n) for n in range(5)])

    assert [(when, seqs) for when, seqs, _ in target.asked] == [(n * 3 * MS, [n]) for n in range(5)]
    assert tally.lateness == {0: 5}
    assert (tally.offered, tally.outcomes["acked"]) == (5, 5)
    assert journal.lines[0] == SendIntent((0,), 0, 1)
    assert journal.outcomes()[4] == FinalOutcome((4,), "acked", 1, 12 * MS, 14 * MS, 200)


@in_virtual_time
async def test_a_slow_key_delays_no_other() -> None:
    """While a key's request takes a minute, all other keys are sent in time, and only its own events wait, in order."""
    target, journal = Script(service_s=lambda events: 60.0 if events[0].seq == 0 else 0.001), Kept()
    events = [event(n, n * MS, n % 10, n // 10) for n in range(100)]

    await send(target, journal, events, retry_s=300.0)

    sent = {seqs[0]: when for when, seqs, _ in target.asked}
    assert all(sent[n] == n * MS for n in range(100) if n % 10)
    assert [seqs[0] for _, seqs, _ in target.asked if seqs[0] % 10 == 0] == list(range(0, 100, 10))
    assert sent[10] == 60_000 * MS


@in_virtual_time
async def test_what_is_due_together_goes_together() -> None:
    """What is due within the time of gathering goes into one request in the order of the trace, up to its size."""
    target, journal = Script(batch=4), Kept()
    times = [0, 5000, 5100, 5200, 5300, 5400, 20_000]

    await send(target, journal, [event(n, due, n) for n, due in enumerate(times)], linger_s=0.001)

    assert [(when, seqs) for when, seqs, _ in target.asked] == [
        (0, [0]), (5000, [1]), (6000, [2, 3, 4, 5]), (20_000, [6]),
    ]  # fmt: skip


@in_virtual_time
async def test_a_cut_request_is_repeated_as_it_was() -> None:
    """A request that may have happened is sent again under its name before anything else of its key, and is acked."""
    target, journal = Script(), Kept()
    target.answers[0] = [CUT, CUT]

    await send(target, journal, [event(0, 0, 1), event(1, 0, 1), event(2, 0, 2)])

    mine = [(seqs, name) for _, seqs, name in target.asked if seqs != [2]]
    assert [seqs for seqs, _ in mine] == [[0], [0], [0], [1]]
    assert len({name for seqs, name in mine if seqs == [0]}) == 1
    assert len({name for _, _, name in target.asked}) == 3
    found = journal.outcomes()
    assert (found[0].outcome, found[0].tries, found[0].sent_us) == ("acked", 3, 0)
    assert [line.tries for line in journal.lines if isinstance(line, SendIntent) and line.seqs == (0,)] == [1, 2, 3]


@in_virtual_time
async def test_a_cut_request_that_cannot_be_told_is_not_repeated() -> None:
    """Where a repetition might happen twice, an event whose answer is lost is unknown at once, and its key goes on."""
    target, journal = Script(is_repeatable=False), Kept()
    target.answers[0] = [CUT]
    target.answers[2] = [slow_down(0), DONE]

    await send(target, journal, [event(0, 0, 1), event(1, 0, 1), event(2, 0, 2)])

    assert sorted(seqs for _, seqs, _ in target.asked) == [[0], [1], [2], [2]]
    assert {seq: line.outcome for seq, line in journal.outcomes().items()} == {0: "unknown", 1: "acked", 2: "acked"}


@in_virtual_time
async def test_a_server_that_asks_to_wait_is_waited_for() -> None:
    """After Retry-After seconds and not before a request is sent again, and other keys do not wait for it."""
    target, journal = Script(), Kept()
    target.answers[0] = [slow_down(7)]

    await send(target, journal, [event(0, 0, 1), event(1, 0, 1), event(2, 1 * MS, 2)])

    assert [(when, seqs) for when, seqs, _ in target.asked] == [
        (0, [0]), (1 * MS, [2]), (7_000_000, [0]), (7_000_000, [1]),
    ]  # fmt: skip


def limited(seconds: float) -> TargetAnswer:
    return TargetAnswer(AttemptResult.BUSY, 429, "RateLimited", seconds)


@in_virtual_time
async def test_waits_for_a_limit_are_counted_and_are_no_failure() -> None:
    """A request waits for a rate limit longer than it may fail, and its outcome says how often and for how long."""
    target, journal = Script(), Kept()
    target.answers[0] = [limited(8), slow_down(3), limited(7)]

    await send(target, journal, [event(0, 0, 1), event(1, 0, 2)], retry_s=5.0)

    assert [when for when, seqs, _ in target.asked if seqs == [0]] == [0, 8_000_000, 11_000_000, 18_000_000]
    found = journal.outcomes()
    assert (found[0].outcome, found[0].limited, found[0].limited_us) == ("acked", 2, 15_000_000)
    assert (found[1].outcome, found[1].limited, found[1].limited_us) == ("acked", 0, 0)


@in_virtual_time
async def test_a_wait_for_a_limit_is_no_lateness_of_the_generator() -> None:
    """What is due while a request waits for a limit, and has to wait for its key, is late by the server's time only."""
    target, journal = Script(), Kept()
    target.answers[0] = [limited(8), slow_down(2)]

    tally = await send(target, journal, [event(0, 0, 1), event(1, 1_000_000, 1), event(2, 3_000_000, 2)])

    found = journal.outcomes()
    assert (found[1].sent_us, found[1].held_us) == (10_000_000, (7_000_000,))
    assert (found[0].held_us, found[2].held_us) == ((), ())
    assert tally.lateness == {0: 2, 2_000_000: 1}  # for the two seconds in which it asked to slow down


@in_virtual_time
async def test_a_limit_that_stays_is_given_up() -> None:
    """Waits for a rate limit end before they come to more than `limited_s`, and the request is rejected as limited."""
    target, journal = Script(), Kept()
    target.answers[0] = [limited(60)] * 99

    await send(target, journal, [event(0, 0, 1)], limited_s=150.0)

    found = journal.outcomes()[0]
    assert (found.outcome, found.status, found.tries) == ("rejected", 429, 3)
    assert (found.limited, found.limited_us, found.done_us) == (2, 120_000_000, 120_000_000)


@pytest.mark.parametrize(
    ("answers", "outcome"), [([slow_down(1)] * 99, "rejected"), ([CUT, *[slow_down(1)] * 99], "unknown")]
)
def test_a_request_is_given_up_after_a_time(answers: list[TargetAnswer], outcome: str) -> None:
    """What was never taken in the time is rejected; unknown where one of the attempts may have happened."""

    @in_virtual_time
    async def run() -> None:
        target, journal = Script(), Kept()
        target.answers[0] = list(answers)

        await send(target, journal, [event(0, 0, 1), event(1, 0, 1)], retry_s=10.0)

        found = journal.outcomes()
        assert (found[0].outcome, found[0].status) == (outcome, 503)
        assert 8 <= found[0].tries <= 12
        assert found[0].done_us is not None
        assert found[0].done_us <= 10_000_000
        assert found[1].outcome == "acked"

    run()


@in_virtual_time
async def test_a_wrong_event_is_rejected_alone() -> None:
    """Of a request that is refused for one of its events the others are sent again, as another request."""
    target, journal = Script(batch=3), Kept()
    target.answers[0] = [TargetAnswer(AttemptResult.REFUSED, 422, "wrong", culprit=1)]

    await send(target, journal, [event(n, 0, n) for n in range(3)])

    assert [seqs for _, seqs, _ in target.asked] == [[0, 1, 2], [0, 2]]
    assert target.asked[0][2] != target.asked[1][2]
    found = journal.outcomes()
    assert {seq: line.outcome for seq, line in found.items()} == {0: "acked", 1: "rejected", 2: "acked"}
    assert (found[1].status, found[1].error) == (422, "wrong")


@in_virtual_time
async def test_a_refused_request_is_final() -> None:
    """A refusal is not tried again, and what follows of the key is sent."""
    target, journal = Script(), Kept()
    target.answers[0] = [REFUSED]

    tally = await send(target, journal, [event(0, 0, 1), event(1, 0, 1)])

    assert [seqs for _, seqs, _ in target.asked] == [[0], [1]]
    assert tally.outcomes == {"acked": 1, "rejected": 1, "unknown": 0, "dropped": 0}


def stalled(events: Sequence[DueEvent]) -> float:
    """The first ten requests take ten seconds."""
    return 10.0 if events[0].seq < 10 else 0.0


@in_virtual_time
async def test_overload_wait_sends_everything_late() -> None:
    """With a full window what is due waits, is sent as soon as there is room, and its lateness is in the books."""
    target, journal = Script(service_s=stalled), Kept()

    tally = await send(target, journal, [event(n, n * MS, n) for n in range(30)], window=10, overload="wait")

    assert tally.outcomes["acked"] == 30
    assert all(n * MS + us == 10_000 * MS for n, us in zip(range(10, 20), late(target)[10:20], strict=True))
    assert percentile_us(tally.lateness, 1.0) == rounded(max(late(target)))


def late(target: Script) -> list[int]:
    return [when - seqs[0] * MS for when, seqs, _ in target.asked]


@in_virtual_time
async def test_overload_drop_leaves_out_what_has_no_room() -> None:
    """With a full window what is due is not sent at all, and journalled as dropped; what follows is in time."""
    target, journal = Script(service_s=stalled), Kept()
    events = [event(n, n * MS, n) for n in range(30)] + [event(30, 20_000 * MS, 30)]

    tally = await send(target, journal, events, window=10, overload="drop")

    outcomes = {seq: line.outcome for seq, line in journal.outcomes().items()}
    assert outcomes == {n: "acked" if n < 10 or n == 30 else "dropped" for n in range(31)}
    assert tally.lateness == {0: 11}
    assert (tally.offered, tally.outcomes["dropped"]) == (31, 20)
    assert all(line.sent_us is None and line.done_us is None for line in journal.outcomes().values() if line.tries == 0)


@in_virtual_time
async def test_overload_abort_ends_it() -> None:
    """With a full window the replay ends with an error that names the event, and intents tell what was sent."""
    target, journal = Script(service_s=stalled), Kept()

    with pytest.raises(Overloaded, match="event 10 is due"):
        await send(target, journal, [event(n, n * MS, n) for n in range(30)], window=10, overload="abort")

    assert [line.seqs[0] for line in journal.lines if isinstance(line, SendIntent)] == list(range(10))
    assert journal.outcomes() == {}


@given(
    lanes=st.lists(st.integers(0, 5), max_size=60),
    gaps=st.lists(st.integers(0, 2000), min_size=60, max_size=60),
    faults=st.dictionaries(
        st.integers(0, 59), st.lists(st.sampled_from([CUT, slow_down(0), slow_down(2)]), max_size=3)
    ),
    batch=st.integers(1, 7),
    concurrency=st.integers(1, 4),
    window=st.integers(1, 20),
    size=st.integers(1, 60),
)
def test_whatever_happens_keys_keep_their_order(
    lanes: list[int],
    gaps: list[int],
    faults: dict[int, list[TargetAnswer]],
    batch: int,
    concurrency: int,
    window: int,
    size: int,
) -> None:
    """With faults and limits of any kind every event is taken once, after all before it of its key, and not early."""

    @in_virtual_time
    async def run() -> None:
        target = Script(batch, service_s=lambda events: (events[0].seq * 7 % 5) / 1000)
        target.answers = {seq: list(answers) for seq, answers in faults.items()}
        journal, events, due_us = Kept(), [], 0
        for seq, (lane, gap) in enumerate(zip(lanes, gaps, strict=False)):
            due_us += gap
            events.append(event(seq, due_us, lane))

        await send(target, journal, events, size, concurrency=concurrency, window=window)

        by_lane = defaultdict(list)
        for seq in target.taken:
            by_lane[lanes[seq]].append(seq)
        assert sorted(target.taken) == list(range(len(lanes)))
        assert all(seqs == sorted(seqs) for seqs in by_lane.values())
        # A time in whole microseconds may be one short of what was slept for.
        assert all(when >= events[seq].due_us - 1 for when, seqs, _ in target.asked for seq in seqs)
        assert all(line.outcome == "acked" for line in journal.outcomes().values())
        assert journal.outcomes().keys() == set(range(len(lanes)))

    run()


def test_due_times_keep_the_distances() -> None:
    """Distances shrink by the speed, order stays, and at speed 0 everything is due at the beginning."""
    assert [Timeline(100, 50, 2.0).due_us(ts) for ts in (50, 51, 52, 60)] == [100, 100, 101, 105]
    assert [Timeline(100, 50, 0.5).due_us(ts) for ts in (50, 51)] == [100, 102]
    assert [Timeline(100, 50, 0.0).due_us(ts) for ts in (50, 51, 10**15)] == [100] * 3


@given(st.lists(st.integers(-5, 10**9), min_size=1), st.floats(0.01, 1))
def test_percentiles_are_exact_to_three_digits(values: list[int], share: float) -> None:
    """The percentile of the counts is the exact one, cut to three digits."""
    counts = merged([{each: 1} for each in map(rounded, values)])
    found = percentile_us(counts, share)

    ordered = sorted(max(value, 0) for value in values)
    needed = next(n for n in range(1, len(values) + 1) if n >= share * len(values))
    assert found == rounded(ordered[needed - 1])
    assert rounded(1234567) == 1230000
    assert percentile_us({}, 0.5) is None
