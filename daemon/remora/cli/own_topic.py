"""`remora topic create`, `set` and `rm`: topics of remora's own. Those of a radosgw are never touched."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from remora import app, endpoint_kinds
from remora.cli.attributes import (
    ARGUMENTS,
    DURATION,
    NAMESAKE,
    UNSETTABLE,
    Given,
    attribute_options,
    checked_endpoint,
    checked_name,
    differences,
    given_or,
    meant,
    without,
)
from remora.cli.layouts import ReshardAsked, resharded
from remora.cli.options import config_option, gathered_into
from remora.cli.output import print_line, run_async
from remora.cli.rows import UnknownTopic, hold_of, rows_of
from remora.cli.steps import SILENT_S, told
from remora.cli.ways import check_option, require_ways
from remora.config import DeliverySettings, Settings
from remora.model.errors import RemoraError, TopicNamed, TopicRefused
from remora.model.exits import Exit
from remora.model.ingest import Removed
from remora.model.shard import Origin
from remora.model.topic import MOST_SHARDS, Target, Topic
from remora.model.words import several
from remora.policy.admission.holds import hold_text
from remora.policy.ingest.notification_rules import check_removal
from remora.ports.store import ShardStore

ENDPOINTS = (
    "kafka://BROKER[:PORT], http[s]://HOST[:PORT][/PATH], amqp[s]://BROKER[:PORT][/VHOST] or nats[+tls]://HOST[:PORT]"
)

LASTING = {
    "sequence": "whether events are numbered stays",
}
"""The attributes that no command changes."""

LOOK_INTERVAL_S = 0.25


class ForeignTopic(RemoraError):
    """A topic that a radosgw made."""


class Differs(RemoraError):
    """There is a topic of this name already, and it is not as asked for."""


@click.command("create")
@click.argument("name", callback=checked_name)
@click.option(
    "--endpoint",
    metavar="URI",
    required=True,
    callback=checked_endpoint,
    help=f"{ENDPOINTS}: where to deliver.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, MOST_SHARDS),
    help="Queues of the topic; `topic set` changes it. Events of one object stay in one queue and in order.  "
    "[default: topics.default_shards]",
)
@click.option(
    "--sequence",
    is_flag=True,
    help="Number the events over all shards in the order of their commits, for good; embedded store only.",
)
@attribute_options
@check_option
@click.option("--if-not-exists", is_flag=True, help="A topic that exists already, and does just the same, is no error.")
@config_option
def create_command(
    settings: Settings, name: str, shards: int | None, sequence: bool, check: bool, if_not_exists: bool, **options: Any
) -> None:
    """Make topic NAME, for events that are sent through the ingest API.

    It makes no Kafka topic, no exchange of AMQP and no stream of NATS: make them with the broker's tools, a Kafka
    topic with enough partitions for the years to come.

    \b
    Examples:
      remora topic create orders --endpoint kafka://broker:9092 --shards 11
      remora topic create index --endpoint kafka://broker:9092 --sequence
      remora topic create orders --endpoint kafka://broker:9093 --time-to-live 1d --if-not-exists \\
          --arg use-ssl=true --arg ca-location=/etc/ssl/kafka.pem \\
          --arg mechanism=SCRAM-SHA-512 --arg user-name=remora --password-file kafka.password
      remora topic create hooks --endpoint https://hooks.example.com/in --arg remora-credential=hooks
      remora topic create mail --endpoint amqps://broker/%2Fmail --arg amqp-exchange=events
      remora topic create stream --endpoint nats://server --arg nats-stream=EVENTS
    """
    count = given_or(shards, settings.topics.default_shards)
    plain = Topic(name, "", name, Target("", "", name), shards=count, origin=Origin.REMORA, is_sequenced=sequence)
    asked = Given(**options).on(plain)
    remarks = checked_target(asked.target, settings)
    if check:
        require_ways([asked], settings)

    async def work() -> tuple[Topic, bool]:
        async with app.store_of(settings, make=True) as store:
            made = await _made(
                store, asked, settings.delivery, if_not_exists=if_not_exists, keeps_shards=shards is None
            )
            if any(
                each.label == name and each.origin is Origin.RADOSGW for each in (await store.catalog.topics()).values()
            ):
                remarks.append(NAMESAKE)
            return made

    topic, is_new = run_async(work())
    of_kafka = f"Kafka topic {topic.target.topic} at " if topic.target.scheme == "kafka" else ""
    numbered = ", numbered" if topic.is_sequenced else ""
    where = f"{several(topic.shards, 'shard')}{numbered}, to {of_kafka}{topic.target.redacted}"
    print_line(f"topic {name} {'is made' if is_new else 'exists already'}: {where}")
    _print_remarks(remarks)


async def _made(
    store: ShardStore, asked: Topic, delivery: DeliverySettings, *, if_not_exists: bool, keeps_shards: bool
) -> tuple[Topic, bool]:
    """The topic, and whether it is new; `keeps_shards` where one that exists may have any number of them."""
    try:
        return await store.own_topics.create(asked), True
    except TopicRefused:
        found = await store.own_topics.find(asked.name) if if_not_exists else None
        if found is None:
            raise
    if keeps_shards:
        asked = replace(asked, shards=found.shards)
    if different := differences(meant(found, delivery), meant(asked, delivery)):
        lasting = [LASTING[each] for each in different if each in LASTING]
        keeps = f"; {' and '.join(lasting)}" if lasting else ""
        rest = (
            "; `remora topic set` changes " + ("the rest" if keeps else "it") if len(different) > len(lasting) else ""
        )
        raise Differs(f"topic {asked.name} exists already, and differs in {', '.join(different)}{keeps}{rest}")
    return found, False


@click.command("set")
@click.argument("name")
@click.option(
    "--endpoint",
    metavar="URI",
    callback=checked_endpoint,
    help=f"{ENDPOINTS}: where to deliver from now on.",
)
@attribute_options
@click.option(
    "--unset",
    multiple=True,
    metavar="ATTRIBUTE",
    type=click.Choice([*UNSETTABLE, *ARGUMENTS]),
    help=f"Give an attribute its default again: {', '.join(UNSETTABLE)}, or the name of an --arg. Repeatable.",
)
@click.option("--closed/--open", "closed", default=None, help="Take no new events from now on, or take them again.")
@click.option(
    "--shards",
    type=click.IntRange(1, MOST_SHARDS),
    help="Divide the topic into so many queues from now on. No key is reordered.",
)
@click.option("--wait", is_flag=True, help="Wait where an earlier change of --shards is not delivered yet.")
@click.option("--timeout", "timeout_s", type=DURATION, help="How long --wait waits.  [default: 5m]")
@config_option
@gathered_into(ReshardAsked)
def set_command(
    settings: Settings, name: str, unset: Sequence[str], closed: bool | None, asked: ReshardAsked, **options: Any
) -> None:
    """Change the given options of remora's own topic NAME, and nothing else. Entries that wait already follow it too.

    Another number of shards holds for new events. They wait until those in the former queues are delivered, so the
    order of each object stays. Senders notice nothing.

    A queue that holds more than --capacity says keeps what it holds, delivers it, and refuses new events meanwhile.

    \b
    Examples:
      remora topic set orders --endpoint kafka://other:9092 --unset time-to-live
      remora topic set orders --open
      remora topic set orders --shards 64 --wait
      remora topic set orders --capacity 2GB
    """
    given = Given(**options)
    if (asked.wait and asked.shards is None) or (asked.timeout_s is not None and not asked.wait):
        raise click.UsageError("--wait is for --shards, and --timeout for --wait")
    if not (unset or any(value not in (None, {}) for value in (closed, asked.shards, *options.values()))):
        raise click.UsageError("nothing to change: give an option")
    if twice := given.names().intersection(unset):
        raise click.UsageError(f"{', '.join(sorted(twice))}: give a value or --unset, not both")

    def changed(topic: Topic) -> Topic:
        return replace(given.on(without(topic, unset)), closed=given_or(closed, topic.closed))

    async def work() -> tuple[bool, str, list[str]]:
        async with app.store_of(settings) as store:
            topic = await _own(store, name, "aws sns set-topic-attributes")
            remarks = checked_target(changed(topic).target, settings)
            now, moved = await resharded(store, topic, asked)
            if not differences(now, changed(now)):
                return bool(moved), moved, remarks
            await store.own_topics.change(changed(now))
            return True, moved, remarks

    is_changed, moved, remarks = run_async(work())
    print_line(moved or f"topic {name} is {'changed' if is_changed else 'just so already'}")
    _print_remarks(remarks)


@click.command("rm")
@click.argument("name")
@click.option("--discard", is_flag=True, help="Give up the entries that wait; says how many.")
@click.option("--drain", is_flag=True, help="Take no new events, and wait until a daemon has delivered the rest.")
@click.option("--timeout", "timeout_s", type=DURATION, help="How long --drain waits.  [default: 60s]")
@config_option
def rm_command(settings: Settings, name: str, discard: bool, drain: bool, timeout_s: int | None) -> None:
    """Remove remora's own topic NAME with its queues; refused while entries wait, or a notification names it.

    Dead letters stay.

    A drain that runs out of time leaves the topic closed for new events, and ends with exit code 3.

    \b
    Examples:
      remora topic rm orders --drain --timeout 5m
      remora topic rm orders --discard
    """
    if discard and drain:
        raise click.UsageError("--discard and --drain exclude each other")
    if timeout_s is not None and not drain:
        raise click.UsageError("--timeout is for --drain")

    async def work() -> Removed | None:
        async with app.store_of(settings) as store:
            topic = await _own(store, name, "aws sns delete-topic")
            if drain and (hold := await hold_of(store, topic)) is not None:
                raise TopicRefused(
                    f"topic {name} is {hold_text(hold)}, so it cannot be drained: `remora topic resume {name}` first"
                )
            if drain:
                check_removal(name, await store.notifications.definitions())
                return await drained(store, topic, 60 if timeout_s is None else timeout_s)
            try:
                return await store.own_topics.remove(topic, discard=discard)
            except TopicNamed:
                raise
            except TopicRefused as exc:
                raise TopicRefused(f"{exc} (--drain, or --discard)") from exc

    removed = run_async(work())
    if removed is None:
        sys.exit(Exit.DRAIN_TIMEOUT)
    given_up = f"; {several(removed.entries, 'entry was', 'entries were')} given up" if discard else ""
    print_line(f"topic {name} is removed with {several(removed.shards, 'shard')}{given_up}")


def checked_target(target: Target, settings: Settings) -> list[str]:
    """Remarks on a target, and on the files that it names. Raises EndpointMisconfigured for one that cannot work."""
    return [*endpoint_kinds.check_target(target, settings), *endpoint_kinds.file_remarks(target, settings)]


def _print_remarks(remarks: Sequence[str]) -> None:
    for each in remarks:
        print_line(f"remark: {each}")


async def _own(store: ShardStore, name: str, instead: str) -> Topic:
    """Remora's own topic of this name. The error for one of radosgw's names the command to use `instead`."""
    topic = await store.own_topics.find(name)
    if topic is not None:
        return topic
    for row in await rows_of(store):
        if row.origin is Origin.RADOSGW and row.topic and name in (row.label, row.topic.name):
            raise ForeignTopic(f"topic {name} is radosgw's, and changed through radosgw's API only: {instead}")
    raise UnknownTopic(f"remora has no topic {name!r} of its own; `remora topic list` shows all")


async def drained(store: ShardStore, topic: Topic, timeout_s: float) -> Removed | None:
    """Close a topic, wait until it is empty, and remove it; None, said on standard error, when that takes too long."""
    closed = replace(topic, closed=True)
    await store.own_topics.change(closed)
    removed = None
    try:
        removed = await _emptied(store, closed, timeout_s)
        if removed is None:
            why = await _what_waits(store, topic)
            print_line(f"remora: topic {topic.name} was not empty within {timeout_s:g} s: {why}", err=True)
    finally:
        if removed is None:
            print_line(
                f"remora: topic {topic.name} stays closed for new events; `remora topic set {topic.name} --open`"
                " opens it again",
                err=True,
            )
    return removed


async def _emptied(store: ShardStore, topic: Topic, timeout_s: float) -> Removed | None:
    """Remove the topic once it is empty; None when the time ends before. A removal that has begun is finished."""
    until = asyncio.get_running_loop().time() + timeout_s
    waiting = await _waiting(store, topic)
    with told(after_s=SILENT_S) as tell:
        while True:
            tell(f"waiting until {several(waiting, 'entry is', 'entries are')} delivered, for up to {timeout_s:g} s")
            if not waiting:
                try:
                    return await store.own_topics.remove(topic, discard=False)
                except TopicNamed:  # by a notification that was made since
                    raise
                except TopicRefused:
                    pass  # a queue that could not be looked at, or an event that was under way when it was closed
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                return None
            await asyncio.sleep(min(LOOK_INTERVAL_S, left_s))
            waiting = await _waiting(store, topic)


async def _waiting(store: ShardStore, topic: Topic) -> int:
    """What has to leave the queues: entries, and reservations, which may still be committed."""
    return sum(each.entries + each.reservations for each in await store.inspection.backlog(topic.all_shards()))


async def _what_waits(store: ShardStore, topic: Topic) -> str:
    found = await store.inspection.backlog(topic.all_shards())
    entries, reservations = sum(each.entries for each in found), sum(each.reservations for each in found)
    waits = f"{several(entries, 'entry', 'entries')} and {several(reservations, 'reservation')}"
    text = f"{waits} wait in {len(found)} of {several(len(topic.all_shards()), 'queue')}"
    if any(each.holder is None or each.holder.lease_left_s <= 0 for each in found):
        return f"{text}, some of which no worker holds: does a daemon run?"
    return f"{text}; `remora status` says why"
