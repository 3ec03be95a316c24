"""The plan of a replay, which every task gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remora.model.words import several
from remora_pipeline.replay.loop import share
from remora_pipeline.replay.run.sender import TaskLimits
from remora_pipeline.replay.run.targets import OpenTarget
from remora_pipeline.replay.run.targets.ingest import IngestAddress, Records, check_ingest, ingest_target
from remora_pipeline.replay.run.targets.null import NullTarget

if TYPE_CHECKING:
    from remora_pipeline.replay.run.targets.s3 import Gateway

INGEST, S3, NULL = "ingest", "s3", "null"
TARGETS = (INGEST, S3, NULL)


@dataclass(frozen=True, slots=True)
class TargetSecrets:
    """What opens a target; never shown and never written."""

    token: str = field(default="", repr=False)
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay, or the resumption of one. `run` is its directory, on a file system that all tasks reach.

    `lead_s` is how long after the tasks have met the first event is due: long enough for the slowest of them to hear
    of it. `is_numbered` says whether the topic numbers its events, and `kafka_topic` where they go in Kafka, where that
    is known. `closed_loop` is how many requests all tasks together may have under way; None where each has its `limits`
    alone.
    """

    run: str
    run_id: str
    started_us: int
    target: str
    address: str
    topic: str
    speed: float
    batch: int = 500
    size_cap: int = 1024
    region: str = "default"
    ca_file: str | None = None
    limits: TaskLimits = field(default_factory=TaskLimits)
    lead_s: float = 2.0
    is_numbered: bool | None = None
    kafka_topic: str = ""
    closed_loop: int | None = None
    credentials: TargetSecrets = field(default_factory=TargetSecrets)

    def of_part(self, part: int, parts: int) -> ReplayPlan:
        """The plan for one of so many tasks, with its share of the requests under way."""
        if self.closed_loop is None:
            return self
        return replace(self, limits=replace(self.limits, concurrency=share(self.closed_loop, parts, part)))


@asynccontextmanager
async def opened(plan: ReplayPlan) -> AsyncIterator[OpenTarget]:
    """The target of a plan, for one task."""
    if plan.target == NULL:
        yield NullTarget(plan.batch)
    elif plan.target == INGEST:
        async with ingest_target(
            _server(plan),
            plan.topic,
            Records(plan.run_id, plan.started_us),
            batch=plan.batch,
            concurrency=plan.limits.concurrency,
        ) as target:
            yield target
    else:
        from remora_pipeline.replay.run.targets.s3 import s3_target  # its libraries take a second to load

        async with s3_target(_gateway(plan), plan.run_id, plan.size_cap, plan.limits.concurrency) as target:
            yield target


async def checked(
    plan: ReplayPlan, buckets: Iterable[str], *, copies: bool, create_buckets: bool, is_dry: bool = False
) -> tuple[ReplayPlan, list[str]]:
    """The plan with what the target says of itself, when it takes what is going to be sent, and the buckets that were
    made, or would be where this `is_dry`.

    Raises ReplayRefused where the target does not take it.
    """
    if plan.target == INGEST:
        found = await check_ingest(_server(plan), plan.topic)
        return replace(plan, is_numbered=found.is_numbered, kafka_topic=found.kafka_topic), []
    if plan.target == S3:
        from remora_pipeline.replay.run.targets.s3 import check_s3

        made = await check_s3(_gateway(plan), plan.topic, buckets, copies=copies, create=create_buckets, is_dry=is_dry)
        return plan, made
    return plan, []


def taken(plan: ReplayPlan, buckets: Collection[str], missing: Collection[str]) -> str:
    """What the target of a plan said when it was `checked`, in a sentence; these of the buckets are missing."""
    if plan.target == INGEST:
        token = "the token and " if plan.credentials.token else ""
        where = f", which goes to {plan.kafka_topic} in Kafka" if plan.kafka_topic else ""
        return f"it answers, and takes {token}the topic {plan.topic}{where}"
    if plan.target == S3:
        there = len(set(buckets).difference(missing))
        told = f"it answers, takes the key, and has {several(there, 'bucket')} that notify {plan.topic}"
        return f"{told}; would make {', '.join(missing)}" if missing else told
    return "nobody is asked"


def _server(plan: ReplayPlan) -> IngestAddress:
    return IngestAddress(plan.address, plan.credentials.token, plan.ca_file)


def _gateway(plan: ReplayPlan) -> Gateway:
    from remora_pipeline.replay.run.targets.s3 import Gateway

    given = plan.credentials
    return Gateway(plan.address, plan.region, given.access_key, given.secret_key, given.session_token)
