"""A file of topics: what each is to be, read and checked as a whole before any of it is carried out.

`declared_notifications` reads its notifications.

A table `[topic.NAME]` has the options of `remora topic create` under the same names. What it leaves out has its
default; only `closed`, which a drain sets too, and the number of shards are left as they are. msgspec checks the shape
of a table, and the functions that read the options of commands check what a value means.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from remora import endpoint_kinds
from remora.cli import declared_notifications as of_notifications
from remora.cli.attributes import CAPACITY, SECRETS, Given, has_password, read_password, unknown_argument, whole_seconds
from remora.codec.topic import SLO
from remora.config import Settings, line_of, lines_of, read_toml, refuse, toml_name
from remora.model.errors import ConfigError, EndpointMisconfigured
from remora.model.shard import Origin
from remora.model.topic import MOST_SHARDS, NAME, UNSET, Delivery, Target, Topic
from remora.policy.ingest.notification_rules import unknown_topics
from remora.policy.status.objectives import parse_objective

MOST_BYTES = 16 << 20
"""A file beyond this size is a mistake and is not read."""


class Table(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", kw_only=True, frozen=True):
    """One `[topic.NAME]`, as it stands in the file."""

    endpoint: str
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] | None = None
    sequence: bool = False
    kafka_topic: str | None = None
    args: dict[str, Any] = {}
    delivery: Literal["at-least-once", "exactly-once"] | None = None
    password_file: str | None = None
    ssl_key_password_file: str | None = None
    sasl_oauthbearer_client_secret_file: str | None = None
    time_to_live: str | int | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, lt=UNSET)] | None = None
    retry_sleep_duration: str | int | None = None
    opaque_data: str | None = None
    capacity: str | None = None
    closed: bool | None = None
    slo: str | None = None


_FIELDS = MappingProxyType({each.encode_name: each for each in msgspec.structs.fields(Table)})
"""The options of a table by the names that they have there."""

_OF_TARGET = ("endpoint", "kafka-topic", "args", "delivery", *SECRETS.values())
"""Those of them that say where events go."""


class Declared(msgspec.Struct, frozen=True):
    """A topic as the file wants it. `closed` is None where the file does not say.

    `keeps_shards` where it does not say how many there are to be: the topic has the default number if it is new.
    """

    topic: Topic
    closed: bool | None
    remarks: list[str]
    keeps_shards: bool = False


@dataclass(frozen=True)
class DeclaredFile:
    """The topics and notifications of a file, in its order."""

    path: Path
    text: str
    topics: list[Declared]
    notifications: list[of_notifications.DeclaredNotification]

    def check_topics(self, present: Collection[str]) -> None:
        """Raise ConfigError where a notification names a topic that neither the file nor the store has: of the store
        these are `present`."""
        known = {each.topic.name for each in self.topics} | set(present)
        problems = [
            each.problem(wrong.key, wrong.why)
            for each in self.notifications
            for wrong in unknown_topics(each.notification, known)
        ]
        _refuse(self.path, self.text, problems)


def load_declared(path: Path, settings: Settings) -> DeclaredFile:
    """What a file declares. Raises ConfigError with all its problems, each with the path of its key."""
    file = read_toml(path, MOST_BYTES, "file of topics")
    problems: list[of_notifications.Problem] = []
    found = DeclaredFile(path, file.text, [], [])
    for key, topic in _each(file.content, path.parent, settings):
        if isinstance(topic, Declared):
            found.topics.append(topic)
        else:
            problems.append((key, key, topic))
    for each in of_notifications.each_notification(file.content):
        if isinstance(each, of_notifications.DeclaredNotification):
            found.notifications.append(each)
        else:
            problems.append(each)
    _refuse(path, file.text, problems)
    return found


def _refuse(path: Path, text: str, problems: Sequence[of_notifications.Problem]) -> None:
    lines = lines_of(text) if problems else {}
    refuse(ConfigError(f"{path}: {shown}", why, place=f"line {line_of(key, lines)}") for key, shown, why in problems)


def _each(document: Mapping[str, Any], folder: Path, settings: Settings) -> Iterator[tuple[str, Declared | str]]:
    """Each topic, or each thing that is wrong with one, and where."""
    for key in document:
        if key not in ("topic", of_notifications.TABLE):
            yield key, "there is no such table: topics are tables [topic.NAME], and notifications [[notification]]"
    tables = document.get("topic", {})
    if not isinstance(tables, dict):
        yield "topic", "expected tables [topic.NAME]"
        return
    for name, table in tables.items():
        key = f"topic.{name}"
        if not NAME.fullmatch(name):
            yield key, "a topic's name is 1 to 200 letters, digits, '-' and '_'"
        elif not isinstance(table, dict):
            yield key, "expected a table [topic.NAME]"
        else:
            reading = _Reading(folder, settings)
            topic = reading.topic(name, table)
            yield from ((f"{key}{place}", why) for place, why in reading.problems)
            if topic is not None:
                yield key, topic


class _Reading:
    """Takes one table apart; what is wrong gathers in `problems`: the rest of its key's path, and the reason."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.problems: list[tuple[str, str]] = []
        self._is_target_read = True
        self._folder = folder
        self._settings = settings

    def topic(self, name: str, raw: Mapping[str, Any]) -> Declared | None:
        """The topic of a table; None where something is wrong with it."""
        table = self._table(raw)
        shards = self._settings.topics.default_shards if table.shards is None else table.shards
        target, is_sequenced = Target("", "", name), table.sequence
        plain = Topic(name, "", name, target, shards=shards, origin=Origin.REMORA, is_sequenced=is_sequenced)
        topic, remarks = self._given(table).on(plain), list[str]()
        if self._is_target_read:
            try:
                remarks = endpoint_kinds.check_target(topic.target, self._settings)
            except EndpointMisconfigured as exc:
                self.problems.append(("", str(exc)))
        return None if self.problems else Declared(topic, table.closed, remarks, table.shards is None)

    def _table(self, raw: Mapping[str, Any]) -> Table:
        """The values of a table that have the right shape, and defaults for the others."""
        values = {}
        for key, value in raw.items():
            if key not in _FIELDS:
                near = difflib.get_close_matches(key, _FIELDS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.problems.append((f".{key}", f"there is no such option{hint}"))
                continue
            try:
                values[_FIELDS[key].name] = msgspec.convert(value, _FIELDS[key].type)
            except msgspec.ValidationError as exc:
                reason, _, place = str(exc).partition(" - at `$")
                self.problems.append((f".{key}{place.rstrip('`')}", f"{reason[:1].lower()}{reason[1:]}"))
                self._is_target_read &= key not in _OF_TARGET
        if "endpoint" not in raw:
            self._misread("", "missing required field `endpoint`")
        return Table(**{"endpoint": "", **values})

    def _given(self, table: Table) -> Given:
        """What the table says in the words of a command line."""
        if has_password(table.endpoint):
            why = "a password does not belong into the file: give SCHEME://USER@HOST and password-file"
            self.problems.append((".endpoint", why))
        args = {name: self._argument(name, value) for name, value in table.args.items()} | self._slo(table)
        return Given(
            endpoint=table.endpoint,
            kafka_topic=table.kafka_topic,
            args=args,
            delivery=Delivery(table.delivery) if table.delivery else None,
            password=self._password("password-file", table.password_file),
            key_password=self._password("ssl-key-password-file", table.ssl_key_password_file),
            client_secret=self._password(
                "sasl-oauthbearer-client-secret-file", table.sasl_oauthbearer_client_secret_file
            ),
            time_to_live_s=self._seconds("time-to-live", table.time_to_live),
            max_retries=table.max_retries,
            retry_sleep_s=self._seconds("retry-sleep-duration", table.retry_sleep_duration),
            opaque_data=table.opaque_data.encode() if table.opaque_data is not None else None,
            capacity_bytes=self._capacity(table),
        )

    def _capacity(self, table: Table) -> int | None:
        if table.capacity is None:
            return None
        try:
            return int(CAPACITY.read(table.capacity))
        except ValueError as exc:
            self.problems.append((".capacity", str(exc)))
            return None

    def _slo(self, table: Table) -> dict[str, str]:
        """The service level, which is kept among the arguments as the delivery mode is."""
        if table.slo is None:
            return {}
        try:
            return {SLO: str(parse_objective(table.slo))}
        except ValueError as exc:
            self.problems.append((".slo", str(exc)))
            return {}

    def _argument(self, name: str, value: object) -> str:
        if name in SECRETS:
            self._misread(f".args.{name}", f"a password does not belong into the file: use {SECRETS[name]}")
        elif why := unknown_argument(name):
            self.problems.append((f".args.{name}", why))
        elif not isinstance(value, str | bool | int):
            self._misread(f".args.{name}", f"expected text, true or false, or a whole number, not {toml_name(value)}")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _password(self, key: str, file: str | None) -> str | None:
        """The password of a file, whose path counts from the folder of the file of topics."""
        if file is None:
            return None
        try:
            with (self._folder / file).open("rb") as opened:
                return read_password(opened)
        except OSError as exc:
            self._misread(f".{key}", f"cannot read {self._folder / file}: {exc.strerror}")
        except ValueError as exc:
            self._misread(f".{key}", str(exc))
        return None

    def _misread(self, key: str, why: str) -> None:
        """A part of the target is wrong, so that what else is wrong with the target may only follow from that."""
        self.problems.append((key, why))
        self._is_target_read = False

    def _seconds(self, key: str, value: str | int | None) -> int | None:
        if value is None:
            return None
        try:
            return whole_seconds(str(value))
        except ValueError as exc:
            self.problems.append((f".{key}", str(exc)))
            return None
