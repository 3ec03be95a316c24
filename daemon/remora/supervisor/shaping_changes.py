"""Changes of shaping by command: what they make of the settings, and the lines that say so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from remora.config import MeterSettings, MetersSettings, ScopeSettings, ShapingSettings, show_size
from remora.model.errors import ConfigError
from remora.model.traffic import BUCKETS, CONFIGURABLE, TrafficClass

ALL = "all"
"""Every scope, or every bucket of a scope."""

NO_METER = MeterSettings(guaranteed=0, burst=0)
"""What a bucket without a meter has."""

DEFAULT_CLASS = "default_class"
"""Its name beside those of the scopes, which have no underscore."""


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of one scope or of all, or of the default class; or back to what the file says.

    Names are in any case. Rates are bytes per second and `burst` bytes; None leaves a value as it is, and `unlimited`
    takes a bucket's max away.
    """

    reset: bool = False
    default_class: str = ""
    scope: str = ""
    enabled: bool | None = None
    priority: str = ""
    rate: int | None = None
    max: int | None = None
    unlimited: bool = False
    burst: int | None = None


class StoreUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a command did with the store, in bytes; its commits and its reads have a priority each."""

    priority: Literal["background", "idle"]
    nbytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


def reshaped(settings: ShapingSettings, change: Change) -> tuple[ShapingSettings, list[str]]:
    """The settings with a change, and a line for each value that it names, also where that stays as it is.

    Raises ConfigError, with the option's path, for a name that there is not and for values that break a rule.
    """
    if change.default_class:
        highest = TrafficClass(named(change.default_class, CONFIGURABLE, "shaping.default_class"))
        line = f"shaping::default_class {settings.default_class} => {highest}"
        chosen_class: Any = highest  # the type checker does not see that it is one of the words that are allowed
        return replace(settings, default_class=chosen_class), [line]
    names = [each.name for each in settings.scope]
    chosen = names if change.scope.lower() == ALL else [named(change.scope, names, "shaping.scope")]
    lines: list[str] = []
    scopes = tuple(_scope(each, change, lines) if each.name in chosen else each for each in settings.scope)
    return replace(settings, scope=scopes), lines


def differences(before: ShapingSettings, after: ShapingSettings) -> list[tuple[str, str, str]]:
    """What differs of all that a command can change: the value's name, what it was, and what it is.

    The names are those of the lines of a change. A scope that one of the two has not is `none` there.
    """
    old, new = _values(before), _values(after)
    names = [*old, *(name for name in new if name not in old)]
    return [(name, old.get(name, "none"), new.get(name, "none")) for name in names if old.get(name) != new.get(name)]


def overridden(file: ShapingSettings, in_force: ShapingSettings) -> dict[str, bool]:
    """Whether each scope in force, and the default class, is another than the file says."""
    of_file = {each.name: each for each in file.scope}
    scopes = {each.name: each != of_file.get(each.name) for each in in_force.scope}
    return {DEFAULT_CLASS: file.default_class != in_force.default_class, **scopes}


def _values(settings: ShapingSettings) -> dict[str, str]:
    """All that a command can change, as text by its name."""
    values = {DEFAULT_CLASS: str(settings.default_class)}
    for scope in settings.scope:
        values[scope.name] = _enabled(scope.enabled)
        for bucket in BUCKETS:
            meter, path = getattr(scope.meters, bucket) or NO_METER, f"{scope.name}::{bucket}"
            values[f"{path}::rate"] = show_size(meter.guaranteed)
            values[f"{path}::max"] = _most(meter.max)
            values[f"{path}::burst"] = show_size(meter.burst)
    return values


def _scope(scope: ScopeSettings, change: Change, lines: list[str]) -> ScopeSettings:
    """A scope with a change; the lines that say so join the others."""
    path = f"shaping::{scope.name}"
    if change.enabled is not None:
        lines.append(f"{path} {_enabled(scope.enabled)} => {_enabled(change.enabled)}")
        scope = replace(scope, enabled=change.enabled)
    if not change.priority:
        return scope
    everything = change.priority.lower() == ALL
    buckets = BUCKETS if everything else (named(change.priority, BUCKETS, f"shaping.scope.{scope.name}.meters"),)
    meters = {bucket: getattr(scope.meters, bucket) for bucket in BUCKETS}
    for bucket in buckets:
        before = meters[bucket] or NO_METER
        most = None if change.unlimited else before.max if change.max is None else change.max
        rate = before.guaranteed if change.rate is None else change.rate
        burst = before.burst if change.burst is None else change.burst
        meters[bucket] = after = MeterSettings(
            guaranteed=rate if most is None else min(rate, most), burst=burst, max=most
        )
        lines += _said(f"{path}::{bucket}", before, after, change)
    return replace(scope, meters=MetersSettings(**meters))


def _said(path: str, before: MeterSettings, after: MeterSettings, change: Change) -> Iterator[str]:
    wanted = before.guaranteed if change.rate is None else change.rate
    if wanted > after.guaranteed:
        yield f"{path}::rate {show_size(wanted)} is above its max, and is cut to it"
    if change.rate is not None or before.guaranteed != after.guaranteed:
        yield f"{path}::rate {show_size(before.guaranteed)} => {show_size(after.guaranteed)}"
    if change.max is not None or change.unlimited:
        yield f"{path}::max {_most(before.max)} => {_most(after.max)}"
    if change.burst is not None:
        yield f"{path}::burst {show_size(before.burst)} => {show_size(after.burst)}"


def named(word: str, names: Iterable[str], path: str) -> str:
    """The name that a word in any case means. Raises ConfigError with the nearest one where there is none."""
    known = {str(each).lower(): str(each) for each in names}
    if word.lower() in known:
        return known[word.lower()]
    near = difflib.get_close_matches(word.lower(), known, n=1)
    hint = f'; did you mean "{known[near[0]]}"?' if near else ""
    raise ConfigError(path, f'there is no "{word}"{hint}')


def _enabled(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


def _most(rate: int | None) -> str:
    return "none" if rate is None else show_size(rate)
