"""Where both stores note that topics may have changed, until who reads the catalogue takes notice."""

from __future__ import annotations

import asyncio


class CatalogueNews:
    """What is told before somebody waits is kept for the next who does."""

    def __init__(self) -> None:
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Some topic may have changed."""
        self._told.set()

    async def wait(self) -> None:
        """Return once it was told of a change, since this returned last."""
        await self._told.wait()
        self._told.clear()
