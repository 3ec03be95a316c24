"""Durations, sizes and counts: their texts in the file, and their limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

_DURATION_UNITS = MappingProxyType({"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400})

_SIZE_UNITS = MappingProxyType(
    {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
)

AUTO = -1
"""The value of a size that is given as "auto": whoever uses it finds out how much there is."""

_DURATION = re.compile(r"(([0-9]+)(?:\.([0-9]+))?)(ms|s|m|h|d)")

_SIZE = re.compile(r"([0-9]+)(B|KiB|MiB|GiB|KB|MB|GB)")

_MOST_DIGITS = 9
"""Of a duration, before its point and behind it."""

_MOST_SIZE_DIGITS = 15


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `30s`, `1.5m`, `2h` or `1d`; ValueError for anything else."""
    if not (match := _DURATION.fullmatch(text)):
        raise ValueError(f'expected a duration with a unit (ms, s, m, h or d) such as "30s", not "{text}"')
    number, whole, part, unit = match.groups()
    if max(len(whole), len(part or "")) > _MOST_DIGITS:
        raise ValueError(f'expected at most {_MOST_DIGITS} digits before and behind the point, not "{text}"')
    # The division keeps "100ms" at exactly 0.1, where a product with 0.001 would not.
    return float(number) / 1000 if unit == "ms" else float(number) * _DURATION_UNITS[unit]


def show_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads as this many whole milliseconds."""
    ms = round(seconds * 1000)
    if not ms:
        return "0s"
    for unit, each in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % each == 0:
            return f"{ms // each}{unit}"
    return f"{ms}ms"


def parse_size(text: str) -> int:
    """Bytes of `512B`, `512KiB`, `64MiB`, `1GiB`, `50KB`, `128MB` or `1GB`; ValueError for anything else."""
    if not (match := _SIZE.fullmatch(text)):
        raise ValueError(f'expected a size with a unit (B, KiB, MiB, GiB, KB, MB or GB) such as "64MiB", not "{text}"')
    if len(match[1]) > _MOST_SIZE_DIGITS:
        raise ValueError(f'expected at most {_MOST_SIZE_DIGITS} digits, not "{text}"')
    return int(match[1]) * _SIZE_UNITS[match[2]]


def show_size(nbytes: int) -> str:
    """The shortest text that `parse_size` reads as this many bytes."""
    for unit in ("GiB", "MiB", "GB", "MB", "KiB", "KB"):
        if nbytes and nbytes % _SIZE_UNITS[unit] == 0:
            return f"{nbytes // _SIZE_UNITS[unit]}{unit}"
    return f"{nbytes}B"


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number means, and its limits (both are allowed values); with `auto`, "auto" is a value, too."""

    kind: Literal["duration", "size", "count"]
    least: float
    most: float
    auto: bool = False

    def show(self, value: float) -> str:
        """The value as it stands in the file, without quotes."""
        if self.auto and value == AUTO:
            return "auto"
        match self.kind:
            case "duration":
                return show_duration(value)
            case "size":
                return show_size(int(value))
            case "count":
                return str(value)

    def read(self, raw: object) -> float | int:
        """The number that a TOML value stands for; ValueError says what is wrong with it."""
        if self.auto and raw == "auto":
            return AUTO
        value = self._number(raw)
        if not self.least <= value <= self.most:
            raise ValueError(f"{self.show(value)} is outside {self.show(self.least)} to {self.show(self.most)}")
        return value

    def _number(self, raw: object) -> float | int:
        if self.kind == "count":
            if isinstance(raw, bool) or not isinstance(raw, int):
                raise ValueError(f"expected a whole number, not {toml_name(raw)}")
            return raw
        if not isinstance(raw, str):
            example = '"30s"' if self.kind == "duration" else '"64MiB"'
            raise ValueError(f"expected a {self.kind} in quotes such as {example}, not {toml_name(raw)}")
        return parse_duration(raw) if self.kind == "duration" else parse_size(raw)


Seconds = Annotated[float, Unit("duration", 0.001, 7 * 86400)]

Lifetime = Annotated[float, Unit("duration", 0, 3650 * 86400)]

Bytes = Annotated[int, Unit("size", 64 << 10, 1 << 40)]

Rate = Annotated[int, Unit("size", 0, 1 << 50)]
"""Bytes per second, or bytes at once."""

Percent = Annotated[int, Unit("count", 0, 100)]

AnyBytes = Annotated[int, Unit("size", 0, 1 << 40)]

AutoBytes = Annotated[int, Unit("size", 0, 1 << 40, auto=True)]


def option_key(field_name: str) -> str:
    return field_name.removesuffix("_s")


def toml_name(raw: object) -> str:
    """What a TOML value is called, for messages; its content may be a misplaced secret and is not shown."""
    names = {bool: "true or false", int: "a number", float: "a fraction", str: "text", list: "a list", dict: "a table"}
    return names.get(type(raw), "a date or time")
