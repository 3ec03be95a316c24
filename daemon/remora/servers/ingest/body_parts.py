"""The events of a request's body, part by part, so that others get their turn in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from remora.codec.s3_events import EventPart, place
from remora.model.entry import Time
from remora.model.topic import Topic
from remora.servers.http.begun import in_task


class Body(NamedTuple):
    """What a request with events carries: its bytes, their form, and the trace context that goes behind each event."""

    raw: bytes
    is_ndjson: bool
    context: bytes


async def placed(body: Body, topic: Topic, seed: bytes, most: int, take: Callable[[EventPart], None]) -> None:
    """Have each part of a body taken, encoded for a topic. Raises MalformedEvent, and what `take` raises."""
    begun = False
    for part in place(body.raw, topic, ndjson=body.is_ndjson, most=most, created=now(), seed=seed):
        if begun:
            await in_task()
            await asyncio.sleep(0)
        begun = True
        take(part)


def now() -> Time:
    """The time at which entries are created."""
    return Time(*divmod(time.time_ns(), 10**9))
