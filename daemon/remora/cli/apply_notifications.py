"""Notifications for a person, and as a file of topics has them: what is made, changed and removed, and doing so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remora.config import show_size
from remora.model.errors import NotificationRefused, TopicRefused
from remora.model.notification import EventFilter, Notification
from remora.ports.administration import Notifications


def shown(notification: Notification) -> dict[str, str]:
    """Each part of a notification by its name in a file; empty where it is not given."""
    return {
        "id": notification.id,
        "topics": ", ".join(notification.topics),
        "buckets": ", ".join(notification.buckets),
        "events": ", ".join(notification.events),
        **{f"filter.{name}": text for name, text in shown_filter(notification.filter).items()},
    }


def shown_filter(of: EventFilter) -> dict[str, str]:
    """Each rule of a filter by its name in a file; empty where it is not given."""
    return {
        "prefix": of.prefix,
        "suffix": of.suffix,
        "regex": of.regex,
        "size_min": "" if of.size_min is None else show_size(of.size_min),
        "size_max": "" if of.size_max is None else show_size(of.size_max),
        "metadata": ", ".join(f"{name}={value}" for name, value in of.metadata),
        "tags": ", ".join(f"{name}={value}" for name, value in of.tags),
    }


@dataclass(frozen=True, slots=True)
class NotificationStep:
    """One notification that is to be made (`was` is None), changed, or removed (`to` is None)."""

    was: Notification | None
    to: Notification | None

    def lines(self) -> Iterator[str]:
        """The step for a person."""
        before = {} if self.was is None else shown(self.was)
        after = {} if self.to is None else shown(self.to)
        sign = "+" if self.was is None else "-" if self.to is None else "~"
        yield f"{sign} notification {(after or before)['id']}"
        if self.to is None:
            return
        for name, new in after.items():
            old = before.get(name, "")
            if name != "id" and new != old:
                yield f"    {name}: {new}" if self.was is None else f"    {name}: {old or 'none'} -> {new or 'none'}"

    async def take(self, notifications: Notifications) -> None:
        """Do it; where another command has done it meanwhile, all is well. Raises NotificationRefused."""
        try:
            await notifications.change(self.was, self.to)
        except NotificationRefused:
            now = {each.id: each for each in (await notifications.definitions()).notifications}
            name = (self.to or self.was or Notification("", ())).id
            if now.get(name) != self.to:
                raise


def planned_notifications(
    present: Sequence[Notification], declared: Sequence[Notification], *, prune: bool
) -> tuple[list[NotificationStep], list[str]]:
    """The steps to the notifications that are declared, and the ids of others that stay; removals come first, since
    there may be as many as there can be."""
    others = {each.id: each for each in present}
    changes = []
    for each in declared:
        was = others.pop(each.id, None)
        if was != each:
            changes.append(NotificationStep(was, each))
    removals = [NotificationStep(each, None) for each in others.values()] if prune else []
    return [*removals, *changes], [] if prune else sorted(others)


async def refuse_named(notifications: Notifications, topic: str) -> None:
    """Raise TopicRefused, with all their ids, where notifications send to a topic that is to be removed."""
    named = (await notifications.definitions()).naming(topic)
    if named:
        raise TopicRefused(
            f"topic {topic} stays: notifications send to it ({', '.join(named)}); `remora notification rm` removes one"
        )
