"""`remora topic apply`: topics of remora's own, and notifications, as a file has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from remora import app
from remora.cli.attributes import HIDDEN, NAMESAKE, differences, shown_arguments
from remora.cli.declared import Declared, DeclaredFile, load_declared
from remora.cli.declared_notifications import NotificationStep, planned_notifications
from remora.cli.options import FILE, config_option
from remora.cli.output import print_line, run_async
from remora.cli.ways import check_option, require_ways
from remora.codec.topic import parse_args
from remora.config import Settings, show_size
from remora.model.errors import RemoraError, StoreMissing, TopicNamed, TopicRefused, TopicUnknown
from remora.model.exits import Exit, exit_code
from remora.model.notification import Notification
from remora.model.shard import Origin
from remora.model.topic import Topic
from remora.model.words import several
from remora.policy.ingest.notification_rules import overlaps
from remora.ports.store import ShardStore


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One topic that is to be made (`was` is None), changed, or removed (`to` is None)."""

    was: Topic | None
    to: Topic | None

    @property
    def name(self) -> str:
        """The topic's."""
        topic = self.to or self.was
        assert topic is not None
        return topic.name

    def lines(self) -> Iterator[str]:
        """The step for a person, without what is secret."""
        if self.was is None and self.to is not None:
            of_kafka = f"Kafka topic {self.to.target.topic} at " if self.to.target.scheme == "kafka" else ""
            yield f"+ {self.name}: {several(self.to.shards, 'shard')}, to {of_kafka}{self.to.target.redacted}"
            said_above = {"endpoint", "kafka-topic", "shards"}
            shown = _shown(self.to).items()
            yield from (
                f"    {name}: {value}" for name, value in shown if name not in said_above and value != "default"
            )
        elif self.to is None and self.was is not None:
            yield f"- {self.name}: {several(self.was.shards, 'shard')}"
        elif self.was is not None and self.to is not None:
            yield f"~ {self.name}"
            before, after = _shown(self.was), _shown(self.to)
            for name in dict.fromkeys((*before, *after)):
                old, new = before.get(name, "default"), after.get(name, "default")
                if old != new:
                    yield f"    {name}: {old} -> {new}"
            yield from (f"    {name}: changed" for name in _changed_unseen(self.was, self.to))


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What makes the topics of a store those of a file. `others` are topics that the file does not name."""

    steps: Sequence[TopicChange]
    alike: int
    others: Sequence[str]
    notifications: Sequence[NotificationStep] = ()


class NotSame(RemoraError):
    """A topic cannot become what the file says."""


def plan(present: Sequence[Topic], declared: Sequence[Declared], *, prune: bool) -> ApplyPlan:
    """The steps from the topics of remora's own that are there to those that are declared; removals come last.

    Raises NotSame, with all topics that differ in what stays for good: whether there is a sequence.
    """
    # One whose change is under way, or was cut short, has the coming shards within seconds.
    found = {each.name: replace(each, shards=each.coming.shards) if each.coming else each for each in present}
    steps, alike, renumbered = [], 0, []
    for each in declared:
        was = found.pop(each.topic.name, None)
        if was is None:
            steps.append(TopicChange(None, replace(each.topic, closed=bool(each.closed))))
            continue
        to = replace(
            each.topic,
            id=was.id,
            tenant=was.tenant,
            queue=was.queue,
            source=was.source,
            closed=was.closed if each.closed is None else each.closed,
            shards=was.shards if each.keeps_shards else each.topic.shards,
        )
        if was.is_sequenced != to.is_sequenced:
            renumbered.append(f"{to.name} has {'one' if was.is_sequenced else 'none'}")
        elif differences(was, to):
            steps.append(TopicChange(was, to))
        else:
            alike += 1
    if renumbered:
        raise NotSame(f"whether a topic has a sequence stays for good: {', '.join(renumbered)}; nothing was changed")
    if prune:
        steps += [TopicChange(topic, None) for _, topic in sorted(found.items())]
    return ApplyPlan(steps, alike, () if prune else sorted(found))


@click.command("apply")
@click.option("-f", "--file", "file", type=FILE, required=True, help="The topics, in TOML: a table [topic.NAME] each.")
@click.option("--dry-run", is_flag=True, help="Change nothing; exit with 3 where topics are not as the file says.")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove remora's own topics that the file does not name, if they are empty, and other notifications.",
)
@check_option
@config_option
def apply_command(settings: Settings, file: Path, dry_run: bool, prune: bool, check: bool) -> None:
    """Make remora's own topics what a file says: make those that are missing, change those that differ.

    The file is checked as a whole first, and all its problems are reported at once. What a table leaves out gets its
    default, but `closed` and the number of shards stay as they are. Another number is refused while an earlier change
    of it is not delivered. Applying the file again changes nothing. A topic that the file does not name stays, unless
    --prune is given and no entry waits in its queues. radosgw's topics are never touched.

    A table [[notification]] says where events go whose sender names no topic. See `remora notification create`.

    \b
    A file:
      [topic.orders]
      endpoint = "kafka://broker:9093"
      shards = 11
      time-to-live = "1d"
      password-file = "kafka.password"        # beside this file
      args = { use-ssl = true, mechanism = "SCRAM-SHA-512", user-name = "remora" }

    \b
      [[notification]]
      id = "new-photos"
      topics = ["orders"]
      buckets = ["photos", "raw-*"]
      events = ["s3:ObjectCreated:*"]
      filter = { suffix = ".jpg" }

    \b
    Examples:
      remora topic apply -f topics.toml --dry-run
      remora topic apply -f topics.toml --prune
      remora topic apply -f /dev/stdin <topics.toml
    """
    declared = load_declared(file, settings)
    if check:
        require_ways([each.topic for each in declared.topics], settings)

    planned, failures = run_async(_applied(settings, declared, dry_run=dry_run, prune=prune))
    if dry_run:
        _print_steps(planned.steps)
        _print_steps(planned.notifications)
    for name in planned.others:
        print_line(f"  {name}: not in the file, stays (--prune removes it)")
    for each in declared.topics:
        for remark in each.remarks:
            print_line(f"remark on {each.topic.name}: {remark}")
    for remark in overlaps([each.notification for each in declared.notifications]):
        print_line(f"remark: {remark}")
    print_line(_summary(planned, len(failures), dry_run=dry_run))
    for failure in failures:
        print_line(f"remora: {failure}", err=True)
    if failures:
        sys.exit(exit_code(failures[0]))
    if dry_run and (planned.steps or planned.notifications):
        sys.exit(Exit.DIFFERS)


async def _applied(
    settings: Settings, declared: DeclaredFile, *, dry_run: bool, prune: bool
) -> tuple[ApplyPlan, list[RemoraError]]:
    """Plan, and take the steps unless it is a dry run; to one of those a store that is yet to be made is empty."""
    try:
        async with app.store_of(settings, make=not dry_run) as store:
            topics = (await store.catalog.topics()).values()
            own = [each for each in topics if each.origin is Origin.REMORA]
            notifications = (await store.notifications.definitions()).notifications
            planned = _whole_plan(own, notifications, declared, prune=prune)
            theirs = {each.label for each in topics if each.origin is Origin.RADOSGW}
            for wanted in declared.topics:
                if wanted.topic.name in theirs:
                    wanted.remarks.append(NAMESAKE)
            if dry_run:
                return planned, []
            # Notifications when their topics are there, and removals of topics when none names them.
            failures = await carry_out(store, [each for each in planned.steps if each.to is not None])
            if not failures:
                failures += await carry_out(store, planned.notifications)
            return planned, failures + await carry_out(store, [each for each in planned.steps if each.to is None])
    except StoreMissing as exc:
        if not dry_run or settings.sqlite.if_missing != "make":
            raise
        print_line(f"remark: {exc}")
        return _whole_plan([], (), declared, prune=prune), []


def _whole_plan(
    topics: Sequence[Topic],
    notifications: Sequence[Notification],
    declared: DeclaredFile,
    *,
    prune: bool,
) -> ApplyPlan:
    """The steps of topics and of notifications. Raises ConfigError for notifications whose topics are not there."""
    declared.check_topics(() if prune else [each.name for each in topics])
    wanted = [each.notification for each in declared.notifications]
    steps, others = planned_notifications(notifications, wanted, prune=prune)
    of_topics = plan(topics, declared.topics, prune=prune)
    named = [f"notification {each}" for each in others]
    return replace(of_topics, notifications=steps, others=[*of_topics.others, *named])


async def carry_out(store: ShardStore, steps: Sequence[TopicChange | NotificationStep]) -> list[RemoraError]:
    """Take one step after the other; one that fails keeps no other from being taken."""
    failures: list[RemoraError] = []
    for step in steps:
        try:
            await (_take(store, step) if isinstance(step, TopicChange) else step.take(store.notifications))
        except RemoraError as exc:
            failures.append(exc)
        else:
            _print_steps([step])
    return failures


async def _take(store: ShardStore, step: TopicChange) -> None:
    """Take a step; where another command has taken it meanwhile, all is well."""
    if step.to is None:
        assert step.was is not None
        await _remove(store, step.was)
    elif step.was is None:
        await _make(store, step.to)
    else:
        if step.to.shards != step.was.shards:
            await store.own_topics.reshard(step.was, step.to.shards)
        now = await store.own_topics.find(step.to.name)
        shards = step.to.shards if now is None else now.shards  # another command may have changed them since the plan
        await store.own_topics.change(replace(step.to, shards=shards))


async def _make(store: ShardStore, topic: Topic) -> None:
    try:
        made = await store.own_topics.create(replace(topic, closed=False))
    except TopicRefused:
        found = await store.own_topics.find(topic.name)
        if found is None or differences(found, replace(topic, closed=found.closed)):
            raise
        made = found
    if made.closed != topic.closed:
        await store.own_topics.change(replace(made, closed=topic.closed))


async def _remove(store: ShardStore, topic: Topic) -> None:
    try:
        await store.own_topics.remove(topic, discard=False)
    except TopicNamed:
        raise
    except TopicRefused as exc:
        raise TopicRefused(f"{exc} (`remora topic rm {topic.name}` with --drain, or --discard)") from exc
    except TopicUnknown:
        if await store.own_topics.find(topic.name) is not None:
            raise


def _print_steps(steps: Sequence[TopicChange | NotificationStep]) -> None:
    for step in steps:
        for line in step.lines():
            print_line(line)


def _summary(planned: ApplyPlan, failed: int, *, dry_run: bool) -> str:
    if not planned.steps and not planned.notifications:
        return f"{several(planned.alike, 'topic is', 'topics are')} as the file says"
    text = f"topics {_counted(planned.steps)}; as the file says: {planned.alike}"
    if planned.notifications:
        text += f"; notifications {_counted(planned.notifications)}"
    if dry_run:
        return f"{text}; nothing was changed"
    return f"{text}; failed: {failed}" if failed else f"{text}; all done"


def _counted(steps: Sequence[TopicChange | NotificationStep]) -> str:
    made = sum(step.was is None for step in steps)
    removed = sum(step.to is None for step in steps)
    return f"to make: {made}, to change: {len(steps) - made - removed}, to remove: {removed}"


def _shown(topic: Topic) -> dict[str, object]:
    """A topic's attributes by the names of their options; `default` where it has none of its own."""
    numbers = {
        "time-to-live": topic.time_to_live_s,
        "max-retries": topic.max_retries,
        "retry-sleep-duration": topic.retry_sleep_s,
    }
    arguments = shown_arguments(topic)
    return {
        "endpoint": topic.target.redacted,
        "shards": topic.shards,
        "kafka-topic": topic.target.topic,
        "sequence": "yes" if topic.is_sequenced else "default",
        **{name: "default" if value is None else value for name, value in numbers.items()},
        "opaque-data": (topic.opaque_data or b"").decode(errors="replace") or "default",
        "capacity": "default" if topic.capacity_bytes is None else show_size(topic.capacity_bytes),
        **{f"args.{name}": arguments[name] for name in sorted(arguments)},
        "closed": "yes" if topic.closed else "default",
    }


def _changed_unseen(was: Topic, to: Topic) -> Iterator[str]:
    """What differs between two forms of a topic and is not shown: passwords, users, what follows an endpoint's host."""
    if was.target.uri != to.target.uri and was.target.redacted == to.target.redacted:
        yield "endpoint's user, path or query"
    before, after = parse_args(was.target.args), parse_args(to.target.args)
    hidden = {name for topic in (was, to) for name, shown in shown_arguments(topic).items() if shown == HIDDEN}
    yield from sorted(name for name in hidden if name in before and name in after and before[name] != after[name])
