"""The topics that commands speak of: found in the store, picked by name, and looked at with all their shards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from remora.bounded import each_of
from remora.cli.output import print_line
from remora.engine.catalogue import topic_among
from remora.model.errors import RemoraError, ShardGone, StoreDamaged
from remora.model.exits import Exit
from remora.model.ledger import Balance
from remora.model.shard import Origin, Shard, ShardStats
from remora.model.topic import Topic, TopicHold
from remora.policy.admission.holds import in_force
from remora.policy.ownership.not_owned import Schemes, reason_to_leave
from remora.ports.store import ShardStore

MOST_NAMED = 20


class UnknownQueue(RemoraError):
    """There is no registered queue of this name."""


class UnknownTopic(RemoraError):
    """There is no queue of a topic of this name."""


class AmbiguousTopic(RemoraError):
    """Several topics have this name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A topic with its queues, in the order of their numbers; without metadata it is known by its queue alone."""

    label: str
    topic: Topic | None
    shards: tuple[Shard, ...]

    @property
    def origin(self) -> Origin:
        """Who made it."""
        return self.topic.origin if self.topic else self.shards[0].origin

    @property
    def open_shards(self) -> int:
        """How many of its queues take events: those of a former layout do not."""
        return self.topic.shards if self.topic is not None and self.topic.generation else len(self.shards)

    def reason(self, schemes: Schemes) -> str | None:
        """Why remora does not deliver it where it delivers to these schemes; None when it does."""
        return reason_to_leave(self.topic, schemes) if self.topic else None

    def delivered_by(self, schemes: Schemes) -> str:
        """Whose task it is: remora's, or that of the radosgw which made it."""
        if self.reason(schemes) is None:
            return "remora"
        return "nobody" if self.origin is Origin.REMORA else "radosgw"


def origin_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--origin`, for names that radosgw and remora both use; the command gets an Origin or None."""
    return click.option(
        "--origin",
        type=click.Choice([str(each) for each in Origin]),
        callback=lambda _context, _option, value: None if value is None else Origin(value),
        help="Which one, where radosgw and remora each have one of this name.",
    )(function)


async def rows_of(store: ShardStore) -> list[Row]:
    """Every topic, and every queue whose topic is unknown, in the order of their names."""
    shards = await store.catalog.shards()
    topics = await store.catalog.topics()
    registered = frozenset(shards)
    rows = [
        Row(known.label, known, tuple(each for each in known.all_shards() if each in registered))
        for known in topics.values()
    ]
    rows += [Row(shard.queue, None, (shard,)) for shard in shards if topic_among(topics, shard) is None]
    return sorted(rows, key=lambda row: (row.label, row.origin))


def pick(rows: Sequence[Row], name: str, origin: Origin | None = None) -> Row:
    """The one row of this name: its label, else its topic's name, else a queue's. Raises when it is not just one."""
    candidates = [row for row in rows if origin in (None, row.origin)]
    names_of: tuple[Callable[[Row], Sequence[str]], ...] = (
        lambda row: [row.label],
        lambda row: [row.topic.name] if row.topic else [],
        lambda row: [shard.queue for shard in row.shards],
    )
    for names in names_of:
        found = [row for row in candidates if name in names(row)]
        if len(found) == 1:
            return found[0]
        if found:
            raise AmbiguousTopic(_which(name, found))
    raise UnknownTopic(f"there is no persistent topic {name!r}; known: {_some(row.label for row in candidates)}")


def _which(name: str, found: Sequence[Row]) -> str:
    if len({row.origin for row in found}) > 1:
        return f"radosgw and remora both have a topic {name!r}: say which with --origin radosgw or --origin remora"
    return f"there are several topics {name!r}: {_some(row.label for row in found)}; say which"


def _some(names: Iterable[str]) -> str:
    """Names for a message; a thousand of them would hide it."""
    known = list(names)
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return (", ".join(known[:MOST_NAMED]) or "none") + more


async def row_named(store: ShardStore, name: str, origin: Origin | None) -> Row:
    """The one row of this name. Where a part of the store is damaged, it may be missing for that."""
    try:
        return pick(await rows_of(store), name, origin)
    except UnknownTopic as exc:
        if not store.damaged:
            raise
        raise UnknownTopic(f"{exc}; but {'; '.join(store.damaged.values())}") from exc


async def look_at(store: ShardStore, shards: Iterable[Shard], *, exact: bool = False) -> dict[Shard, ShardStats]:
    """Figures of queues, looked at some at a time; of those that are gone meanwhile or damaged there are none."""
    chosen = list(shards)
    found = await each_of(chosen, lambda shard: store.inspection.stats(shard, exact=exact), (ShardGone, StoreDamaged))
    return {shard: each for shard, each in zip(chosen, found, strict=True) if isinstance(each, ShardStats)}


def complain(reasons: Collection[str]) -> None:
    """Say why what was printed is not everything, and end with a failure where there is a reason."""
    for each in reasons:
        print_line(f"remora: {each}", err=True)
    if reasons:
        sys.exit(Exit.FAILURE)


async def hold_of(store: ShardStore, topic: Topic) -> TopicHold | None:
    """The hold of a topic that is in force now; None where there is none."""
    first = topic.first_shard
    return in_force(await store.holds.held(), {first: topic}, time.time()).get(first)


async def balances(store: ShardStore, shards: Iterable[Shard]) -> dict[Shard, Balance]:
    """The balances of queues, some at a time; of those that are gone meanwhile or damaged there are none."""
    chosen = list(shards)
    found = await each_of(chosen, store.ledger.balance, (ShardGone, StoreDamaged))
    return {shard: each for shard, each in zip(chosen, found, strict=True) if isinstance(each, Balance)}
