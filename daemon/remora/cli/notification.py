"""`remora notification`: which events of which buckets go to which topics of remora's own, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from remora import app
from remora.cli.declared_notifications import named, shown, shown_filter, size_of
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, daemon_option, gathered_into, json_option
from remora.cli.output import print_json, print_line, print_table, run_async
from remora.config import Settings
from remora.model.errors import NotificationRefused
from remora.model.notification import Definitions, EventFilter, Happening, Notification
from remora.policy.ingest.matcher import Matcher
from remora.policy.ingest.notification_rules import overlaps, refusals
from remora.ports.store import ShardStore


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else size_of(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _pairs(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, not {text!r}")
        if name in found:
            raise click.BadParameter(f"{name} stands twice")
        found[name] = value
    return named(found)


METADATA = click.option(
    "--metadata", multiple=True, metavar="NAME=VALUE", callback=_pairs, help="Metadata of the object. Repeatable."
)
TAG = click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", callback=_pairs, help="A tag. Repeatable.")


@dataclass(frozen=True, slots=True)
class AskedFilter:
    """The options of a filter, and whether a notification that is there is replaced."""

    prefix: str
    suffix: str
    regex: str
    size_min: int | None
    size_max: int | None
    metadata: tuple[tuple[str, str], ...]
    tags: tuple[tuple[str, str], ...]
    replace: bool

    @property
    def filter(self) -> EventFilter:
        """The filter that they are."""
        return EventFilter(
            self.prefix, self.suffix, self.regex, self.size_min, self.size_max, self.metadata, self.tags
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AskedEvent:
    """The options that describe an event."""

    event: str
    size: int | None
    metadata: tuple[tuple[str, str], ...]
    tags: tuple[tuple[str, str], ...]


@click.group(cls=CommandGroup)
def notification() -> None:
    """Say what events of a bucket go to what topics, for senders that name no topic (POST /v1/events).

    The topics are remora's own: radosgw's buckets get their notifications through radosgw's API.
    `remora topic apply` makes notifications from a file.

    \b
    Start with:
      remora notification create photos --topic thumbs --bucket photos --suffix .jpg
      remora notification test photos 2026/cat.jpg
    """


@notification.command("create")
@click.argument("name", metavar="ID")
@click.option("--topic", "topics", multiple=True, required=True, help="Where matching events go. Repeatable: fan-out.")
@click.option("--bucket", "buckets", multiple=True, metavar="PATTERN", help="* stands for anything.  [default: all]")
@click.option("--event", "events", multiple=True, metavar="NAME", help="S3's names and wildcards.  [default: all]")
@click.option("--prefix", default="", help="What the key begins with.")
@click.option("--suffix", default="", help="What the key ends with.")
@click.option("--regex", default="", help="What the whole key matches, an expression of RE2.")
@click.option("--size-min", callback=_size, metavar="SIZE", help="The least size, for events that have one.")
@click.option("--size-max", callback=_size, metavar="SIZE", help="The greatest size.")
@METADATA
@TAG
@click.option("--replace", is_flag=True, help="Put it in the place of the notification of this ID that is there.")
@config_option
@gathered_into(AskedFilter)
def create_command(
    settings: Settings,
    name: str,
    topics: Sequence[str],
    buckets: Sequence[str],
    events: Sequence[str],
    asked: AskedFilter,
) -> None:
    """Make notification ID: events that match all that is given go to each topic, within 2 seconds from now.

    \b
    Examples:
      remora notification create thumbnails --topic thumbs --topic audit \\
          --bucket photos --bucket 'raw-*' --event 's3:ObjectCreated:*' --suffix .jpg --size-min 1B
      remora notification create hot --topic tiering --metadata x-amz-meta-class=hot
    """
    wanted = Notification(name, tuple(topics), tuple(buckets), tuple(events), asked.filter)
    if wrong := [f"{each.key.removeprefix('filter.')}: {each.why}" for each in refusals(wanted)]:
        raise click.UsageError("; ".join(wrong))

    async def work() -> Definitions:
        async with app.store_of(settings) as store:
            before = _by_id(await store.notifications.definitions(), name) if asked.replace else None
            await store.notifications.change(before, wanted)
            return await store.notifications.definitions()

    present = run_async(work()).notifications
    print_line(f"notification {name} sends to {', '.join(topics)}")
    for remark in overlaps(present, name):
        print_line(f"remark: {remark}")


@notification.command("list")
@daemon_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List notifications, and where each sends to.

    \b
    Example:
      remora notification list --json | jq -r '.[].id'
    """
    found = _in_store(settings, lambda store: store.notifications.definitions()).notifications
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    print_table(
        ("ID", "TOPICS", "BUCKETS", "EVENTS", "FILTER"),
        [
            (
                each.id,
                ", ".join(each.topics),
                ", ".join(each.buckets) or "all",
                ", ".join(each.events) or "all",
                "; ".join(f"{name} {text}" for name, text in shown_filter(each.filter).items() if text) or "-",
            )
            for each in found
        ],
        "there is no notification",
    )


@notification.command("show")
@click.argument("name", metavar="ID")
@daemon_option
@json_option
def show_command(settings: Settings, name: str, as_json: bool) -> None:
    """Show notification ID.

    \b
    Example:
      remora notification show thumbnails
    """
    found = _known(_in_store(settings, lambda store: store.notifications.definitions()), name)
    if as_json:
        print_json(_as_json(found))
        return
    for key, text in shown(found).items():
        if text or key in ("buckets", "events"):
            print_line(f"{key}: {text or 'all'}")


@notification.command("rm")
@click.argument("name", metavar="ID")
@config_option
def rm_command(settings: Settings, name: str) -> None:
    """Remove notification ID; its topics stay, with what waits in them.

    \b
    Example:
      remora notification rm thumbnails
    """

    async def work() -> None:
        async with app.store_of(settings) as store:
            await store.notifications.change(_known(await store.notifications.definitions(), name), None)

    run_async(work())
    print_line(f"notification {name} is removed")


@notification.command("test")
@click.argument("bucket")
@click.argument("key")
@click.option("--event", default="s3:ObjectCreated:Put", show_default=True, metavar="NAME", help="The event's name.")
@click.option("--size", callback=_size, metavar="SIZE", help="The object's size.")
@METADATA
@TAG
@daemon_option
@json_option
@gathered_into(AskedEvent)
def test_command(settings: Settings, bucket: str, key: str, as_json: bool, asked: AskedEvent) -> None:
    """Show which notifications match an event of KEY in BUCKET, and for each other one the first rule that refuses it.

    Nothing is sent. The exit code is 1 if none matches.

    \b
    Example:
      remora notification test photos 2026/cat.jpg --size 3MB
    """
    found = _in_store(settings, lambda store: store.notifications.definitions()).notifications
    metadata, tags = (
        tuple((os.fsencode(name), os.fsencode(value)) for name, value in each) for each in (asked.metadata, asked.tags)
    )
    event = Happening(
        os.fsencode(bucket),
        os.fsencode(asked.event),
        os.fsencode(key),
        asked.size or 0,
        metadata,
        tags,
    )
    refused = Matcher(found).refusals(event)
    if as_json:
        rows = zip(found, refused, strict=True)
        print_json([{"id": each.id, "matches": not rule, "refused_by": rule} for each, rule in rows])
    else:
        print_table(
            ("ID", "MATCHES", "TOPICS"),
            [
                (each.id, f"no: {rule}" if rule else "yes", ", ".join(each.topics))
                for each, rule in zip(found, refused, strict=True)
            ],
            "there is no notification",
        )
    if all(refused):
        raise SystemExit(1)


def _in_store(settings: Settings, work: Callable[[ShardStore], Any]) -> Any:
    async def run() -> Any:
        async with app.store_of(settings) as store:
            return await work(store)

    return run_async(run())


def _known(definitions: Definitions, name: str) -> Notification:
    found = _by_id(definitions, name)
    if found is None:
        raise NotificationRefused(f"there is no notification {name}; `remora notification list` shows all")
    return found


def _by_id(definitions: Definitions, name: str) -> Notification | None:
    return next((each for each in definitions.notifications if each.id == name), None)


def _as_json(of: Notification) -> dict[str, object]:
    return {
        "id": of.id,
        "topics": of.topics,
        "buckets": of.buckets,
        "events": of.events,
        "filter": {
            "prefix": of.filter.prefix,
            "suffix": of.filter.suffix,
            "regex": of.filter.regex,
            "size_min": of.filter.size_min,
            "size_max": of.filter.size_max,
            "metadata": dict(of.filter.metadata),
            "tags": dict(of.filter.tags),
        },
    }
