"""Notifications of a file of topics: tables `[[notification]]`, read and checked as a whole."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from remora.config import parse_size, toml_name
from remora.model.notification import EventFilter, Notification
from remora.policy.notification_rules import refusals, too_many

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
        if found is not None and found.id in seen:
            reading.refuse("id", f"there is a notification {found.id} above")
        yield from reading.problems
        if found is not None and not reading.problems:
            seen.add(found.id)
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
