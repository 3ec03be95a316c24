"""Which destinations a worker leaves to others for a while, since they fail it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COUNTED = ("timeout", "unavailable", "storage")
CONNECT = "connect"
NOT_COUNTED = ("configuration", "too_large", "refused", "leader_moved", "fenced", "aborted")
"""Errors about a record, a topic or a routine move say nothing about a destination."""


@dataclass(frozen=True, slots=True)
class Options:
    """When a destination is quarantined, and for how long; `ratio` is the part of the workers that do so."""

    enabled: bool = True
    threshold: int = 5
    time_s: float = 1800
    ratio: float = 1.0
    connect_errors: bool = False
    early_release: bool = True


@dataclass(frozen=True, slots=True)
class Closed:
    """What a window's end brought, each by name."""

    entered: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    released: int = 0


class Quarantine:
    """One worker's view: errors of the window under way, and until when it leaves which destination alone.

    Windows are fixed: nothing is carried from one to the next.
    """

    def __init__(self, options: Options) -> None:
        self.enabled = options.enabled
        self.quarantined = 0
        self.skipped = 0
        self._options = options
        self._errors: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def use(self, options: Options) -> None:
        """Go by other options from now on; what is in quarantine stays so until its time is over."""
        self._options, self.enabled = options, options.enabled

    def until(self, now: float) -> dict[str, float]:
        """The destinations in quarantine, and until when."""
        return {name: until for name, until in sorted(self._until.items()) if now < until}

    def error(self, destination: str, kind: str, count: int = 1) -> int:
        """Something failed; answers how many errors of this destination count in this window."""
        if kind in COUNTED or (kind == CONNECT and self._options.connect_errors):
            self._errors[destination] = self._errors.get(destination, 0) + count
        return self._errors.get(destination, 0)

    def close(self, now: float, chance: Mapping[str, float]) -> Closed:
        """The window ends. `chance` is a draw in [0, 1) for each bad destination, 0 where there is none.

        A quarantine that lasts is not made longer, and is counted all the same.
        """
        self._until = self.until(now)
        bad = sorted(name for name, errors in self._errors.items() if errors >= self._options.threshold)
        self._errors = {}
        if not self.enabled:
            return Closed(released=self.release())
        entered, skipped = [], []
        for name in bad:
            if chance.get(name, 0.0) >= self._options.ratio:
                skipped.append(name)
                continue
            self.quarantined += 1
            if name not in self._until:
                self._until[name] = now + self._options.time_s
                entered.append(name)
        self.skipped += len(skipped)
        return Closed(tuple(entered), tuple(skipped))

    def is_quarantined(self, destination: str, now: float) -> bool:
        """Whether this worker leaves the destination to others now."""
        return now < self._until.get(destination, now)

    def succeeded(self, destination: str, now: float) -> bool:
        """The destination took something; whether that ended its quarantine."""
        if not (self._options.early_release and self.is_quarantined(destination, now)):
            return False
        del self._until[destination]
        return True

    def release(self, destination: str | None = None) -> int:
        """End the quarantine of one destination or of all, and answer of how many."""
        names = list(self._until) if destination is None else [name for name in self._until if name == destination]
        for name in names:
            del self._until[name]
        return len(names)


def owners(workers: Mapping[str, bool], need: int) -> list[str]:
    """Who may have a destination's shards: who does not have it in quarantine, and as many others as are missing."""
    good = sorted(name for name, has_it in workers.items() if not has_it)
    others = sorted(name for name, has_it in workers.items() if has_it)
    return good + others[: max(0, need - len(good))]
