"""A page that a session has read ahead, and what is asked of the batches that were made of such pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remora.policy.acks import PageAcks


@dataclass(frozen=True, slots=True)
class PageAhead:
    """A page that nothing was begun of when it was noted: its entries, what became of them, and what they hold.

    `credit` are the bytes that were granted for its records, `batches` how many batches it made.
    """

    acks: PageAcks
    nbytes: int
    credit: int = 0
    batches: int = 0

    @property
    def entries(self) -> int:
        """How many there are."""
        return len(self.acks.positions) - 1


class Packed(Protocol):
    """What a sender has made of its pages."""

    def untouched(self, pages: Sequence[PageAhead]) -> int:
        """How many of the newest of these pages nothing was begun of."""
        ...

    def take_out(self, pages: Sequence[PageAhead]) -> None:
        """Forget these pages, the newest ones."""
        ...
