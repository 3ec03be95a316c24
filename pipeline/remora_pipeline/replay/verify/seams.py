"""Where the shards ended that other shards took over from.

The first record of a shard names its parents and where each ended, in `remora-after`. Of many parents it tells their
generation only; `remora topic show --json` then has their ends, and which of them are a shard's parents follows from
the numbers of shards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remora.model.shard import Origin
from remora.model.topic import generation_of, number_of, own_topic_name, shard_of
from remora.policy.queues.layouts import step
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused

_PARENT = r"^([^=,]+)=([^=,]+):([0-9]{1,18})/([0-9]{1,18})\z"
_PARENTS_QUEUE = re.compile(_PARENT.replace(r"\z", r"\Z"))
_GENERATION = r"^generation=[0-9]{1,9}\z"

_LINEAGE = "shard string, incarnation string, lineage string, generation int"
_CHILD, _END = "child string, after string, family string", "family string, parent string"


Queue: TypeAlias = tuple[str, str]
"""A shard and its incarnation."""


class ShownLayout(msgspec.Struct, frozen=True):
    """A layout that a topic has."""

    generation: int
    shards: int


class ShownEnd(msgspec.Struct, frozen=True):
    """Where a queue ended that went with its layout; without an incarnation nothing was ever delivered from it."""

    queue: str
    incarnation: str
    end: str


class ShownTopic(msgspec.Struct, frozen=True):
    """What of `remora topic show --json` tells where shards ended."""

    layouts: tuple[ShownLayout, ...]
    ended: tuple[ShownEnd, ...]


class Families(NamedTuple):
    """Shards that took over from others, and these. A child's parents are those of its family.

    `children` are rows of a shard, what its first record says in `remora-after`, and its family; `ends` are rows of a
    family and of a shard with its end, as `remora-after` names them.
    """

    children: Sequence[tuple[str, str, str]]
    ends: Sequence[tuple[str, str]]


def families(topic: ShownTopic) -> Families:
    """Which ends are meant by the records that tell a generation."""
    shards = _shards(topic)
    children: list[tuple[str, str, str]] = []
    ends: list[tuple[str, str]] = []
    for old, new in pairwise(sorted(shards)):
        alike = step(shards[old], shards[new])
        gone = [each for each in topic.ended if generation_of(each.queue) == old]
        ends += [
            (f"{new}/{number_of(each.queue) % alike}", f"{each.queue}={each.incarnation}:{each.end}")
            for each in gone
            if each.incarnation
        ]
        first = own_topic_name(gone[0].queue) if gone else ""
        names = [shard_of(first, number, Origin.REMORA, new).queue for number in range(shards[new])] if gone else []
        children += [(name, f"generation={old}", f"{new}/{number % alike}") for number, name in enumerate(names)]
    return Families(children, ends)


def _shards(topic: ShownTopic) -> dict[int, int]:
    """The number of shards of each generation that is known."""
    found: dict[int, int] = {}
    for each in topic.ended:
        generation = generation_of(each.queue)
        found[generation] = found.get(generation, 0) + 1
    return found | {each.generation: each.shards for each in topic.layouts}


def families_of_file(path: Path) -> Families:
    """The same by what `remora topic show --json` wrote. Raises ReplayRefused."""
    found = families(layout.read(path, ShownTopic))
    if not found.ends:
        raise ReplayRefused(f"{path}: names no shard that has ended")
    return found


def ends_of_file(spark: SparkSession, path: Path) -> DataFrame:
    """The ends that `remora topic show --json` wrote: `child` and the `after` of its first record, with a `parent` as
    `remora-after` names one. Raises ReplayRefused."""
    found = families_of_file(path)
    children = spark.createDataFrame(list(found.children), _CHILD)
    return children.join(spark.createDataFrame(list(found.ends), _END), on="family", how="inner").select(
        "child", "after", "parent"
    )


def lineages(links: Iterable[tuple[Queue, Sequence[Queue]]]) -> dict[Queue, str]:
    """The queues that took over from each other, at once or by way of others, with a name that these share; `links` are
    a queue and its parents."""
    known: dict[Queue, Queue] = {}

    def first_of(queue: Queue) -> Queue:
        while known.setdefault(queue, queue) != queue:
            known[queue] = known[known[queue]]
            queue = known[queue]
        return queue

    for child, parents in links:
        for parent in parents:
            known[first_of(child)] = first_of(parent)
    return {queue: " ".join(first_of(queue)) for queue in known}


def lineages_of(records: DataFrame, ended: DataFrame | None) -> DataFrame | None:
    """The lineages that first records tell of: shard, incarnation, lineage, generation; None where none does."""
    told = records.select("shard", "incarnation", "after").dropna().distinct().collect()
    shown: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    if told and ended is not None:
        for child, after, parent in ended.collect():
            shown[child, after].append(parent)
    links = []
    for shard, incarnation, after in told:
        named = [_PARENTS_QUEUE.match(each) for each in shown.get((shard, after), after.split(","))]
        links.append(((shard, incarnation), [(each[1], each[2]) for each in named if each]))
    found = [(*queue, lineage, generation_of(queue[0])) for queue, lineage in lineages(links).items()]
    return records.sparkSession.createDataFrame(found, _LINEAGE) if found else None


def ends_of_parents(records: DataFrame, ended: DataFrame | None) -> DataFrame:
    """Where the shards ended that others took over from, as the first records of these say: shard, incarnation, turn,
    place, and log_us, partition, offset of the record that says so. `ended` is ends_of_file."""
    of_record = ("log_us", "partition", "offset")
    told = records.filter(F.col("after").isNotNull())
    named = told.select(F.explode(F.split("after", ",")).alias("parent"), *of_record)
    if ended is not None:
        children = told.withColumnRenamed("shard", "child")
        named = named.union(children.join(F.broadcast(ended), on=["child", "after"], how="inner").select(
            "parent", *of_record
        ))  # fmt: skip
    parts = [F.regexp_extract("parent", _PARENT, n) for n in (1, 2, 3, 4)]
    return named.filter(F.col("parent").rlike(_PARENT)).select(
        parts[0].alias("shard"),
        parts[1].alias("incarnation"),
        parts[2].cast("bigint").alias("turn"),
        parts[3].cast("bigint").alias("place"),
        *of_record,
    )


def tells_generation() -> Column:
    """Whether a record tells the generation before its shard, and no ends."""
    return F.coalesce(F.col("after").rlike(_GENERATION), F.lit(False))


def untold(records: DataFrame, ended: DataFrame | None) -> DataFrame:
    """The records that name the generation before their shard where nobody said how that ended."""
    found = records.filter(tells_generation())
    if ended is None:
        return found
    told = ended.select(F.col("child").alias("shard"), "after").distinct()
    return found.join(F.broadcast(told), on=["shard", "after"], how="left_anti")
