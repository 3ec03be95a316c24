"""Which releases the cluster's OSDs have: asked of the monitors when a session begins, and again and again after it."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from remora.model.errors import StoreError
from remora.policy.osd_releases import OsdReleases, parse_releases
from remora.storage.rados.session import ClusterSession

_EVERY_S = 5.0

_decode = msgspec.json.Decoder(dict[str, int]).decode


class Osds:
    """What the monitors said last. `changes` counts how often that was another answer than the one before.

    An OSD that is started anew is missing from one answer and there with its new release in a later one.
    """

    def __init__(self) -> None:
        self.releases = OsdReleases()
        self.changes = 0

    async def ask(self, session: ClusterSession) -> None:
        """Ask once. Where the monitors do not answer, or refuse, what they said last stands."""
        with contextlib.suppress(StoreError, msgspec.MsgspecError):
            self.note(parse_releases(_decode(await session.ask_monitors("osd versions"))))

    def note(self, found: OsdReleases) -> None:
        """Take an answer."""
        if found != self.releases:
            self.releases, self.changes = found, self.changes + 1

    async def keep_asking(self, session: ClusterSession) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.ask(session)
