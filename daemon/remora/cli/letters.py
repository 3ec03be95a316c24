"""Which dead letters a command is about: the options for that, and finding them."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from remora.cli.attributes import DURATION
from remora.cli.rows import Row, UnknownQueue, UnknownTopic, rows_of
from remora.engine.redriving import letter_key
from remora.model.record import CAUSES, DeadLetter
from remora.model.topic import MOST_SHARDS
from remora.policy.delivery.letters import Selection
from remora.ports.store import ShardStore


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter on dead letters; `limit` is the most that match, from the first on."""

    topic: str | None = None
    queue: str | None = None
    causes: tuple[str, ...] = ()
    key: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    limit: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing was asked for in particular."""
        return self == Filter()

    def of_queue(self, queue: str) -> Filter:
        """The same for one queue."""
        return replace(self, queue=queue)

    def selection(self, queues_of_topic: frozenset[str]) -> Selection:
        """The same in terms of letters; the queues are those of the topic, if one was named."""
        queues = queues_of_topic if self.topic is not None else None
        if self.queue is not None:
            queues = frozenset({self.queue}) & queues if queues is not None else frozenset({self.queue})
        return Selection(
            queues=queues,
            causes=frozenset(self.causes) or None,
            key=None if self.key is None else os.fsencode(self.key),
            older_than_s=self.older_than_s,
            newer_than_s=self.newer_than_s,
        )


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose letters; the command gets a Filter as `wanted`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        names = ("topic", "queue_name", "causes", "key", "older_than_s", "newer_than_s", "limit")
        topic, queue, causes, key, older, newer, limit = (kwargs.pop(name) for name in names)
        return function(*args, wanted=Filter(topic, queue, tuple(causes), key, older, newer, limit), **kwargs)

    for option in reversed((
        click.option("--topic", help="Those of this topic's queues."),
        click.option("--queue", "queue_name", help="Those of this queue."),
        click.option("--cause", "causes", type=click.Choice(CAUSES), multiple=True, help="Those parked for this."),
        click.option("--key", help="Those of this key, BUCKET/OBJECT; with a * at the end, of keys that begin so."),
        click.option("--older-than", "older_than_s", type=DURATION, help="Those parked longer ago than this: 1h."),
        click.option("--newer-than", "newer_than_s", type=DURATION, help="Those parked within this time: 1h."),
        click.option("--limit", type=click.IntRange(min=1), help="At most this many, from the first on."),
    )):  # fmt: skip
        wrapper = option(wrapper)
    return wrapper


async def pick_letters(store: ShardStore, wanted: Filter) -> list[DeadLetter]:
    """The letters that are meant, in queue order.

    Raises UnknownTopic and UnknownQueue where there is none of the name, and no letter is left of an earlier one.
    """
    rows = await rows_of(store) if wanted.topic is not None or wanted.queue is not None else []
    queues = _queues_of(rows, wanted.topic) if wanted.topic is not None else frozenset()
    selection, now = wanted.selection(queues), time.time()
    only = next(iter(selection.queues)) if selection.queues is not None and len(selection.queues) == 1 else None
    found, left = list[DeadLetter](), set[str]()
    async for each in store.letters.stored(only):
        left.add(each.queue)
        if selection.means(each, letter_key(each) if selection.key is not None else None, now):
            found.append(each)
    unread = "".join(f"; but {each}" for each in store.damaged.values())
    if wanted.queue is not None and not any(wanted.queue == shard.queue for row in rows for shard in row.shards):
        if wanted.queue not in left:
            raise UnknownQueue(f"there is no queue {wanted.queue!r}, and no dead letter of an earlier one{unread}")
    elif wanted.topic is not None and not (_of_topic(rows, wanted.topic) or queues & left):
        raise UnknownTopic(f"there is no topic {wanted.topic!r}, and no dead letter of an earlier one{unread}")
    return list(itertools.islice(found, wanted.limit))


def _of_topic(rows: Sequence[Row], topic: str) -> list[Row]:
    return [row for row in rows if topic in (row.label, row.topic.name if row.topic else row.label)]


def _queues_of(rows: Sequence[Row], topic: str) -> frozenset[str]:
    """The queues of a topic, those that letters were left of by an earlier one of the name too."""
    meant = _of_topic(rows, topic)
    known = {shard.queue for row in meant for shard in row.shards}
    once = {topic, *(f"{topic}.{number}" for number in range(1, MOST_SHARDS))}
    others = {shard.queue for row in rows if row not in meant for shard in row.shards}
    return frozenset(known | once - others)
