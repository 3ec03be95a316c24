"""Values that no policy takes, refused with the member's name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from remora.model.errors import ConfigError
from remora.model.traffic import BUCKETS, Priority


def not_negative(path: str = "", /, **values: Any) -> None:
    """Refuse numbers below 0; what is no number, since it was left out, is fine."""
    for name, value in values.items():
        if isinstance(value, int | float) and value < 0:
            raise ConfigError(f"{path}{name}", "must not be negative")


TICK_US = (1_000, 1_000_000)
MOST_MEMBERS = 10_000
"""Workers of one host; each has buckets of its own."""


def at_least(least: int, /, **values: Any) -> None:
    """Refuse numbers below a bound."""
    for name, value in values.items():
        if value < least:
            raise ConfigError(name, f"must be at least {least}")


def within(least: int, most: int, /, **values: Any) -> None:
    """Refuse numbers outside of two bounds."""
    for name, value in values.items():
        if not least <= value <= most:
            raise ConfigError(name, f"must be from {least} to {most}")


def bucket_named(name: str, path: str = "bucket") -> str:
    """A bucket, the spare included."""
    return one_of(name, BUCKETS, path)


def priority_named(name: str, path: str = "bucket") -> str:
    """A bucket from which one sends."""
    return one_of(name, [str(each) for each in Priority], path)


def one_of(name: str, names: Collection[str], path: str) -> str:
    """A name that there is."""
    if name not in names:
        raise ConfigError(path, f"{name} is unknown; there are {', '.join(names)}")
    return name


def no_doubles(names: Iterable[str], path: str) -> None:
    """Refuse a name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{path}.{name}" if path else name, "is there twice")
        seen.add(name)
