"""What ownership knows of the worker it runs in: its name, what it can deliver, and how busy it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from remora import __version__
from remora.config.workers import BalanceSettings
from remora.engine.admission.shares import WorkerShares
from remora.engine.traffic import Traffic
from remora.policy.ownership.loads import HostLimits
from remora.policy.ownership.not_owned import Schemes


@dataclass(slots=True)
class Meters:
    """What a worker's load is measured by. `settings` are replaced by a reload, and read anew at each use.

    `limits` are what the host's resources are measured by, `probe` gives their percentages since it was last asked,
    `held` that of the bytes of
    entries which may be held, and `taken_in` how many bytes of events the ingest API has taken in so far.
    `quarantined` are the destinations that this worker leaves to others.
    """

    settings: BalanceSettings = field(default_factory=BalanceSettings)
    traffic: Traffic = field(default_factory=Traffic)
    limits: Callable[[BalanceSettings], HostLimits] = lambda _: HostLimits()
    probe: Callable[[HostLimits], Mapping[str, float]] = lambda _: {}
    held: Callable[[], float] = lambda: 0.0
    taken_in: Callable[[], int] = lambda: 0
    quarantined: Callable[[], tuple[str, ...]] = tuple


@dataclass(slots=True)
class WorkerInfo:
    """This worker: its cookie, the URI schemes of its endpoints, how many workers start together, its meters, and what
    it has of the limits that all workers share.

    `schemes` are replaced by a reload, and read anew at each use. `group_size` counts this worker too. `hostname` is
    what people call the host, `release`
    the release of this remora.
    """

    cookie: str
    schemes: Schemes
    group_size: int = 1
    meters: Meters = field(default_factory=Meters)
    budgets: WorkerShares = field(default_factory=WorkerShares)
    hostname: str = ""
    release: str = __version__
