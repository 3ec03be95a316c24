"""Which queues a command is about, and the same done to each of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import click

from remora import app, endpoint_kinds
from remora.bounded import each_of
from remora.cli.output import print_line, run_async
from remora.cli.rows import Row, UnknownQueue, origin_option, row_named, rows_of
from remora.cli.steps import SILENT_S, told
from remora.config import Settings
from remora.engine.catalogue import topic_of
from remora.model.errors import RemoraError, ShardGone
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic
from remora.policy.ownership.not_owned import reason_to_leave
from remora.ports.store import ShardStore


class AmbiguousQueue(RemoraError):
    """radosgw and remora both have a queue of this name."""


def which_queues(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add one QUEUE or several, or in their place `--topic` or `--all`; the command gets a `Which`."""

    @click.argument("queues", nargs=-1, metavar="[QUEUE]...")
    @click.option("--topic", help="All queues of this topic.")
    @click.option("--all", "every", is_flag=True, help="All queues of radosgw's that remora would deliver.")
    @click.option(
        "--scheme",
        type=click.Choice(sorted(endpoint_kinds.SCHEMES)),
        help="With --all: only those with such endpoints.",
    )
    @origin_option
    @functools.wraps(function)
    def command(queues: tuple[str, ...], topic: str | None, every: bool, scheme: str | None, **others: Any) -> None:
        if [bool(queues), topic is not None, every].count(True) != 1:
            raise click.UsageError("name one QUEUE or several, or give --topic or --all")
        if scheme is not None and not every:
            raise click.UsageError("--scheme goes with --all")
        function(which=Which(queues, topic, others.pop("origin"), scheme), **others)

    return command


@dataclass(frozen=True, slots=True)
class Which:
    """The queues that a command is about: some, those of a topic, or all of radosgw's where neither is named.

    `scheme` leaves of all only those whose endpoint has it.
    """

    queues: tuple[str, ...]
    topic: str | None
    origin: Origin | None
    scheme: str | None = None

    async def find(self, store: ShardStore, settings: Settings) -> Sequence[Shard]:
        """These queues; `settings` say which remora would deliver.

        Raises UnknownQueue, AmbiguousQueue, UnknownTopic and AmbiguousTopic.
        """
        if self.queues:
            return [await find_queue(store, each, self.origin) for each in dict.fromkeys(self.queues)]
        if self.topic is not None:
            return (await row_named(store, self.topic, self.origin)).shards
        rows = [each for each in await rows_of(store) if each.origin is Origin.RADOSGW]
        topics = [(each, each.topic or await _topic_of(store, each)) for each in rows]
        return [
            shard
            for each, topic in topics
            if reason_to_leave(topic, endpoint_kinds.schemes(settings)) is None
            and (self.scheme is None or (topic is not None and topic.target.scheme == self.scheme))
            for shard in each.shards
        ]


async def _topic_of(store: ShardStore, row: Row) -> Topic | None:
    """The topic of a queue without metadata, which is looked into."""
    with contextlib.suppress(ShardGone):
        return await topic_of(store, row.shards[0])
    return None


Find: TypeAlias = Callable[[ShardStore], Awaitable[Sequence[Shard]]]
"""How the queues of a command are found."""


def for_each(settings: Settings, find: Find, act: Callable[[ShardStore, Shard], Awaitable[str]], waits: str) -> None:
    """Do something to each of the queues, some at a time, and print what it says; end with the first failure.

    `waits` is for standard error, where that takes long.
    """

    async def work() -> list[str | RemoraError]:
        async with app.store_of(settings) as store:
            return await each_of(await find(store), lambda shard: act(store, shard), RemoraError)

    with told(after_s=SILENT_S) as tell:
        tell(waits)
        said = run_async(work())
    for each in said:
        if isinstance(each, str):
            print_line(each)
    failures = [each for each in said if isinstance(each, RemoraError)]
    for failure in failures[1:]:
        print_line(f"remora: {failure}", err=True)
    if failures:
        raise failures[0]


async def find_queue(store: ShardStore, queue: str, origin: Origin | None) -> Shard:
    """The one registered queue of this name. Raises UnknownQueue and AmbiguousQueue."""
    found = [each for each in await store.catalog.shards() if each.queue == queue and origin in (None, each.origin)]
    if not found:
        raise UnknownQueue(f"there is no registered queue {queue!r}; `remora shard list` shows them")
    if len(found) > 1:
        raise AmbiguousQueue(f"radosgw and remora both have a queue {queue!r}: say which with --origin")
    return found[0]
