"""What an append says that has not landed for sure."""

from __future__ import annotations

from remora.model.errors import RemoraError


class NotAppended(RemoraError):
    """The entry is not in the log, and never will be: no position could be had, or written, in time."""

    retriable = True


class AppendUnclear(RemoraError):
    """The entry may be in the log, at `position`: the store did not say in time what became of the write."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position
