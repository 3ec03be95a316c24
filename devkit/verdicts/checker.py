"""What is wrong with a history. Pure, and shares no code with the daemon.

Records that stand at one place of one queue are copies of one entry. For a topic that is delivered exactly once only
what a read_committed consumer sees counts; for the others everything that is in Kafka.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from devkit.verdicts.history import History, Kind, Letter, Round, Topic
from devkit.verdicts.verdict import Copy, Fate, Place

_OF_LIMITED_LIVES = ("expired", "exhausted")
_UNDELIVERED = (Kind.BAD, Kind.REFUSED)

KINDS = ("lost", "unwanted", "halved", "duplicated", "reordered", "gap", "number", "dead letter", "ledger", "thaw")


class Finding(NamedTuple):
    """One thing that is wrong; `kind` is one of KINDS."""

    kind: str
    text: str


class Doubled(NamedTuple):
    """How many records of a round's at-least-once topics were further copies, of which shards, and how many bytes could
    have been."""

    round: str
    records: int
    nbytes: int
    bound_bytes: int
    shards: dict[str, int]


@dataclass
class Verdict:
    """What was found. `doubled` is no fault by itself: at-least-once topics may double within the bound."""

    findings: list[Finding] = field(default_factory=list)
    doubled: list[Doubled] = field(default_factory=list)
    delivered: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    @property
    def counts(self) -> dict[str, int]:
        """How many findings of each kind."""
        found = Counter(each.kind for each in self.findings)
        return {kind: found[kind] for kind in KINDS}


def judge(history: History) -> Verdict:
    """The verdict on a history whose queues are empty."""
    verdict = Verdict()
    for topic in history.topics:
        firsts = list(_firsts(topic.view))
        verdict.delivered += len(firsts)
        for findings in (
            _lost(topic, firsts),
            _unwanted(topic, firsts),
            _halved(topic, firsts),
            _stored_twice(firsts),
            _sent_twice(topic),
            _reordered(topic, firsts),
            _gaps(topic, firsts),
            _numbers(topic, firsts),
            _letters(topic, firsts),
            _unaccounted(topic, firsts),
        ):
            verdict.findings += findings
    verdict.doubled = [_doubled(history, each) for each in history.rounds]
    verdict.findings += _too_often(history, verdict.doubled)
    verdict.findings += _never_tried(history)
    return verdict


def _firsts(seen: Iterable[Copy]) -> Iterator[Copy]:
    """The first copy of each entry. Copies of one entry lie in one partition; else `_sent_twice` says so."""
    known: set[Place] = set()
    for each in sorted(seen, key=lambda each: (each.partition, each.offset)):
        if each.place not in known:
            known.add(each.place)
            yield each


def _lost(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    arrived, parked = {each.event_id for each in firsts}, {each.event_id for each in topic.letters}
    ends = {
        Kind.GOOD: arrived | parked if topic.lives_end else arrived,
        Kind.BAD: parked,
        Kind.REFUSED: parked,
        Kind.EITHER: arrived | parked,
    }
    for sent in topic.sent:
        if sent.fate is Fate.STORED and sent.event_id not in ends[sent.kind]:
            yield Finding("lost", f"{topic.name}: {sent.event_id} was acknowledged and was not {sent.kind.value}")


def _unwanted(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    wanted = {each.event_id for each in topic.sent if each.fate is not Fate.REFUSED and each.kind not in _UNDELIVERED}
    for each in firsts:
        if each.event_id not in wanted:
            yield Finding("unwanted", f"{topic.name}: nobody stored {each.event_id} to be delivered")


def _halved(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """Requests whose outcome nobody knows are there all or none."""
    there = {each.event_id for each in firsts} | {each.event_id for each in topic.letters}
    requests: dict[str, list[str]] = defaultdict(list)
    for each in topic.sent:
        if each.fate is Fate.OPEN:
            requests[each.request].append(each.event_id)
    for request, ids in requests.items():
        if (count := sum(each in there for each in ids)) not in (0, len(ids)):
            yield Finding("halved", f"{topic.name}: {count} of {len(ids)} events of {request} are there")


def _stored_twice(firsts: Sequence[Copy]) -> Iterator[Finding]:
    places: dict[str, Place] = {}
    for each in firsts:
        if places.setdefault(each.event_id, each.place) != each.place:
            yield Finding("duplicated", f"{each.event_id} stands at {places[each.event_id]} and at {each.place}")


def _sent_twice(topic: Topic) -> Iterator[Finding]:
    """Copies in another partition are wrong everywhere, any copy is where each entry arrives once."""
    first: dict[Place, Copy] = {}
    for each in topic.view:
        before = first.setdefault(each.place, each)
        if (before.event_id, before.key, before.partition) != (each.event_id, each.key, each.partition):
            yield Finding("duplicated", f"{topic.name}: copies of {each.event_id} at {each.place} differ")
        elif before is not each and topic.is_exact:
            text = f"{each.event_id} is visible in partition {each.partition} at {before.offset} and at {each.offset}"
            yield Finding("duplicated", f"{topic.name}: {text}")


def _reordered(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """The first copies of a key's events: in one partition, there and in their queue in the order of commits. In each
    layout of the topic they are in one queue, and none of a layout comes before one of an earlier layout."""
    sent = {each.event_id: each for each in topic.sent}
    by_key: dict[str, list[Copy]] = defaultdict(list)
    for each in firsts:
        if each.event_id in sent:
            by_key[sent[each.event_id].key].append(each)
    for key, members in by_key.items():
        queues = {(each.place.shard, each.place.incarnation) for each in members}
        layouts = {each.place.generation for each in members}
        if len(queues) > len(layouts) or len({each.partition for each in members}) > 1:
            yield Finding("reordered", f"{topic.name}: {key} lies in several shards or partitions")
            continue
        members.sort(key=lambda each: each.offset)
        for before, after in itertools.pairwise(members):
            is_late = sent[before.event_id].number >= sent[after.event_id].number
            if is_late or (before.place.generation, before.place) >= (after.place.generation, after.place):
                yield Finding("reordered", f"{topic.name}: {key}: {before.event_id} before {after.event_id}")


def _gaps(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """Where an entry ends the next one begins: one that was delivered, or one that a dead letter stands for."""
    links: dict[tuple[str, str], dict[Place, Place]] = defaultdict(dict)
    places = [(each.place, each.end) for each in firsts] + [(each.place, each.end) for each in topic.letters]
    for place, end in places:
        links[place.shard, place.incarnation][place] = end
    for (shard, _), chain in links.items():
        for before, after in itertools.pairwise(sorted(chain)):
            if chain[before] != after:
                text = f"{shard}: after {_shown(before)} to {_shown(chain[before])} comes {_shown(after)}"
                yield Finding("gap", f"{topic.name}: {text}")
    for text in _cut(topic, {queue: max(chain.values()) for queue, chain in links.items()}):
        yield Finding("gap", f"{topic.name}: {text}")


def _cut(topic: Topic, reached: Mapping[tuple[str, str], Place]) -> Iterator[str]:
    """Where shards ended as their successors say, and no entry leads there; `reached` is how far those of a queue
    lead. Queues that had no entry have no chain."""
    for each in dict.fromkeys(copy.after for copy in topic.view):
        for parent in filter(None, each.split(",")):
            shard, _, header = parent.partition("=")
            if shard != "generation":
                end = Place.read(shard, header)
                if (found := reached.get((shard, end.incarnation), end)) != end:
                    yield f"{shard} leads to {_shown(found)}, and ended at {_shown(end)}"


def _numbers(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """Of a topic that numbers its events: each entry has a number of its own, in Kafka or as a dead letter, none is
    missing up to the last one, all copies have the same, and in a queue they increase."""
    if topic.reached is None:
        for each in _told(topic):
            if each.number:
                yield Finding("number", f"{topic.name}: {each.event_id} has the number {each.number}")
        return
    known: dict[Place, int] = {}
    for each in _told(topic):
        topic_id, _, text = each.number.rpartition(":")
        if topic_id != topic.reached.topic_id or known.setdefault(each.place, int(text)) != int(text):
            yield Finding("number", f"{topic.name}: {each.event_id} at {each.place} has the number {each.number!r}")
    numbers = sorted(known.values())
    if numbers != list(range(1, topic.reached.tail + 1)):
        counts = Counter(numbers)
        missing = [number for number in range(1, topic.reached.tail + 1) if not counts[number]]
        several = [number for number, count in counts.items() if count > 1]
        text = f"of {topic.reached.tail} numbers {missing[:9]} are missing and {several[:9]} are of several entries"
        yield Finding("number", f"{topic.name}: {text}")
    for before, after in itertools.pairwise(sorted(known)):
        if (before.shard, before.incarnation) == (after.shard, after.incarnation) and known[before] >= known[after]:
            yield Finding("number", f"{topic.name}: {known[before]} at {before} stands before {known[after]}")
    if topic.reached.delivered != topic.reached.tail:
        yield Finding("number", f"{topic.name}: delivered is {topic.reached.delivered} in empty queues")
    yield from _requests_apart(topic, firsts, known)


def _told(topic: Topic) -> Sequence[Copy | Letter]:
    """All that says something of an entry."""
    return [*topic.seen, *topic.letters]


def _requests_apart(topic: Topic, firsts: Sequence[Copy], known: Mapping[Place, int]) -> Iterator[Finding]:
    """The events of a request have one number behind the other, in the order in which they were sent."""
    entries: list[Copy | Letter] = [*firsts, *topic.letters]
    numbers = {each.event_id: known[each.place] for each in entries if each.place in known}
    for request, sent in itertools.groupby(topic.sent, key=lambda each: each.request):
        found = [numbers[each.event_id] for each in sent if each.event_id in numbers]
        if any(after != before + 1 for before, after in itertools.pairwise(found)):
            yield Finding("number", f"{topic.name}: the events of {request} have the numbers {found}")


def _letters(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """Only what may end so becomes a dead letter, and then it is not delivered as well.

    At least once, an owner may have delivered an entry and died, and the next one may have given it up.
    """
    kinds = {each.event_id: each.kind for each in topic.sent}
    delivered = {each.place for each in firsts}
    for each in topic.letters:
        kind = kinds.get(each.event_id)
        ended = topic.lives_end and each.cause in _OF_LIMITED_LIVES
        may_be = {Kind.GOOD: ended, Kind.REFUSED: ended or each.cause == "refused", Kind.BAD: True, Kind.EITHER: True}
        if kind is None or not may_be[kind]:
            yield Finding("dead letter", f"{topic.name}: {each.event_id or each.place} was parked as {each.cause}")
        elif each.place in delivered and (topic.is_exact or kind in _UNDELIVERED):
            yield Finding("dead letter", f"{topic.name}: {each.event_id} was parked and delivered")


def _unaccounted(topic: Topic, firsts: Sequence[Copy]) -> Iterator[Finding]:
    """The books balance, and say the same as Kafka and the dead letters: an entry that has a letter left as that."""
    letters = {each.place for each in topic.letters}
    delivered = Counter(each.place.shard for each in firsts if each.place not in letters)
    parked = Counter(each.shard for each in letters)
    for each in topic.balances:
        if each.unaccounted or each.pending:
            text = f"{each.unaccounted} entries unaccounted for, {each.pending} pending in an empty queue"
            yield Finding("ledger", f"{topic.name}: {each.shard}: {text}")
        booked = (each.delivered, each.dead_lettered + each.expired)
        there = (delivered[each.shard], parked[each.shard])
        if booked != there:
            text = f"{booked} entries booked as delivered and dead-lettered, where there are {there}"
            yield Finding("ledger", f"{topic.name}: {each.shard}: {text}")


# ------------------------------------------------------------------------------------------ duplicates


def _doubled(history: History, of: Round) -> Doubled:
    topics = [each for each in history.topics if not each.is_exact]
    copies = [copy for topic in topics for copy in _copies(topic) if of.began <= copy.at <= of.ended]
    bound = of.doublings * sum(topic.shards for topic in topics) * history.in_flight_bytes
    shards = Counter(each.place.shard for each in copies)
    return Doubled(of.name, len(copies), sum(each.nbytes for each in copies), bound, dict(shards))


def _copies(topic: Topic) -> Iterator[Copy]:
    """What is in Kafka beyond the first copy of each entry."""
    known: set[Place] = set()
    for each in sorted(topic.seen, key=lambda each: (each.partition, each.offset)):
        if each.place in known:
            yield each
        known.add(each.place)


def _too_often(history: History, doubled: Sequence[Doubled]) -> Iterator[Finding]:
    for each in doubled:
        if each.nbytes > each.bound_bytes:
            of = ", ".join(f"{count} of {shard}" for shard, count in sorted(each.shards.items()))
            text = f"{each.records} copies ({of}), {each.nbytes} bytes, where {each.bound_bytes} could be in flight"
            yield Finding("duplicated", f"{each.round}: {text}")
    for topic in history.topics:
        if not topic.is_exact:
            yield from _outside(topic, history.rounds)


def _outside(topic: Topic, rounds: Sequence[Round]) -> Iterator[Finding]:
    for each in _copies(topic):
        if not any(of.began <= each.at <= of.ended for of in rounds):
            yield Finding("duplicated", f"{topic.name}: a copy of {each.event_id} came outside of every round")


def _never_tried(history: History) -> Iterator[Finding]:
    """A run whose frozen owners did nothing when they were continued has shown nothing about the fences."""
    if history.thaws and not any(history.thaws):
        yield Finding("thaw", f"none of {len(history.thaws)} thawed owners tried to send or to remove")


def _shown(place: Place) -> str:
    return f"{place.turn}/{place.offset}"
