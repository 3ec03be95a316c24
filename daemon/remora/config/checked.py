"""Settings that refuse to be built while they break a rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from remora.model.errors import ConfigError, ConfigErrors


class Checked:
    """Settings that refuse to be built while they break a rule."""

    __slots__ = ()

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from ()


MOST_TABLES = 256
"""The most tables of a list of scopes, or of limits: each takes part of the memory in which credit is shared."""


def too_many(number: int, path: str) -> Iterator[ConfigError]:
    """A problem where a list has more tables than it may."""
    if number > MOST_TABLES:
        yield ConfigError(path, f"has {number} tables, and may have {MOST_TABLES}")


def repeated(names: Iterable[str], path: str) -> Iterator[ConfigError]:
    """A problem for each name that stands for something before."""
    seen: set[str] = set()
    for each in names:
        if each in seen:
            yield ConfigError(f"{path}.{each}", "is there twice")
        seen.add(each)


def wrong_mode(path: str, mode: str) -> Iterator[ConfigError]:
    """A problem where a socket's mode is none."""
    if not re.fullmatch("0?[0-7]{3}", mode):
        yield ConfigError(path, f'expected three octal digits such as "0660", not "{mode}"')


def raised(check: Callable[[], object]) -> Iterator[ConfigError]:
    """The problem that a check raises, if it does."""
    try:
        check()
    except ConfigError as exc:
        yield exc


def refuse(problems: Iterable[ConfigError]) -> None:
    """Raise the one problem, or all of them as one; nothing where there are none."""
    found = tuple(problems)
    if found:
        raise found[0] if len(found) == 1 else ConfigErrors(found)
