"""The checker of chaos runs finds each kind of fault in a made-up history, and none in a clean one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from devkit.verdicts.checker import KINDS, judge
from devkit.verdicts.history import Balance, History, Kind, Letter, Reached, Round, Sent, Topic
from devkit.verdicts.verdict import Copy, Fate, Place

BAD = 4
"""The event of the made-up topic that becomes a dead letter."""


BALANCE = Balance("t.1", unaccounted=0, pending=0, delivered=9, dead_lettered=1)


def place(number: int) -> Place:
    return Place("t.1", "inc", 0, number * 100)


def sent(number: int, fate: Fate = Fate.STORED, request: str = "") -> Sent:
    kind = Kind.BAD if number == BAD else Kind.GOOD
    return Sent(f"k-{number}", "k", number, fate, request or f"r{number}", kind)


def seen(number: int, offset: int | None = None, at: float = 10.0) -> Copy:
    where = number if offset is None else offset
    return Copy(f"k-{number}", b"b/k", place(number), place(number + 1), 0, where, at, 1000)


def letter(number: int = BAD) -> Letter:
    return Letter(f"k-{number}", place(number), place(number + 1), "undecodable")


def a_topic(*, is_exact: bool = False) -> Topic:
    """Ten events of one key, of which one is a dead letter; nothing is wrong with them."""
    return Topic(
        "t",
        is_exact,
        2,
        [sent(number) for number in range(10)],
        [seen(number) for number in range(10) if number != BAD],
        [letter()],
        [BALANCE],
    )


def kinds(history: History) -> set[str]:
    """The kinds of what the checker finds."""
    found = judge(history)
    assert found.is_clean == (not found.findings)
    assert {kind for kind, count in found.counts.items() if count} == {each.kind for each in found.findings}
    return {each.kind for each in found.findings}


def of(
    topic: Topic, rounds: Sequence[Round] = (Round("round 1", 0.0, 100.0, 1),), thaws: Sequence[int] = ()
) -> History:
    return History([topic], rounds, 2000, thaws)


def without(topic: Topic, number: int) -> Topic:
    """The same, where one event is neither in Kafka nor among the letters."""
    return replace(
        topic,
        seen=[each for each in topic.seen if each.event_id != f"k-{number}"],
        letters=[each for each in topic.letters if each.event_id != f"k-{number}"],
    )


def with_kind(topic: Topic, number: int, kind: Kind) -> Topic:
    """The same, where one event is of another kind."""
    return replace(topic, sent=[each._replace(kind=kind) if each.number == number else each for each in topic.sent])


def with_record(topic: Topic, record: Copy) -> Topic:
    return replace(topic, seen=[*topic.seen, record])


def in_order(*numbers: int) -> Callable[[Topic], Topic]:
    """The topic with its records in this order."""
    return lambda topic: replace(topic, seen=[seen(number, offset) for offset, number in enumerate(numbers)])


def numbered(topic: Topic) -> Topic:
    """The same topic, which numbers its events."""
    number = {place(each): f"t1:{each + 1}" for each in range(10)}
    return replace(
        topic,
        seen=[each._replace(number=number[each.place]) for each in topic.seen],
        letters=[each._replace(number=number[each.place]) for each in topic.letters],
        reached=Reached("t1", tail=10, delivered=10),
    )


def with_numbers(**numbers: str) -> Callable[[Topic], Topic]:
    """A topic that numbers its events, where some records have other numbers."""
    return lambda topic: replace(
        (whole := numbered(topic)),
        seen=[each._replace(number=numbers.get(each.event_id.replace("-", ""), each.number)) for each in whole.seen],
    )


NUMBERS: dict[str, Callable[[Topic], Topic]] = {
    "the last number is nowhere": lambda topic: replace(numbered(topic), reached=Reached("t1", 11, 11)),
    "more numbers than were given": lambda topic: replace(numbered(topic), reached=Reached("t1", 9, 9)),
    "a number of two entries": with_numbers(k6="t1:6"),
    "two numbers change places": with_numbers(k6="t1:8", k7="t1:7"),
    "a copy with another number": lambda topic: with_record(numbered(topic), seen(3, 50)._replace(number="t1:11")),
    "a copy without a number": lambda topic: with_record(numbered(topic), seen(3, 50)),
    "a number of another topic": with_numbers(k6="t2:7"),
    "a dead letter without a number": lambda topic: replace(numbered(topic), letters=topic.letters),
    "a number where there should be none": lambda topic: replace(numbered(topic), reached=None),
    "something is never delivered": lambda topic: replace(numbered(topic), reached=Reached("t1", 10, 9)),
    "a request that is not in one piece": lambda topic: replace(
        numbered(topic), sent=[sent(0, request="r"), sent(2, request="r"), sent(1), *topic.sent[3:]]
    ),
}

PARENT, CHILD = "t", "t@1.1"
"""A shard of the first layout, and one of the next that took over from it."""


def resharded(topic: Topic) -> Topic:
    """The same topic, whose number of shards was changed after its fifth event."""
    end = Place(PARENT, "inc", 0, 500)

    def moved(where: Place) -> Place:
        return where._replace(shard=PARENT) if where.offset < end.offset else where._replace(shard=CHILD)

    records = [each._replace(place=moved(each.place), end=moved(each.end)) for each in topic.seen]
    first = min(each.place for each in records if each.place.shard == CHILD)
    records = [
        each._replace(
            after=f"{PARENT}=inc:0/500,t.2=other:0/70" if each.place == first else "",
            end=end if each.end.offset == end.offset else each.end,
        )
        for each in records
    ]
    letters = [each._replace(place=moved(each.place), end=end) for each in topic.letters]
    balances = [Balance(PARENT, 0, 0, 4, 1), Balance(CHILD, 0, 0, 5, 0)]
    return replace(topic, seen=records, letters=letters, balances=balances)


def later_first(topic: Topic) -> Topic:
    """The same, where the first event of the later layout stands in Kafka before the last of the earlier one."""
    whole = resharded(topic)
    places = {"k-3": 5, "k-5": 3}
    return replace(whole, seen=[each._replace(offset=places.get(each.event_id, each.offset)) for each in whole.seen])


FAULTS: dict[str, tuple[str, Callable[[Topic], Topic]]] = {
    **{name: ("number", spoil) for name, spoil in NUMBERS.items()},
    "an event of a later layout comes before one of an earlier": ("reordered", later_first),
    "a shard stops before the end that its successor names": ("gap", lambda topic: without(resharded(topic), BAD)),
    "an acknowledged event is nowhere": ("lost", lambda topic: without(topic, 7)),
    "a dead letter is nowhere": ("lost", lambda topic: without(topic, BAD)),
    "an entry left without a trace": ("gap", lambda topic: without(topic, 7)),
    "a dead letter leaves a gap": ("gap", lambda topic: without(topic, BAD)),
    "nobody stored it": ("unwanted", lambda topic: with_record(topic, seen(10))),
    "it was refused": (
        "unwanted",
        lambda topic: replace(topic, sent=[sent(0, Fate.REFUSED), *topic.sent[1:]]),
    ),
    "half a request": (
        "halved",
        lambda topic: replace(
            topic,
            sent=[*topic.sent, sent(11, Fate.OPEN, "r"), sent(12, Fate.OPEN, "r")],
            seen=[*topic.seen, seen(11)],
        ),
    ),
    "stored at two places": (
        "duplicated",
        lambda topic: with_record(topic, seen(10)._replace(event_id="k-9")),
    ),
    "a copy in another partition": ("duplicated", lambda topic: with_record(topic, seen(3, 50)._replace(partition=1))),
    "a copy outside of every round": ("duplicated", lambda topic: with_record(topic, seen(3, 50, at=200.0))),
    "more copies than were in flight": (
        "duplicated",
        lambda topic: replace(topic, seen=[*topic.seen, *(seen(3, 50 + copy) for copy in range(5))]),
    ),
    "a key's events change places": ("reordered", in_order(0, 2, 1, 3, 5, 6, 7, 8, 9)),
    "a key in two partitions": (
        "reordered",
        lambda topic: replace(topic, seen=[*topic.seen[:-1], topic.seen[-1]._replace(partition=1)]),
    ),
    "a good entry is parked": (
        "dead letter",
        lambda topic: replace(without(topic, 7), letters=[*topic.letters, letter(7)]),
    ),
    "a dead letter is delivered": ("dead letter", lambda topic: with_record(topic, seen(BAD))),
    "what its receiver refuses is parked for another reason": (
        "dead letter",
        lambda topic: with_kind(topic, BAD, Kind.REFUSED),
    ),
    "what its receiver refuses is delivered": ("unwanted", lambda topic: with_kind(topic, 7, Kind.REFUSED)),
    "what its receiver refuses is nowhere": (
        "lost",
        lambda topic: without(with_kind(topic, BAD, Kind.REFUSED), BAD),
    ),
    "a good entry expires where lives are not limited": (
        "dead letter",
        lambda topic: replace(without(topic, 7), letters=[*topic.letters, letter(7)._replace(cause="expired")]),
    ),
    "an entry with a letter is booked as delivered": (
        "ledger",
        lambda topic: replace(
            with_kind(topic, 7, Kind.EITHER),
            letters=[*topic.letters, letter(7)],
            balances=[BALANCE],
        ),
    ),
    "an unknown entry is parked": (
        "dead letter",
        lambda topic: replace(topic, letters=[*topic.letters, letter(10)]),
    ),
    "the books do not balance": ("ledger", lambda topic: replace(topic, balances=[BALANCE._replace(unaccounted=-1)])),
    "something waits for ever": ("ledger", lambda topic: replace(topic, balances=[BALANCE._replace(pending=2)])),
    "more is booked than was delivered": (
        "ledger",
        lambda topic: replace(topic, balances=[BALANCE._replace(delivered=10)]),
    ),
    "a dead letter is booked as delivered": (
        "ledger",
        lambda topic: replace(topic, balances=[BALANCE._replace(delivered=10, dead_lettered=0)]),
    ),
}


@pytest.mark.guarantee("chaos-runs")
@pytest.mark.parametrize("is_exact", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_clean_history_has_no_findings(is_exact: bool) -> None:
    """Events that all arrived in order, with one dead letter in the chain, are well in either mode."""
    found = judge(of(a_topic(is_exact=is_exact)))

    assert found.findings == []
    assert found.delivered == 9
    assert judge(of(numbered(a_topic(is_exact=is_exact)))).findings == []


@pytest.mark.guarantee("chaos-runs")
@pytest.mark.parametrize("is_exact", [False, True], ids=["at-least-once", "exactly-once"])
def test_another_number_of_shards_is_no_fault(is_exact: bool) -> None:
    """A key is in one shard of each layout, in order over both, and the first one's chain leads to its end."""
    assert kinds(of(resharded(a_topic(is_exact=is_exact)))) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str) -> None:
    """A history with one fault has a finding of its kind."""
    kind, spoil = FAULTS[fault]

    assert kind in kinds(of(spoil(a_topic())))


@pytest.mark.guarantee("chaos-runs")
def test_every_kind_of_finding_is_made() -> None:
    """No kind that a verdict can count stays without a history that shows it."""
    assert {kind for kind, _ in FAULTS.values()} | {"thaw"} == set(KINDS)


def test_copies_within_the_bound_are_no_fault_at_least_once() -> None:
    """A copy in a round that had a fault is counted beside the bound, with its shard, and is no finding."""
    found = judge(of(with_record(a_topic(), seen(3, 50))))

    assert found.findings == []
    assert found.doubled == [("round 1", 1, 1000, 4000, {"t.1": 1})]


def test_a_copy_in_a_round_without_faults_is_found() -> None:
    """Where nothing was hurt nothing may be sent twice."""
    calm = Round("calm", 0.0, 100.0, 0)

    assert kinds(of(with_record(a_topic(), seen(3, 50)), [calm])) == {"duplicated"}


def test_a_visible_copy_is_found_exactly_once() -> None:
    """A second copy that a read_committed consumer sees is a finding, whatever was hurt."""
    assert kinds(of(with_record(a_topic(is_exact=True), seen(3, 50)))) == {"duplicated"}


def test_an_aborted_copy_is_no_fault_exactly_once() -> None:
    """A copy that no read_committed consumer sees is none, before the visible one too."""
    aborted = seen(3, -1)._replace(is_committed=False)

    assert kinds(of(with_record(a_topic(is_exact=True), aborted))) == set()


def test_an_event_that_is_only_aborted_is_lost_exactly_once() -> None:
    """What only a read_uncommitted consumer sees was not delivered."""
    topic = a_topic(is_exact=True)
    hidden = replace(topic, seen=[*topic.seen[:-1], topic.seen[-1]._replace(is_committed=False)])

    assert kinds(of(hidden)) == {"lost", "ledger"}


def test_an_open_request_may_be_there_or_not() -> None:
    """Events of a request without an answer are well when all of them are there, and when none is."""
    topic = a_topic()
    both = [*topic.sent, sent(10, Fate.OPEN, "r"), sent(11, Fate.OPEN, "r")]

    assert kinds(of(replace(topic, sent=both))) == set()
    there = replace(topic, sent=both, seen=[*topic.seen, seen(10), seen(11)])
    assert kinds(of(replace(there, balances=[BALANCE._replace(delivered=11)]))) == set()


@pytest.mark.guarantee("chaos-runs")
@pytest.mark.parametrize(("thaws", "found"), [((), set()), ((0, 0), {"thaw"}), ((0, 2), set())])
def test_thawed_owners_must_have_tried_something(thaws: Sequence[int], found: set[str]) -> None:
    """A run in which every thawed owner stayed quiet is not clean: it has shown nothing."""
    assert kinds(of(a_topic(), thaws=thaws)) == found


def test_an_entry_that_is_too_large_at_times_may_end_either_way() -> None:
    """Delivered or a dead letter, in either mode; never neither."""
    delivered = with_kind(a_topic(), 7, Kind.EITHER)
    parked = replace(
        without(delivered, 7),
        letters=[*delivered.letters, letter(7)._replace(cause="too_large")],
        balances=[BALANCE._replace(delivered=8, dead_lettered=2)],
    )

    assert kinds(of(delivered)) == kinds(of(parked)) == kinds(of(replace(parked, is_exact=True))) == set()
    assert kinds(of(without(delivered, 7))) >= {"lost"}


def test_what_its_receiver_refuses_ends_as_refused() -> None:
    """It is a dead letter for that reason; where lives are limited, also for having been tried too often."""
    topic = with_kind(a_topic(), BAD, Kind.REFUSED)
    refused, exhausted = (
        replace(topic, letters=[letter()._replace(cause=cause)]) for cause in ("refused", "exhausted")
    )

    assert kinds(of(refused)) == kinds(of(replace(exhausted, lives_end=True))) == set()
    assert kinds(of(exhausted)) == {"dead letter"}


def test_an_entry_that_was_delivered_may_be_given_up_by_the_next_owner_at_least_once() -> None:
    """Where the books have it as a dead letter; delivered exactly once it may not."""
    topic = with_kind(a_topic(), 7, Kind.EITHER)
    both = replace(
        topic,
        letters=[*topic.letters, letter(7)._replace(cause="too_large")],
        balances=[BALANCE._replace(delivered=8, dead_lettered=2)],
    )

    assert kinds(of(both)) == set()
    assert kinds(of(replace(both, is_exact=True))) == {"dead letter"}


def test_a_limited_life_may_end_any_entry() -> None:
    """Where entries are given up after a time a good one may expire, and the books have it apart."""
    topic = replace(
        without(a_topic(), 7),
        letters=[letter(), letter(7)._replace(cause="expired")],
        balances=[BALANCE._replace(delivered=8, expired=1)],
    )

    assert kinds(of(replace(topic, lives_end=True))) == set()
    assert "dead letter" in kinds(of(topic))
