"""`remora topic hold` and `resume`: delivery of a topic stops, and goes on; its events are taken in all the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from remora import app, endpoint_kinds
from remora.cli import admin_client
from remora.cli.options import daemon_option, gathered_into, instant, seconds
from remora.cli.output import print_line, run_async
from remora.cli.rows import UnknownTopic, hold_of, origin_option, row_named
from remora.cli.trace import myself, trace
from remora.config import Settings
from remora.model.errors import DaemonNotReachable, RemoraError
from remora.model.shard import Origin
from remora.model.topic import Topic, TopicHold
from remora.model.words import LAST_MOMENT, duration
from remora.policy.admission.holds import deaf_hosts, hold_text
from remora.ports.store import ShardStore


class NotDelivered(RemoraError):
    """A topic that remora does not deliver, so that it cannot hold it."""


@dataclass(frozen=True, slots=True)
class HoldAsked:
    """What `topic hold` is asked for: its end in microseconds of Unix time, or the length in seconds."""

    until: int | None
    length: float | None
    reason: str

    def hold(self, now: float) -> TopicHold:
        """The hold. Raises UsageError for an end that has passed, or that no date can say."""
        if self.until is not None and self.length is not None:
            raise click.UsageError("--until and --for exclude each other")
        end = self.until / 1e6 if self.until is not None else now + self.length if self.length is not None else None
        if end is not None and end <= now:
            raise click.UsageError("the hold would be over already")
        if end is not None and end > LAST_MOMENT:
            raise click.UsageError(
                "the hold would end behind the year 9999; without an end it lasts until it is resumed"
            )
        return TopicHold(now, end, self.reason)


@click.command("hold")
@click.argument("name")
@click.option(
    "--until", callback=instant, metavar="TIME", help="When it ends, such as 2026-11-21T02:14:07Z; UTC without a zone."
)
@click.option("--for", "length", callback=seconds, metavar="DURATION", help="How long it lasts, such as 2h.")
@click.option("--reason", default="", help="Why, for those who look at the topic.")
@origin_option
@daemon_option
@gathered_into(HoldAsked)
def hold_command(settings: Settings, name: str, asked: HoldAsked, origin: Origin | None) -> None:
    """Stop delivering topic NAME, remora's own or radosgw's, on all hosts within 3 s; its events are taken in.

    What is under way ends first. It lasts until `topic resume`, or until --until or --for is over. time_to_live goes
    on: what outlives it becomes a dead letter. The queues fill up, and senders are refused once they are full: the
    command says how long that takes, where the daemon of this host knows. A topic that is held already gets the new end
    and reason.

    \b
    Examples:
      remora topic hold orders --for 2h --reason "the index is rebuilt"
      remora topic hold orders --until 2026-11-21T06:00:00+01:00
    """
    hold = asked.hold(time.time())

    async def work() -> list[str]:
        async with app.store_of(settings) as store:
            topic = await _delivered(store, settings, name, origin)
            await store.holds.set_hold(topic, hold)
            trace("topic_hold", "a topic is held", topic=topic.label, reason=hold_text(hold), **myself(settings).known)
            room = await _room(settings, topic.label)
            deaf = deaf_hosts(await store.members.live())
        said = [f"topic {topic.label} is {hold_text(hold)}; what is under way ends within 3 s", f"room: {room}"]
        return said + [f"remark: {each}" for each in _remarks(topic, settings, deaf)]

    for line in run_async(work()):
        print_line(line)


@click.command("resume")
@click.argument("name")
@origin_option
@daemon_option
def resume_command(settings: Settings, name: str, origin: Origin | None) -> None:
    """Deliver topic NAME again, which `topic hold` has stopped, on all hosts within 3 s.

    \b
    Example:
      remora topic resume orders
    """

    async def work() -> str:
        async with app.store_of(settings) as store:
            topic = await _known(store, name, origin)
            was = await hold_of(store, topic)
            await store.holds.set_hold(topic, None)
            if was is None:
                return f"topic {topic.label} is not held"
            trace("topic_resume", "a topic is resumed", topic=topic.label, was=hold_text(was), **myself(settings).known)
            return f"topic {topic.label} is resumed after {duration(time.time() - was.since)}"

    print_line(run_async(work()))


async def _known(store: ShardStore, name: str, origin: Origin | None) -> Topic:
    row = await row_named(store, name, origin)
    if row.topic is None:
        raise UnknownTopic(f"topic {name!r}: its metadata cannot be read, and nothing else tells what to hold")
    return row.topic


async def _delivered(store: ShardStore, settings: Settings, name: str, origin: Origin | None) -> Topic:
    """The topic of this name, if remora delivers it. Raises NotDelivered."""
    row = await row_named(store, name, origin)
    topic = await _known(store, name, origin)
    schemes = endpoint_kinds.schemes(settings)
    if reason := row.reason(schemes):
        raise NotDelivered(f"topic {topic.label} cannot be held: {row.delivered_by(schemes)} delivers it: {reason}")
    released = await store.releases.released()
    if left := [each.queue for each in row.shards if each in released]:
        raise NotDelivered(
            f"topic {topic.label} cannot be held: {', '.join(left)} is released to radosgw (`remora shard claim`)"
        )
    return topic


async def _room(settings: Settings, label: str) -> str:
    """How long the room of the topic lasts, in words."""
    try:
        status: dict[str, Any] = await admin_client.fetch_status(settings.admin)
    except DaemonNotReachable:
        return "not known, since no daemon answers on this host; a full queue refuses events"
    room = next((each.get("room") for each in status["topics"] if each["topic"] == label), None)
    if room is None:
        return "not known, since no worker of this host has looked at it; a full queue refuses events"
    lasts_s = room["seconds_until_full"]
    if lasts_s is None:
        return "does not shrink at present; a full queue refuses events"
    return f"lasts {duration(lasts_s)} at its present growth; then the fullest queue refuses events"


def _remarks(topic: Topic, settings: Settings, deaf: Sequence[str]) -> list[str]:
    """What may surprise who holds this topic."""
    found = []
    if deaf:
        them = "an older remora, which goes on delivering what it owns"
        found.append(f"{', '.join(deaf)} {'runs' if len(deaf) == 1 else 'run'} {them}")
    if topic.origin is Origin.RADOSGW:
        found.append("it is held by its lock: while no worker of remora runs, radosgw delivers it")
    if lifetime_s := settings.delivery.limits.of(topic).time_to_live_s:
        found.append(f"entries that are older than {duration(lifetime_s)} become dead letters meanwhile")
    return found
