"""A topic's attributes as commands take and show them: the names and meanings are those of radosgw's topics."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, BinaryIO

import click

from remora import endpoint_kinds
from remora.codec.topic import DELIVERY, join_args, parse_args
from remora.config import DeliverySettings, Unit, parse_duration
from remora.model.topic import NAME, UNSET, Delivery, Target, Topic

ARGUMENTS = tuple(name for name, each in endpoint_kinds.ARGUMENTS.items() if not each.only_from)
"""The endpoint's arguments that `--arg` takes."""

SECRETS = MappingProxyType({name: each.only_from for name, each in endpoint_kinds.ARGUMENTS.items() if each.only_from})
"""The arguments that are secret, and the options that name a file with them."""

DEFAULTS = MappingProxyType({name: each.default for name, each in endpoint_kinds.ARGUMENTS.items() if each.default})
"""What arguments mean where a topic does not have them; an empty value is the same as none for each."""

MOST_PASSWORD_BYTES = 4096

NAMESAKE = "radosgw has a topic of this name too; commands tell the two apart by --origin"

CAPACITY = Unit("size", 64 << 10, 1 << 40)
"""What a queue may be told to hold; as `sqlite.queue_bytes`."""

HIDDEN = "***"
"""What is shown in place of a secret."""

_FIELDS = {
    "capacity": "capacity_bytes",
    "max-retries": "max_retries",
    "opaque-data": "opaque_data",
    "retry-sleep-duration": "retry_sleep_s",
    "time-to-live": "time_to_live_s",
}
"""The fields of a topic, and of what is given for it, by the attributes' names."""

UNSETTABLE = tuple(sorted(("delivery", "kafka-topic", *_FIELDS, *SECRETS)))
"""What `--unset` takes, besides the names of arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a command line says of a topic; None where it says nothing."""

    endpoint: str | None
    kafka_topic: str | None
    args: Mapping[str, str]
    delivery: Delivery | None
    password: str | None
    key_password: str | None
    client_secret: str | None
    time_to_live_s: int | None
    max_retries: int | None
    retry_sleep_s: int | None
    opaque_data: bytes | None
    capacity_bytes: int | None

    def on(self, topic: Topic) -> Topic:
        """A topic with what was given, and everything else as it is."""
        return replace(
            topic,
            target=Target(
                uri=given_or(self.endpoint, topic.target.uri),
                args=join_args(parse_args(topic.target.args) | dict(self._all_args())),
                topic=given_or(self.kafka_topic, topic.target.topic),
            ),
            **{each: given_or(getattr(self, each), getattr(topic, each)) for each in _FIELDS.values()},
        )

    def names(self) -> set[str]:
        """What was given, by the names that `--unset` has for it."""
        of_args = {"delivery" if name == DELIVERY else name for name in self._all_args()}
        of_fields = {name for name, each in _FIELDS.items() if getattr(self, each) is not None}
        return of_args | of_fields | ({"kafka-topic"} if self.kafka_topic is not None else set())

    def _all_args(self) -> Mapping[str, str]:
        given = {
            DELIVERY: self.delivery,
            "password": self.password,
            "ssl-key-password": self.key_password,
            "sasl-oauthbearer-client-secret": self.client_secret,
        }
        return {**self.args, **{name: str(value) for name, value in given.items() if value is not None}}


def given_or(given: Any, present: Any) -> Any:
    """What was given, else what is there."""
    return present if given is None else given


def without(topic: Topic, names: Sequence[str]) -> Topic:
    """A topic whose attributes of these names are at their defaults."""
    unset = {DELIVERY if name == "delivery" else name for name in names}
    args = {name: value for name, value in parse_args(topic.target.args).items() if name not in unset}
    target = replace(topic.target, args=join_args(args))
    if "kafka-topic" in names:
        target = replace(target, topic=topic.name)
    defaults: dict[str, Any] = {each: None for name, each in _FIELDS.items() if name in names}
    return replace(topic, target=target, **defaults)


def shown_arguments(topic: Topic) -> dict[str, str]:
    """The arguments of a topic's endpoint, without what is secret."""
    return {
        name: value if name in ARGUMENTS and name != "user-name" else HIDDEN
        for name, value in parse_args(topic.target.args).items()
    }


def differences(found: Topic, asked: Topic) -> list[str]:
    """The names of what is otherwise with one topic than with another."""
    pairs = {
        "endpoint": (found.target.uri, asked.target.uri),
        "arguments": (parse_args(found.target.args), parse_args(asked.target.args)),
        "kafka-topic": (found.target.topic, asked.target.topic),
        "shards": (found.shards, asked.shards),
        "sequence": (found.is_sequenced, asked.is_sequenced),
        "time-to-live": (found.time_to_live_s, asked.time_to_live_s),
        "max-retries": (found.max_retries, asked.max_retries),
        "retry-sleep-duration": (found.retry_sleep_s, asked.retry_sleep_s),
        "opaque-data": (found.opaque_data or b"", asked.opaque_data or b""),
        "capacity": (found.capacity_bytes, asked.capacity_bytes),
        "closed": (found.closed, asked.closed),
    }
    return [name for name, (one, other) in pairs.items() if one != other]


def meant(topic: Topic, delivery: DeliverySettings) -> Topic:
    """A topic with all defaults, its own or those of the configuration, in the place of what it leaves open.

    A topic that says what is the default differs from one that says nothing, and does just the same: `topic set` gives
    an attribute its former value, but cannot know that nobody ever gave it.
    """
    defaults = {**DEFAULTS, DELIVERY: str(delivery.mode)}
    given = {name: value for name, value in parse_args(topic.target.args).items() if value}
    return replace(
        topic,
        target=replace(topic.target, args=join_args(defaults | {name: _plain(name, given[name]) for name in given})),
        time_to_live_s=given_or(topic.time_to_live_s, delivery.time_to_live_s),
        max_retries=given_or(topic.max_retries, delivery.max_retries),
        retry_sleep_s=given_or(topic.retry_sleep_s, delivery.retry_sleep_duration_s),
    )


def _plain(name: str, value: str) -> str:
    """An argument's value, in the one form that it has where it is true or false."""
    is_boolean = DEFAULTS.get(name) in ("true", "false")
    return {"1": "true", "0": "false"}.get(value, value.lower()) if is_boolean else value


# -------------------------------------------------------------------------------------- reading options


class _Duration(click.ParamType[int]):
    """Whole seconds, or a number with a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return whole_seconds(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


DURATION = _Duration()


class _Capacity(click.ParamType[int]):
    """A size with a unit, in the limits of a queue's."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return int(CAPACITY.read(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def whole_seconds(text: str) -> int:
    """Seconds of `90` or `1h`. Raises ValueError for what an attribute cannot hold."""
    seconds = int(text) if text.isascii() and text.isdigit() else parse_duration(text)
    if seconds != int(seconds) or seconds >= UNSET:
        raise ValueError(f"expected whole seconds below {UNSET}")
    return int(seconds)


def checked_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not NAME.fullmatch(value):
        raise click.BadParameter("1 to 200 letters, digits, '-' and '_'")
    return value


def has_password(uri: str) -> bool:
    """Whether a URI carries a password in its user's part."""
    return ":" in uri.partition("://")[2].rpartition("@")[0]


def checked_endpoint(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """No password on a command line: every user of the host can read it there, and the shell keeps it."""
    if value is not None and has_password(value):
        raise click.BadParameter(
            "a password does not belong on a command line: give SCHEME://USER@HOST and --password-file"
        )
    return value


def _arguments(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_argument, values):
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given twice, and not alike")
    return found


def _argument(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if name in SECRETS:
        raise click.BadParameter(f"a password does not belong on a command line: use --{SECRETS[name]}")
    if why := unknown_argument(name):
        raise click.BadParameter(why)
    if not sign:
        raise click.BadParameter(f"expected {name}=VALUE")
    return name, value


def unknown_argument(name: str) -> str:
    """Why an endpoint's argument of this name is not taken; empty where it is."""
    if name in ARGUMENTS:
        return ""
    near = difflib.get_close_matches(name, ARGUMENTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ARGUMENTS)}"
    return f"there is no argument {name!r}; {hint}"


def _password(_context: click.Context, _option: click.Parameter, file: BinaryIO | None) -> str | None:
    if file is None:
        return None
    with file:
        try:
            return read_password(file)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from exc


def read_password(file: BinaryIO) -> str:
    """The password that a file holds, without the end of its line. Raises ValueError for what can be none."""
    raw = file.read(MOST_PASSWORD_BYTES + 1)
    try:
        password = raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("the file is no UTF-8 text") from None
    if not password or len(raw) > MOST_PASSWORD_BYTES:
        raise ValueError(f"expected a password of 1 to {MOST_PASSWORD_BYTES} bytes in the file")
    return password


def attribute_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `create` and `set` have in common; all but `--endpoint`."""
    limit = click.IntRange(0, UNSET - 1)
    for option in reversed((
        click.option("--kafka-topic", metavar="NAME", help="The Kafka topic; its name is the topic's otherwise."),
        click.option(
            "--arg", "args", multiple=True, metavar="NAME=VALUE", callback=_arguments,
            help=f"An argument of the endpoint, as radosgw's topics have them: {', '.join(ARGUMENTS)}. Repeatable.",
        ),
        click.option(
            "--delivery", type=click.Choice([str(each) for each in Delivery]),
            callback=lambda _context, _option, value: None if value is None else Delivery(value),
            help="Whether a reader of committed records sees each event once; delivery.mode of the daemon otherwise.",
        ),
        click.option(
            "--password-file", "password", type=click.File("rb"), callback=_password,
            help="A file that holds the password of user-name; - reads standard input.",
        ),
        click.option(
            "--ssl-key-password-file", "key_password", type=click.File("rb"), callback=_password,
            help="A file that holds the password of the key that ssl-key-location names.",
        ),
        click.option(
            "--sasl-oauthbearer-client-secret-file", "client_secret", type=click.File("rb"), callback=_password,
            help="A file that holds the secret of sasl-oauthbearer-client-id.",
        ),
        click.option(
            "--time-to-live", "time_to_live_s", type=DURATION,
            help="Entries older than this become dead letters; seconds or with a unit (1h), 0: never.",
        ),
        click.option(
            "--max-retries", type=limit,
            help="Entries that failed more often than this become dead letters; 0: never.",
        ),
        click.option(
            "--retry-sleep-duration", "retry_sleep_s", type=DURATION,
            help="The pause after each failed attempt; seconds or with a unit, 0: one that grows with each failure.",
        ),
        click.option(
            "--opaque-data", help="Text that every notification carries as opaqueData.",
            callback=lambda _context, _option, value: None if value is None else value.encode(errors="surrogateescape"),
        ),
        click.option(
            "--capacity", "capacity_bytes", type=_Capacity(),
            help="The most that each queue may hold, such as 2GB; then new events are refused. Embedded store only; "
            "sqlite.queue_bytes otherwise, as it is when the topic is made.",
        ),
    )):  # fmt: skip
        function = option(function)
    return function
