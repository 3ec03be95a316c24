"""The checker is proven: a good topic passes, and each single change of it gets its exact verdict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.sql import SparkSession

from remora.replay.layout import RunDirectory
from remora.replay.results import PASS, Verdict
from remora.replay.verify.job import Question, Window, verify_run
from remora.replay.verify.judgement import Rules
from remora.replay.verify.kafka import UNCOMMITTED, Patience, Source
from support.kafka import Kafka
from support.replayed import Journalled, Rec, events, fill, good, new_topic, prepare, replayed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNT = 120
TRACE = events(COUNT)

WRONG = (
    "lost", "ghosts", "altered", "foreign", "malformed", "duplicates", "resent", "inversions", "keys_inverted",
    "max_depth", "keys_in_several_partitions", "final_state_wrong", "chain_gaps", "chain_gaps_explained", "unchained",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A replay of which everything was acked in time."""
    folder = tmp_path_factory.mktemp("good")
    return replayed(folder / "run", prepare(folder / "prepared", TRACE), TRACE, Journalled())


def question(kafka: Kafka, topic: str, **options: Any) -> Question:
    """What is asked when nothing else is said."""
    isolation = options.get("isolation", UNCOMMITTED)
    return Question(
        source=Source(kafka.address, topic, isolation, {}),
        window=options.get("window", Window(None, None, 60_000_000)),
        patience=Patience(0, 0, 0),
        recalled=options.get("recalled"),
        letters=options.get("letters"),
        rules=Rules(options.get("duplicates", "count"), "fail", 5_000, 0.1),
    )


def filled(kafka: Kafka, recs: list[Rec]) -> str:
    """A topic with these records."""

    async def work() -> str:
        topic = await new_topic(kafka.address)
        await fill(kafka.address, topic, recs)
        return topic

    return asyncio.run(work())


def wrong(verdict: Verdict) -> dict[str, int]:
    """The counts of what is wrong that are not 0."""
    return {name: verdict.counts[name] for name in WRONG if verdict.counts.get(name)}


def test_a_good_topic(spark: SparkSession, kafka: Kafka, run: RunDirectory) -> None:
    topic = filled(kafka, good(TRACE))
    found = verify_run(spark, run, question(kafka, topic))
    assert found.verdict.verdict == PASS, found.verdict.reasons
    assert wrong(found.verdict) == {}
