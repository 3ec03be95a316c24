"""What the counts of a verdict are called, and which of them ought to be nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from remora_pipeline.replay.report.texts import visible
from remora_pipeline.replay.results import TopicVerdict

Tone = Literal["plain", "note", "wrong"]


@dataclass(frozen=True)
class Count:
    """A number of a verdict, for people."""

    name: str
    label: str
    meaning: str
    tone: Tone = "plain"
    needs: str = ""
    """Where neither this count nor the one of that name is anything it stands at the end of the page."""


_NUMBERS, _ITSELF = "numbered", "itself"

GROUPS: tuple[tuple[str, tuple[Count, ...]], ...] = (
    (
        "Sent",
        (
            Count("in_trace", "in trace", "events that were prepared"),
            Count("offered", "offered", "had their turn"),
            Count("sent", "sent", "in a request, at least once"),
            Count("acked", "acked", "answered for: must be in Kafka"),
            Count("rejected", "rejected", "refused for good: must not be there", "note"),
            Count("unknown", "unknown", "sent, and no answer: may be there", "note"),
            Count("dropped", "dropped", "never sent, the window was full", "note"),
            Count(
                "limited", "waits for a limit", "answered 429, and sent again when it asked for that", "note", _ITSELF
            ),
            Count("limited_us", "waited for a limit (µs)", "by all requests together", "note", "limited"),
        ),
    ),
    (
        "In Kafka",
        (
            Count("in_kafka", "records", "judged, between fixed offsets"),
            Count("distinct", "distinct", "events among them"),
            Count("lost", "lost", "acked, and not in Kafka", "wrong"),
            Count(
                "out_of_window", "outside the window", "acked, and in Kafka with a time stamp of another time", "note"
            ),
            Count("undecided", "undecided", "in Kafka behind a transaction that is open", "note", _ITSELF),
            Count("duplicates", "duplicates", "delivered more than once", "note"),
            Count("resent", "resent", "of these stored twice, as their request was sent twice", "note"),
            Count("ghosts", "ghosts", "rejected or never sent, and in Kafka", "wrong"),
            Count("altered", "altered", "disagree with what was sent", "wrong"),
            Count("foreign", "foreign", "of no event of this run", "wrong"),
            Count("malformed", "malformed", "no notification, or positions, ids and key that contradict", "wrong"),
            Count("outside", "outside", "of another time, read for their neighbours only"),
        ),
    ),
    (
        "Order and chain",
        (
            Count("inversions", "inversions", "behind a later event of their key", "wrong"),
            Count("keys_inverted", "keys inverted", "keys with inversions", "wrong"),
            Count("max_depth", "greatest depth", "how far an event fell behind", "wrong"),
            Count("keys_in_several_partitions", "split keys", "keys in several partitions", "wrong"),
            Count("keys_misplaced", "misplaced keys", "keys in another partition than their own", "wrong"),
            Count("keys_in_several_shards", "divided keys", "keys in several shards of a topic", "wrong", _ITSELF),
            Count("positions_inverted", "positions inverted", "before one in front of them", "wrong", _ITSELF),
            Count("without_position", "without position", "no remora-shard, -pos and -next", "wrong", _ITSELF),
            Count("without_event_id", "without event id", "no remora-event-id", "wrong", _ITSELF),
            Count("without_number", "without number", "no remora-seq", "wrong", _ITSELF),
            Count("of_other_topics", "of other topics", "their shard is none of the run's topic", "wrong", _ITSELF),
            Count("final_state_wrong", "wrong at the end", "keys whose last event is not the last one sent", "wrong"),
            Count("sequencer_inversions", "sequencer inversions", "by the gateways' clocks", "note"),
            Count("chain_gaps", "chain gaps", "records whose predecessor is missing, or copies that disagree", "wrong"),
            Count("chain_gaps_explained", "of these explained", "by dead letters"),
            Count("unchained", "unchained", "records that tell no position"),
            Count("ends_untold", "ends untold", "shards whose beginning tells a generation only", "note", _ITSELF),
            Count("numbered", "numbered", "records that tell a number of their topic", needs=_NUMBERS),
            Count("number_gaps", "number gaps", "numbers that no record has", "wrong", _NUMBERS),
            Count("number_gaps_explained", "of these explained", "by dead letters", needs=_NUMBERS),
            Count("numbers_repeated", "numbers repeated", "numbers of several entries", "wrong", _NUMBERS),
            Count("numbers_torn", "numbers torn", "entries whose copies do not agree on it", "wrong", _NUMBERS),
            Count("numbers_inverted", "numbers inverted", "entries not above the one before them", "wrong", _NUMBERS),
        ),
    ),
)


def groups(counts: Mapping[str, int]) -> list[tuple[str, list[Count]]]:
    """The counts that there are, in the order in which they are read; those that have no words yet come last."""
    known = {each.name for _, listed in GROUPS for each in listed}
    found = [(title, [each for each in listed if each.name in counts]) for title, listed in GROUPS]
    others = [Count(name, visible(name.replace("_", " ")), "") for name in sorted(counts) if name not in known]
    return [(title, listed) for title, listed in [*found, ("Other", others)] if listed]


def is_used(count: Count, runs: Iterable[Mapping[str, int]]) -> bool:
    """Whether a count belongs in front of the pictures: what a run does not use is nothing but rows of zeros there."""
    return not count.needs or any(counts.get(name) for counts in runs for name in (count.name, count.needs))


def tone(count: Count, verdict: TopicVerdict) -> Tone:
    """How a count is to be looked at in this verdict: what is nothing, and what must not be nothing, is plain."""
    counts = verdict.counts
    if not counts.get(count.name):
        return "plain"
    match count.name:
        case "duplicates" if verdict.options.get("duplicates") == "fail":
            return "wrong" if counts["duplicates"] > counts.get("resent", 0) else "note"
        case "foreign" if verdict.options.get("foreign") == "count":
            return "note"
        case "chain_gaps" | "number_gaps" if counts[count.name] == counts.get(f"{count.name}_explained"):
            return "note"
    return count.tone
