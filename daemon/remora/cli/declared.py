"""A file of topics: what each is to be, read and checked as a whole before any of it is carried out.

A table `[topic.NAME]` has the options of `remora topic create` under the same names. What it leaves out has its
default; only `closed`, which a drain sets too, is left as it is. msgspec checks the shape of a table, and the functions
that read the options of commands check what a value means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from remora import app
from remora.cli.attributes import SECRETS, Given, has_password, read_password, unknown_argument, whole_seconds
from remora.config import Settings, line_of, lines_of, read_toml, refuse
from remora.model.errors import ConfigError, EndpointMisconfigured
from remora.model.shard import Origin
from remora.model.topic import DEFAULT_SHARDS, MOST_SHARDS, NAME, UNSET, Delivery, Target, Topic

MOST_BYTES = 16 << 20
"""A file beyond this size is a mistake and is not read."""


class Table(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", kw_only=True, frozen=True):
    """One `[topic.NAME]`, as it stands in the file."""

    endpoint: str
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] = DEFAULT_SHARDS
    sequence: bool = False
    kafka_topic: str | None = None
    args: dict[str, str | bool | int] = {}
    delivery: Literal["at-least-once", "exactly-once"] | None = None
    password_file: str | None = None
    key_password_file: str | None = None
    time_to_live: str | int | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, lt=UNSET)] | None = None
    retry_sleep_duration: str | int | None = None
    opaque_data: str | None = None
    closed: bool | None = None


class Declared(msgspec.Struct, frozen=True):
    """A topic as the file wants it; `closed` is None where the file does not say."""

    topic: Topic
    closed: bool | None
    remarks: list[str]


def load_topics(path: Path, settings: Settings) -> list[Declared]:
    """The topics of a file, in its order. Raises ConfigError with all its problems, each with the path of its key."""
    file = read_toml(path, MOST_BYTES, "file of topics")
    problems, found = [], []
    for key, each in _each(file.content, path.parent, settings):
        if isinstance(each, Declared):
            found.append(each)
        else:
            problems.append((key, each))
    lines = lines_of(file.text) if problems else {}
    refuse(ConfigError(f"{path}: {key}", why, place=f"line {line_of(key, lines)}") for key, why in problems)
    return found


def _each(document: Mapping[str, Any], folder: Path, settings: Settings) -> Iterator[tuple[str, Declared | str]]:
    """Each topic, or what is wrong with it, and where."""
    for key in document:
        if key != "topic":
            yield key, "there is no such table: topics are tables [topic.NAME]"
    tables = document.get("topic", {})
    if not isinstance(tables, dict):
        yield "topic", "expected tables [topic.NAME]"
        return
    for name, table in tables.items():
        key = f"topic.{name}"
        if not NAME.fullmatch(name):
            yield key, "a topic's name is 1 to 200 letters, digits, '-' and '_'"
            continue
        try:
            yield key, _declared(name, msgspec.convert(table, Table), folder, settings)
        except msgspec.ValidationError as exc:
            reason, _, place = str(exc).partition(" - at `$")
            yield f"{key}{place.rstrip('`')}", f"{reason[:1].lower()}{reason[1:]}"
        except _Wrong as exc:
            yield f"{key}{exc.args[0]}", exc.args[1]


class _Wrong(Exception):
    """What is wrong with one value of a table: the rest of its key's path, and the reason."""


def _declared(name: str, table: Table, folder: Path, settings: Settings) -> Declared:
    if has_password(table.endpoint):
        raise _Wrong(".endpoint", "a password does not belong into the file: give SCHEME://USER@HOST and password-file")
    given = Given(
        endpoint=table.endpoint,
        kafka_topic=table.kafka_topic,
        args=dict(_argument(each, value) for each, value in table.args.items()),
        delivery=Delivery(table.delivery) if table.delivery else None,
        password=_password(folder, "password-file", table.password_file),
        key_password=_password(folder, "key-password-file", table.key_password_file),
        time_to_live_s=_seconds("time-to-live", table.time_to_live),
        max_retries=table.max_retries,
        retry_sleep_s=_seconds("retry-sleep-duration", table.retry_sleep_duration),
        opaque_data=table.opaque_data.encode() if table.opaque_data is not None else None,
    )
    plain = Topic(
        name, "", name, Target("", "", name), shards=table.shards, origin=Origin.REMORA, is_sequenced=table.sequence
    )
    topic = given.on(plain)
    try:
        return Declared(topic, table.closed, app.check_target(topic.target, settings))
    except EndpointMisconfigured as exc:
        raise _Wrong("", str(exc)) from exc


def _argument(name: str, value: str | bool | int) -> tuple[str, str]:
    if name in SECRETS:
        raise _Wrong(f".args.{name}", f"a password does not belong into the file: use {SECRETS[name]}")
    if why := unknown_argument(name):
        raise _Wrong(f".args.{name}", why)
    return name, str(value).lower() if isinstance(value, bool) else str(value)


def _password(folder: Path, key: str, name: str | None) -> str | None:
    """The password of a file, whose path counts from the folder of the file of topics; `key` names it there."""
    if name is None:
        return None
    try:
        with (folder / name).open("rb") as file:
            return read_password(file)
    except OSError as exc:
        raise _Wrong(f".{key}", f"cannot read {folder / name}: {exc.strerror}") from exc
    except ValueError as exc:
        raise _Wrong(f".{key}", str(exc)) from exc


def _seconds(name: str, value: str | int | None) -> int | None:
    if value is None:
        return None
    try:
        return whole_seconds(str(value))
    except ValueError as exc:
        raise _Wrong(f".{name}", str(exc)) from exc
