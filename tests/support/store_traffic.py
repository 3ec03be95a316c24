"""Counts what a store says that it does beside deliveries."""

from __future__ import annotations


class CountedTraffic:
    """The bytes of each call; nothing waits."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.looks: list[int] = []
        self.walks: list[int] = []
        self.redrives: list[int] = []

    def committed(self, nbytes: int) -> None:
        self.commits.append(nbytes)

    def looked(self, nbytes: int) -> None:
        self.looks.append(nbytes)

    async def walked(self, nbytes: int) -> None:
        self.walks.append(nbytes)

    async def redriven(self, nbytes: int) -> None:
        self.redrives.append(nbytes)
