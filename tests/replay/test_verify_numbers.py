"""The numbers of a topic: each damage of one number is noticed, and told from the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.verify import chain, numbers
from remora_pipeline.replay.verify.records import NO_NUMBER, records
from support.replayed import INCARNATION, SHARDS, Rec, events, good, numbered, position

pytestmark = pytest.mark.spark

COUNT = 24
COLUMNS = (
    "key binary, value binary, partition int, offset long, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
"""As Spark's connector reads records."""


@dataclass(frozen=True)
class Wrong:
    """How many of each kind are noticed."""

    gaps: int = 0
    explained: int = 0
    repeated: int = 0
    torn: int = 0
    early: int = 0
    malformed: int = 0


@dataclass(frozen=True)
class Case:
    """A damage, the entries that are dead letters (each with its number, or none), and what is noticed."""

    change: Callable[[list[Rec]], list[Rec]]
    wrong: Wrong
    letters: tuple[tuple[int, bool], ...] = ()


def without(*at: int) -> Callable[[list[Rec]], list[Rec]]:
    return lambda recs: [rec for i, rec in enumerate(recs) if i not in at]


def with_number(at: int, number: int | str | None, *, of_copy: bool = False) -> Callable[[list[Rec]], list[Rec]]:
    """Another number in one record, or in a copy of it that comes later."""

    def changed(recs: list[Rec]) -> list[Rec]:
        topic_id = recs[0].header("remora-seq").decode().partition(":")[0]
        text = f"{topic_id}:{number}" if isinstance(number, int) else number
        other = recs[at].with_header("remora-seq", None if text is None else text.encode())
        return [*recs, other] if of_copy else [*recs[:at], other, *recs[at + 1 :]]

    return changed


def swapped(a: int, b: int) -> Callable[[list[Rec]], list[Rec]]:
    """Two entries have each other's numbers."""
    return lambda recs: with_number(b, a + 1)(with_number(a, b + 1)(recs))


def of_shard(number: int) -> list[int]:
    return [i for i, rec in enumerate(WHOLE) if rec.header("remora-shard") == b"photos.%d" % number]


WHOLE = good(events(COUNT))
LAST = COUNT - 1
OTHER, ONE = of_shard(0), of_shard(1)
HOLES = sum(i > OTHER[0] and i - 1 in ONE for i in OTHER)
"""The entries of both shards, and how many gaps those of one leave behind the first record of the other."""

CASES = {
    "nothing": Case(lambda recs: recs, Wrong()),
    "other order in Kafka": Case(lambda recs: recs[::-1], Wrong()),
    "copies": Case(lambda recs: [*recs, *recs[3:9]], Wrong()),
    "one missing": Case(without(10), Wrong(gaps=1)),
    "three missing in two places": Case(without(10, 11, 17), Wrong(gaps=2)),
    "a whole shard missing": Case(without(*ONE), Wrong(gaps=HOLES)),
    "one a dead letter": Case(without(10), Wrong(gaps=1, explained=1), ((10, True),)),
    "two, and one of them a dead letter": Case(without(10, 11), Wrong(gaps=1), ((10, True),)),
    "one a corrupt letter": Case(without(10), Wrong(gaps=1), ((10, False),)),
    "the first and the last missing": Case(without(0, LAST), Wrong()),
    "a number twice": Case(with_number(12, 15), Wrong(gaps=1, repeated=1)),
    "a copy with another number": Case(with_number(12, 99, of_copy=True), Wrong(torn=1, gaps=1, early=1)),
    "a copy without a number": Case(with_number(12, None, of_copy=True), Wrong(torn=1)),
    "one without a number": Case(with_number(12, None), Wrong(gaps=1)),
    "one with a number that is none": Case(with_number(12, "t:x"), Wrong(gaps=1, malformed=1)),
    "one with a number of another topic": Case(with_number(12, "other:13"), Wrong(gaps=1)),
    "two of a shard swapped": Case(swapped(ONE[3], ONE[4]), Wrong(early=1)),
}
IDS = {f"t{i}": name for i, name in enumerate(CASES)}


@dataclass(frozen=True)
class Found:
    """By the name of a case what was noticed; and how many letters name no number."""

    wrong: dict[str, Wrong]
    nameless: int


def rows(recs: list[Rec]) -> list[tuple[object, ...]]:
    at = datetime.fromtimestamp(0, UTC)
    return [(rec.key, rec.value, rec.partition, i, at, 0, list(rec.headers)) for i, rec in enumerate(recs)]


def letters_of(topic_id: str, case: Case) -> list[dict[str, object]]:
    """As `remora dlq list --json` writes them."""
    nths = {i: nth for shard in range(SHARDS) for nth, i in enumerate(of_shard(shard))}
    return [
        {
            "queue": f"{topic_id}.{WHOLE[i].header('remora-shard').decode()}",
            "incarnation": INCARNATION,
            "position": str(position(nths[i])),
            "next_position": str(position(nths[i] + 1)),
            "sequence": f"{topic_id}:{i + 1}" if is_named else None,
        }
        for i, is_named in case.letters
    ]


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All cases at once, each with a topic and queues of its own."""
    recs: list[Rec] = []
    letters: list[dict[str, object]] = []
    for topic_id, name in IDS.items():
        for rec in CASES[name].change(numbered(WHOLE, topic_id)):
            shard = f"{topic_id}.{rec.header('remora-shard').decode()}"
            recs.append(rec.with_header("remora-shard", shard.encode()))
        letters += letters_of(topic_id, CASES[name])
    file = tmp_path_factory.mktemp("letters") / "letters.json"
    file.write_text(json.dumps(letters))
    read = records(spark.createDataFrame(rows([replace(rec, partition=0) for rec in recs]), COLUMNS)).cache()
    return _found(read, chain.letters_of_file(spark, file))


def _found(read: DataFrame, letters: DataFrame) -> Found:
    every = numbers.entries(read, letters).cache()
    gaps = chain.gaps(numbers.breaks(read, letters)).cache()

    def by_topic(rows: DataFrame, name: str = "shard") -> dict[str, int]:
        counted = rows.groupBy(F.substring_index(name, ".", 1).alias("id")).agg(F.count("*").alias("n"))
        return {row.id: row.n for row in counted.collect()}

    counts = [
        by_topic(gaps),
        by_topic(gaps.filter("explained")),
        by_topic(numbers.repeated(every), "sequence"),
        by_topic(every.filter("is_torn")),
        by_topic(every.filter("is_early")),
        by_topic(read.filter(F.col("problem") == NO_NUMBER)),
    ]
    wrong = {name: Wrong(*(each.get(topic_id, 0) for each in counts)) for topic_id, name in IDS.items()}
    return Found(wrong, numbers.without_number(letters, every))


@pytest.mark.guarantee("order-over-all-shards")
@pytest.mark.parametrize("name", CASES)
def test_each_damage_of_a_number_is_noticed(found: Found, name: str) -> None:
    """One damage of a topic's numbers, or none, gives the counts of that damage and no others."""
    assert found.wrong[name] == CASES[name].wrong


def test_corrupt_letters_name_no_number(found: Found) -> None:
    """They are counted, as each may explain a gap."""
    assert found.nameless == 1
