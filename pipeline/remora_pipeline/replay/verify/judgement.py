"""The verdict that follows from counts: rules only, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from remora_pipeline.replay.results import FAIL, INVALID, PASS, Percentiles

_MEASURABLE_GAP_US = 20_000
"""Where events are closer together than this, a tenth of their mean gap is less than any generator can keep."""

_WRONG = {
    "lost": "{n} events were acknowledged and are not in Kafka",
    "altered": "{n} records name an event of this run and disagree with it",
    "foreign": "{n} records are of no event of this run",
    "malformed": "{n} records cannot be read",
    "ghosts": "{n} events are in Kafka that were refused or never sent",
    "inversions": "{n} records come behind later ones of their key",
    "keys_in_several_partitions": "{n} keys lie in several partitions, where their order means nothing",
    "keys_misplaced": "{n} keys lie in another partition than their own",
    "keys_in_several_shards": "{n} keys lie in several shards of one topic, which each of them has only one of",
    "positions_inverted": "{n} records tell a position before that of a record of their queue in front of them",
    "without_position": "{n} records have no remora-shard, remora-pos and remora-next, which each of a run's has",
    "without_event_id": "{n} records have no remora-event-id, which each of a run's has",
    "without_number": "{n} records have no remora-seq, which each of the topic's has",
    "final_state_wrong": "{n} keys do not end with their last acknowledged event",
    "numbers_repeated": "{n} numbers are of several entries",
    "numbers_torn": "{n} entries have copies that do not agree on their number",
    "numbers_inverted": "{n} entries have no larger number than the one before them in their queue",
}


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
        text.format(n=counts[name])
        for name, text in _WRONG.items()
        if counts.get(name) and not (name == "foreign" and rules.foreign == "count")
    ]
    if (copies := counts["duplicates"] - counts["resent"]) and rules.duplicates == "fail":
        told.append(f"{copies} records are copies")
    if unexplained := counts["chain_gaps"] - counts["chain_gaps_explained"]:
        told.append(f"{unexplained} gaps in the chain of positions have no dead letters that explain them")
    if missing := counts.get("number_gaps", 0) - counts.get("number_gaps_explained", 0):
        told.append(f"{missing} gaps in the numbers have no dead letters that explain them")
    return told


def _unproven(
    counts: Mapping[str, int], lateness: Percentiles | None, mean_gap_us: float, rules: VerdictRules
) -> list[str]:
    told = []
    if "acked" in counts:
        if not counts["acked"]:
            told.append("no event was acknowledged, so nothing had to arrive")
        if waiting := counts["in_trace"] - counts["offered"]:
            told.append(f"{waiting} events never had their turn: the replay was cut short")
        if displaced := counts["out_of_window"]:
            stamps = "by their time stamps, which --from and --to choose"
            told.append(f"{displaced} acknowledged events are in Kafka outside the window, {stamps}")
        if undecided := counts.get("undecided"):
            told.append(f"{undecided} acknowledged events lie in Kafka behind a transaction that is open")
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
