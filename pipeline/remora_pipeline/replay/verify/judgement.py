"""The verdict that follows from counts: rules only, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from remora.model.words import agreeing
from remora_pipeline.replay.results import FAIL, INVALID, PASS, Percentiles

_MEASURABLE_GAP_US = 20_000
"""Where events are closer together than this, a tenth of their mean gap is less than any generator can keep."""

_WRONG = {
    "lost": "{n} [event was|events were] acknowledged and [is|are] not in Kafka",
    "altered": "{n} [record names|records name] an event of this run and [disagrees|disagree] with it",
    "foreign": "{n} [record is|records are] of no event of this run",
    "malformed": "{n} [record|records] cannot be read",
    "ghosts": "{n} [event is|events are] in Kafka that [was|were] refused or never sent",
    "inversions": "{n} [record comes|records come] behind later ones of [its|their] key",
    "keys_in_several_partitions": "{n} [key lies|keys lie] in several partitions, where order means nothing",
    "keys_misplaced": "{n} [key lies|keys lie] in another partition than [its|their] own",
    "keys_in_several_shards": "{n} [key lies|keys lie] in several shards of one topic, where a key has only one",
    "positions_inverted": "{n} [record tells|records tell] a position before that of one in front in [its|their] queue",
    "without_position": "{n} [record has|records have] no remora-shard, remora-pos and remora-next, as all of a run do",
    "without_event_id": "{n} [record has|records have] no remora-event-id, as all of a run do",
    "without_number": "{n} [record has|records have] no remora-seq, as all of the topic do",
    "of_other_topics": "{n} [record names|records name] a shard of another topic than all of the run went to",
    "final_state_wrong": "{n} [key does|keys do] not end with [its|their] last acknowledged event",
    "numbers_repeated": "{n} [number is|numbers are] of several entries",
    "numbers_torn": "{n} [entry has|entries have] copies that do not agree on [its|their] number",
    "numbers_inverted": "{n} [entry has|entries have] no larger number than the one before in [its|their] queue",
}

_UNEXPLAINED = "{{n}} [gap|gaps] in the {} [has|have] no dead letters that explain [it|them]"
_OUTSIDE = "{n} acknowledged [event is|events are] in Kafka outside the window of times, which --from and --to choose"
_UNDECIDED = "{n} acknowledged [event lies|events lie] in Kafka behind a transaction that is open"


@dataclass(frozen=True)
class VerdictRules:
    """What is counted and what fails; how late a generator may be: its p99, and the share of the events' mean gap."""

    duplicates: Literal["fail", "count"]
    foreign: Literal["fail", "count"]
    lateness_us: int
    lateness_share: float


@dataclass(frozen=True)
class Judgement:
    """The verdict and why."""

    verdict: Literal["PASS", "FAIL", "INVALID"]
    reasons: tuple[str, ...]


def judge(
    counts: Mapping[str, int], lateness: Percentiles | None, mean_gap_us: float, rules: VerdictRules
) -> Judgement:
    """What follows from the counts of results.Verdict. What is wrong outweighs what was not proven.

    `lateness` is None where there was no schedule; `mean_gap_us` is that between two events of it.
    """
    wrong = tuple(_wrong(counts, rules))
    if wrong:
        return Judgement(FAIL, (*wrong, *_unproven(counts, lateness, mean_gap_us, rules)))
    unproven = tuple(_unproven(counts, lateness, mean_gap_us, rules))
    return Judgement(INVALID, unproven) if unproven else Judgement(PASS, ())


def _wrong(counts: Mapping[str, int], rules: VerdictRules) -> list[str]:
    told = [
        agreeing(counts[name], text)
        for name, text in _WRONG.items()
        if counts.get(name) and not (name == "foreign" and rules.foreign == "count")
    ]
    if (copies := counts["duplicates"] - counts["resent"]) and rules.duplicates == "fail":
        told.append(agreeing(copies, "{n} [record is a copy|records are copies]"))
    if unexplained := counts["chain_gaps"] - counts["chain_gaps_explained"]:
        told.append(agreeing(unexplained, _UNEXPLAINED.format("chain of positions")))
    if missing := counts.get("number_gaps", 0) - counts.get("number_gaps_explained", 0):
        told.append(agreeing(missing, _UNEXPLAINED.format("numbers")))
    return told


def _unproven(
    counts: Mapping[str, int], lateness: Percentiles | None, mean_gap_us: float, rules: VerdictRules
) -> list[str]:
    told = []
    if "acked" in counts:
        if not counts["acked"]:
            told.append("no event was acknowledged, so nothing had to arrive")
        if waiting := counts["in_trace"] - counts["offered"]:
            told.append(agreeing(waiting, "{n} [event|events] never had [its|their] turn: the replay was cut short"))
        if displaced := counts["out_of_window"]:
            told.append(agreeing(displaced, _OUTSIDE))
        if undecided := counts.get("undecided"):
            told.append(agreeing(undecided, _UNDECIDED))
    elif not counts["in_kafka"]:
        told.append("there are no records to judge")
    elif counts["unchained"] == counts["in_kafka"]:
        told.append("no record tells its position, so that no gap could be seen")
    if lateness is not None and (most := _most_lateness(mean_gap_us, rules)) < lateness.p99_us:
        late = f"p99 of sent - due is {lateness.p99_us / 1000:.3f} ms, more than {most / 1000:.3f} ms"
        told.append(f"the generator was late: {late}")
    return told


def _most_lateness(mean_gap_us: float, rules: VerdictRules) -> float:
    if mean_gap_us < _MEASURABLE_GAP_US:
        return rules.lateness_us
    return min(rules.lateness_us, mean_gap_us * rules.lateness_share)
