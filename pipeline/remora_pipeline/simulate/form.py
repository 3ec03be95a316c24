"""What a script looks like: the kinds of values that members have, checked with their path before anything runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Kind = Callable[[Any, str], Any]
"""Reads a JSON value at a path; raises NoScript."""

LARGEST = 10**100
"""Numbers are exact however large they are; what is larger than this is a slip."""


class NoScript(Exception):
    """The document is no script: a member is missing, unknown or of another type."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)


class Twice(dict[str, Any]):
    """An object that has a member twice."""

    def __init__(self, members: Mapping[str, Any], name: str) -> None:
        super().__init__(members)
        self.name = name


@dataclass(frozen=True, slots=True)
class Optional:
    """A member that may be left out."""

    kind: Kind
    default: Any


def whole(value: Any, path: str) -> int:
    """A whole number of either sign."""
    if type(value) is not int:
        raise NoScript(path, "must be a whole number")
    return int(_bounded(value, path))


def number(value: Any, path: str) -> float | int:
    """A whole number or a fraction."""
    if type(value) not in (int, float) or not math.isfinite(value if type(value) is float else 0):
        raise NoScript(path, "must be a number")
    return _bounded(value, path)


def text(value: Any, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise NoScript(path, "must be a string")
    return value


def flag(value: Any, path: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise NoScript(path, "must be true or false")
    return value


def or_null(kind: Kind) -> Kind:
    """A value of a kind, or null."""
    return lambda value, path: None if value is None else kind(value, path)


def either(word: str, kind: Kind) -> Kind:
    """One word, or a value of a kind."""

    def read(value: Any, path: str) -> Any:
        if value == word:
            return word
        try:
            return kind(value, path)
        except NoScript as exc:
            raise NoScript("", f'{exc}, or "{word}"') from None

    return read


def listed(kind: Kind) -> Kind:
    """A list."""

    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise NoScript(path, "must be a list")
        return [kind(each, f"{path}[{place}]") for place, each in enumerate(value)]

    return read


def named(kind: Kind) -> Kind:
    """An object with names of the script's own."""

    def read(value: Any, path: str) -> dict[str, Any]:
        return {name: kind(each, joined(path, name)) for name, each in _object(value, path).items()}

    return read


def members(**kinds: Kind | Optional) -> Kind:
    """An object with exactly these members, those that may be left out included; gives a namespace."""

    def read(value: Any, path: str) -> SimpleNamespace:
        given = _object(value, path)
        for name in given:
            if name not in kinds:
                raise NoScript(
                    joined(path, name), f"is unknown; there are {', '.join(kinds)}" if kinds else "is unknown"
                )
        found = SimpleNamespace()
        for name, kind in kinds.items():
            if name in given:
                read_one = kind.kind if isinstance(kind, Optional) else kind
                setattr(found, name, read_one(given[name], joined(path, name)))
            elif isinstance(kind, Optional):
                setattr(found, name, kind.default)
            else:
                raise NoScript(joined(path, name), "is missing")
        return found

    return read


def joined(path: str, name: str) -> str:
    """The path of a member."""
    return f"{path}.{shown(name)}" if path else shown(name)


def shown(name: str) -> str:
    """A name as it can stand in a line: one that would not be seen there, or would break the line, is quoted."""
    return name if name.strip() == name != "" and name.isprintable() else json.dumps(name)


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NoScript(path, "must be an object")
    if isinstance(value, Twice):
        raise NoScript(joined(path, value.name), "is there twice")
    return value


def _bounded(value: float | int, path: str) -> float | int:
    if abs(value) > LARGEST:
        raise NoScript(path, "is too large")
    return value
