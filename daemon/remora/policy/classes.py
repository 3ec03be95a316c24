"""Which class a shard has, and which groups its listings are metered in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remora.model.traffic import CONFIGURABLE, Principal, Scope, ScopeKind, TrafficClass

NO_TENANT = "-"


def fits(patterns: Iterable[str], key: str) -> bool:
    """Whether a key is one of the names, or begins as one of those that end with a *."""
    return any(key.startswith(each[:-1]) if each.endswith("*") else key == each for each in patterns)


def highest_class(label: str, principals: Iterable[Principal], default: TrafficClass, asked: str = "") -> TrafficClass:
    """The highest class that a topic may have: its first principal's, else the default.

    What the topic itself asks for lowers it and never raises it; a word that is no class counts as nothing.
    """
    highest = next((each.max_class for each in principals if fits(each.match, label)), default)
    return highest.lower_of(TrafficClass(asked)) if asked in CONFIGURABLE else highest


def class_of(
    highest: TrafficClass, *, at_tail: bool, full: float, relief_at: float, may_relieve: bool = True
) -> TrafficClass:
    """The class of a shard's next listing.

    `at_tail` is False with a backlog, and where nothing is known yet. `full` is how full its queue is, in percent: one
    that is to be emptied first is relieved, unless its topic is meant to wait. `may_relieve` is False where a group of
    its path has no meter for relief: there the fullest queue would stand still for ever.
    """
    if may_relieve and full >= relief_at and highest.is_at_least(TrafficClass.TAIL):
        return TrafficClass.RELIEF
    return highest if at_tail else highest.lower_of(TrafficClass.BACKLOG)


def has_backlog(*, truncated: bool, newest_age_s: float | None, backlog_age_s: float) -> bool:
    """Whether a listing shows that its shard is catching up: there is more behind it, and its newest entry is old."""
    return truncated and newest_age_s is not None and newest_age_s > backlog_age_s


def groups_of(scopes: Sequence[Scope], *, label: str, tenant: str, destination: str) -> tuple[str, ...]:
    """The groups of a topic's listings, narrow to wide: for each kind that of the first scope that fits."""
    keys = {
        ScopeKind.TOPIC: label,
        ScopeKind.TENANT: tenant or NO_TENANT,
        ScopeKind.DESTINATION: destination,
        ScopeKind.HOST: None,
    }
    found: list[str] = []
    for kind, key in keys.items():
        scope = next((each for each in scopes if each.of is kind and (key is None or fits(each.match, key))), None)
        if scope is not None:
            found.append(scope.name if key is None or not scope.each else f"{scope.name}/{key}")
    return tuple(found)
