"""Which releases the cluster's OSDs have: asked of the monitors when a session begins, and when other OSDs are up.

Some releases leak room: 10 bytes of a queue for each event that was ever reserved for.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from remora.model.errors import StoreError

Release = tuple[int, int, int]

_FIXED_SINCE: Mapping[int, int] = {19: 4, 20: 3}
"""The first point release without the leak of each series that has both; older series leak, later ones never did."""

_VERSION = re.compile(r"ceph version (\d+)\.(\d+)\.(\d+)")


def leaks(release: Release) -> bool:
    """Whether queues on OSDs of this release leak room."""
    series, stage, point = release
    if series in _FIXED_SINCE:
        return (stage, point) < (2, _FIXED_SINCE[series])
    return series < min(_FIXED_SINCE)


@dataclass(frozen=True, slots=True)
class OsdReleases:
    """The releases of the OSDs that are up, with their number; empty where the monitors did not say.

    Of `unknown` ones they know none that can be read: such as one that has just been started, or was built by hand.
    """

    counts: Mapping[Release, int] = field(default_factory=dict)
    unknown: int = 0

    @property
    def may_be_fixed(self) -> bool:
        """Whether queues may lie on OSDs that do not leak, also where that is not known."""
        return not self.counts or self.unknown > 0 or not all(map(leaks, self.counts))

    @property
    def are_mixed(self) -> bool:
        """Whether a queue may come from OSDs that leak to others without any of them being started anew."""
        return self.may_be_fixed and (self.unknown > 0 or any(map(leaks, self.counts)))

    def __str__(self) -> str:
        """For log and status, such as `OSDs 16.2.15, whose queues leak room`."""
        if not self.counts:
            return "OSDs of unknown release"
        named = [(".".join(map(str, each)), leaks(each)) for each in sorted(self.counts)]
        if self.unknown:
            named.append((f"{self.unknown} of unknown release", False))
        if all(leaky for _, leaky in named):
            return f"OSDs {', '.join(name for name, _ in named)}, whose queues leak room"
        return "OSDs " + ", ".join(name + (", whose queues leak room" if leaky else "") for name, leaky in named)


def parse_releases(versions: Mapping[str, int]) -> OsdReleases:
    """From the monitors' answer: how many OSDs say what of their version."""
    counts: dict[Release, int] = {}
    unknown = 0
    for text, count in versions.items():
        if found := _VERSION.match(text):
            release = (int(found[1]), int(found[2]), int(found[3]))
            counts[release] = counts.get(release, 0) + count
        else:
            unknown += count
    return OsdReleases(counts, unknown)


_EVERY_S = 5.0


class _Stat(msgspec.Struct, frozen=True):
    """The monitors' `osd stat`, as far as it is used: the epoch grows whenever an OSD goes down or comes up."""

    epoch: int


_stat = msgspec.json.Decoder(_Stat).decode
_versions = msgspec.json.Decoder(dict[str, int]).decode


class Monitors(Protocol):
    """What is asked of a session with the cluster."""

    async def ask_monitors(self, prefix: str) -> bytes:
        """The answer to a command without arguments."""
        ...


class Osds:
    """What the monitors said last. `changes` counts how often that was another answer than the one before.

    An OSD that is started anew is missing from one answer and there with its new release in a later one. The releases
    cost a monitor a look at each OSD, so they are asked for only when the epoch has changed.
    """

    def __init__(self) -> None:
        self.releases = OsdReleases()
        self.changes = 0
        self._epoch = 0

    async def ask(self, session: Monitors) -> None:
        """Ask once. Where the monitors do not answer, or refuse, what they said last stands."""
        with contextlib.suppress(StoreError, msgspec.MsgspecError):
            epoch = _stat(await session.ask_monitors("osd stat")).epoch
            if epoch != self._epoch:
                self.note(parse_releases(_versions(await session.ask_monitors("osd versions"))))
                self._epoch = epoch

    def note(self, found: OsdReleases) -> None:
        """Take an answer."""
        if found != self.releases:
            self.releases, self.changes = found, self.changes + 1

    async def keep_asking(self, session: Monitors) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.ask(session)
