"""The question of a verification, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F

from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.results import Series, TopicVerdict
from remora_pipeline.replay.verify.judgement import VerdictRules
from remora_pipeline.replay.verify.kafka import FreezeWait, Frozen


@dataclass(frozen=True)
class JudgedWindow:
    """What of a topic is judged, by Kafka's time stamps; None is without a bound. Records within `edge_us` before and
    behind it are read as well, for what they tell of their neighbours."""

    from_us: int | None
    to_us: int | None
    edge_us: int

    def opened_by(self, since_us: int | None) -> JudgedWindow:
        """The window, from then on where it has no beginning of its own."""
        return self if self.from_us is not None else replace(self, from_us=since_us)

    def holds(self) -> Column:
        """Whether a record is judged."""
        since = F.lit(True) if self.from_us is None else F.col("log_us") >= self.from_us
        return since if self.to_us is None else since & (F.col("log_us") < self.to_us)


@dataclass(frozen=True)
class Question:
    """The question of a verification. `recalled` are the offsets of an earlier verdict, else they are frozen now.
    `letters` and `ended` are files of remora's commands, or the former a topic (chain, seams). `draws` says whether the
    series is wanted too. `tell` is given the name of each step as it begins."""

    source: KafkaSource
    window: JudgedWindow
    patience: FreezeWait
    recalled: Frozen | None
    letters: str | None
    rules: VerdictRules
    ended: Path | None = None
    draws: bool = True
    tell: Callable[[str], None] = lambda step: None


@dataclass(frozen=True)
class Findings:
    """The verdict, what the report draws where that was wanted, and whether records came while the ends were fixed."""

    verdict: TopicVerdict
    series: Series | None
    is_quiet: bool
