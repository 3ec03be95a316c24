"""Questions to `remora replay verify`, and what is wrong by its answers."""

from __future__ import annotations

import asyncio
from typing import Any

from devkit.clusters.kafka import Kafka
from remora_pipeline.replay.kafka_source import UNCOMMITTED, KafkaSource
from remora_pipeline.replay.results import TopicVerdict
from remora_pipeline.replay.verify.judgement import VerdictRules
from remora_pipeline.replay.verify.kafka import FreezeWait
from remora_pipeline.replay.verify.question import JudgedWindow, Question
from support.replayed import Rec, fill, new_topic

WRONG = (
    "lost", "ghosts", "altered", "foreign", "malformed", "duplicates", "resent", "inversions", "keys_inverted",
    "max_depth", "keys_in_several_partitions", "keys_misplaced", "out_of_window",
    "final_state_wrong", "chain_gaps", "chain_gaps_explained", "unchained",
    "number_gaps", "number_gaps_explained", "numbers_repeated", "numbers_torn", "numbers_inverted",
    "sequencer_inversions", "outside", "keys_in_several_shards", "positions_inverted", "without_position",
    "without_event_id", "without_number", "of_other_topics", "undecided", "ends_untold",
)  # fmt: skip


def question(kafka: Kafka, topic: str, **options: Any) -> Question:
    """What is asked when nothing else is said."""
    return Question(
        source=KafkaSource(kafka.address, topic, options.get("isolation", UNCOMMITTED), {}),
        window=JudgedWindow(None, None, 60_000_000),
        patience=FreezeWait(0, 0, 0),
        recalled=options.get("recalled"),
        letters=options.get("letters"),
        rules=VerdictRules(options.get("duplicates", "count"), "fail", 5_000, 0.1),
        ended=options.get("ended"),
        draws=options.get("draws", False),
    )


def filled(kafka: Kafka, recs: list[Rec]) -> str:
    """A topic with these records."""

    async def work() -> str:
        topic = await new_topic(kafka.address)
        await fill(kafka.address, topic, recs)
        return topic

    return asyncio.run(work())


def wrong(verdict: TopicVerdict) -> dict[str, int]:
    """The counts of what is wrong that are not 0."""
    return {name: verdict.counts[name] for name in WRONG if verdict.counts.get(name)}
