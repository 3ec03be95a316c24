"""Which releases the cluster's OSDs have: asked of the monitors when a session begins, and when other OSDs are up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import msgspec

from remora.model.errors import StoreError
from remora.policy.osd_releases import OsdReleases, parse_releases

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
