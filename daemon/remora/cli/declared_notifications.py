"""Notifications as a file of topics has them: read, checked, compared with those that are there, and for a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from remora.config import parse_size, show_size, toml_name
from remora.model.errors import NotificationRefused
from remora.model.notification import EventFilter, Notification
from remora.policy.ingest.notification_rules import refusals, too_many
from remora.ports.administration import Notifications

TABLE = "notification"
"""What the tables are called."""

Problem = tuple[str, str, str]
"""The path of a key in the file, what it is called for a person, and what is wrong with it."""


class NotificationTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One `[[notification]]`, as it stands in the file."""

    id: str = ""
    topics: list[str] = []
    buckets: list[str] = []
    events: list[str] = []
    filter: dict[str, Any] = {}


class FilterTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Its `[notification.filter]`."""

    prefix: str = ""
    suffix: str = ""
    regex: str = ""
    size_min: str | None = None
    size_max: str | None = None
    metadata: dict[str, str] = {}
    tags: dict[str, str] = {}


_KEYS = MappingProxyType({
    kind: {each.encode_name: each for each in msgspec.structs.fields(kind)} for kind in (NotificationTable, FilterTable)
})  # fmt: skip


class DeclaredNotification(msgspec.Struct, frozen=True):
    """A notification as the file wants it, and its place among them there."""

    notification: Notification
    place: int

    def problem(self, key: str, why: str) -> Problem:
        """What is wrong with one of its keys."""
        return _problem(self.place, self.notification.id, key, why)


def each_notification(document: Mapping[str, Any]) -> Iterator[DeclaredNotification | Problem]:
    """Each notification of a file, or each thing that is wrong with one."""
    tables = document.get(TABLE, [])
    if not isinstance(tables, list):
        yield TABLE, TABLE, "expected tables [[notification]]"
        return
    if why := too_many(len(tables)):
        yield TABLE, TABLE, why
        return
    seen: set[str] = set()
    for place, table in enumerate(tables):
        if not isinstance(table, dict):
            yield f"{TABLE}.{place}", TABLE, "expected tables [[notification]]"
            continue
        reading = _TableReading(place, table)
        found = reading.notification()
        if isinstance(name := table.get("id"), str) and name:
            if name in seen:
                reading.refuse("id", f"there is a notification {name} above")
            seen.add(name)
        yield from reading.problems
        if found is not None and not reading.problems:
            yield DeclaredNotification(found, place)


def size_of(text: str) -> int:
    """Bytes of a size as a filter has it. ValueError for what is none."""
    if text.startswith("-"):
        raise ValueError(f'a size is not negative, as "{text}" is')
    return parse_size(text)


def _problem(place: int, name: object, key: str, why: str) -> Problem:
    shown = name if isinstance(name, str) and name else f"number {place + 1}"
    return f"{TABLE}.{place}.{key}", f"{TABLE} {shown}: {key}", why


class _TableReading:
    """Takes one table apart; what is wrong gathers in `problems`."""

    def __init__(self, place: int, raw: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []
        self._place = place
        self._raw = raw

    def notification(self) -> Notification | None:
        """The notification of the table; None where it cannot be read."""
        table = NotificationTable(**self._values(NotificationTable, self._raw, ""))
        given = FilterTable(**self._values(FilterTable, table.filter, "filter."))
        least, most = self._size("size_min", given.size_min), self._size("size_max", given.size_max)
        if self.problems:
            return None
        found = Notification(
            table.id, tuple(table.topics), tuple(table.buckets), tuple(table.events),
            EventFilter(given.prefix, given.suffix, given.regex, least, most, named(given.metadata), named(given.tags)),
        )  # fmt: skip
        for wrong in refusals(found):
            self.refuse(wrong.key, wrong.why)
        return found

    def refuse(self, key: str, why: str) -> None:
        """Note what is wrong with a key of the table."""
        self.problems.append(_problem(self._place, self._raw.get("id"), key, why))

    def _values(self, kind: Any, raw: Mapping[str, Any], within: str) -> dict[str, Any]:
        """The values of a table that have the right shape."""
        known, values = _KEYS[kind], {}
        for key, value in raw.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                self.refuse(f"{within}{key}", f"there is no such rule{f'; did you mean {near[0]}?' if near else ''}")
                continue
            try:
                values[key] = msgspec.convert(value, known[key].type)
            except msgspec.ValidationError:
                found = "" if isinstance(value, list | dict) else f", not {toml_name(value)}"
                self.refuse(f"{within}{key}", f"expected {_EXPECTED.get(key, 'text')}{found}")
        return values

    def _size(self, key: str, text: str | None) -> int | None:
        try:
            return None if text is None else size_of(text)
        except ValueError as exc:
            self.refuse(f"filter.{key}", str(exc))
            return None


_EXPECTED = MappingProxyType(
    dict.fromkeys(("topics", "buckets", "events"), 'a list of texts such as ["a", "b"]')
    | dict.fromkeys(("metadata", "tags"), 'a table of texts such as { name = "value" }')
    | {"filter": "a table", "size_min": 'a size such as "1MB"', "size_max": 'a size such as "1MB"'}
)


def named(pairs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Names with their values, as a filter has them."""
    return tuple(sorted(pairs.items()))


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
