"""Which options there are, with their types and defaults, and which one a misspelt name may mean."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from remora.config.settings import Settings
from remora.config.units import Unit, option_key

RETIRED = MappingProxyType({
    "balance.lower_boundary": "no queue moves for its load while no worker is busy enough",
    "kafka.producers_per_endpoint": "topics of an endpoint share one set of connections",
    "sequencer.max_registrations": "32 logs are registered side by side",
})  # fmt: skip
"""Options that nobody could set better than they are now, with what holds in their place. A file that has one is taken,
and remarked on."""


def options() -> Iterator[tuple[str, object]]:
    """The dotted key and default of every option, as the file has them: durations and sizes are text."""
    defaults = Settings()
    for section in fields(Settings):
        part = getattr(defaults, section.name)
        for key, (name, hint) in options_of(part.__class__).items():
            value = getattr(part, name)
            unit = unit_of(hint)
            shown = list(value) if isinstance(value, tuple) else value
            yield f"{section.name}.{key}", unit.show(value) if unit and unit.kind != "count" else shown


def class_of(section: str) -> Any:
    return next(each.default_factory for each in fields(Settings) if each.name == section)


@functools.cache
def options_of(cls: Any) -> Mapping[str, tuple[str, Any]]:
    """Key of each option, with its field's name and type."""
    hints = get_type_hints(cls, include_extras=True)
    return MappingProxyType({option_key(each.name): (each.name, hints[each.name]) for each in fields(cls)})


def unit_of(hint: Any) -> Unit | None:
    """The unit of an option, which may also be one that has no value where it is left out."""
    args = [arg for each in get_args(hint) for arg in (each, *get_args(each))]
    return next((arg for arg in args if isinstance(arg, Unit)), None)


def part_of(hint: Any) -> Any:
    """The class of settings that an option has one of, or a list; None for an option with a plain value."""
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)


def elsewhere(key: str, known: Mapping[str, object]) -> str:
    """Returns the sections that have a misplaced option, else the nearest name here."""
    having = [section for section, _, option in (path.partition(".") for path, _ in options()) if option == key]
    return f"; it belongs into {' or '.join(f'[{each}]' for each in having)}" if having else did_you_mean(key, known)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
