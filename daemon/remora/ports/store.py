"""A whole store: all that delivering, taking events in and commands need, and its life."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from remora.ports.administration import Ledger, Letters, Notifications, OwnTopics
from remora.ports.delivery import DeliveryStore
from remora.ports.mends import Mends
from remora.ports.producer import AnyIngest, TwoPhase
from remora.ports.spill import Spills


class ShardStore(DeliveryStore, Protocol):
    """One store with all its parts.

    It is opened and closed by `async with`. Opening does not wait for the store to be reachable; until it is,
    every call raises StoreUnavailable. What can never work raises StoreMisconfigured when it is opened.
    """

    @property
    def letters(self) -> Letters: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def mends(self) -> Mends: ...
    @property
    def spill(self) -> Spills: ...
    @property
    def own_topics(self) -> OwnTopics: ...
    @property
    def notifications(self) -> Notifications: ...
    @property
    def two_phase(self) -> TwoPhase: ...
    @property
    def ingest(self) -> AnyIngest: ...

    @property
    def description(self) -> str:
        """What this store is and where that was learnt, one line for log and status."""
        ...

    @property
    def damaged(self) -> Mapping[str, str]:
        """The parts that are known to be unreadable, each with the reason; their topics may be missing elsewhere."""
        ...

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the store or a part of it cannot be used now: a sentence by its cause, one of a small closed set.

        `unreachable`, `gone`, `read_only`, `io_error`, `damaged`, `directory` (one of several), `full` while new events
        find no room on the disk and delivery goes on, `no_room` when not even that does, or `unusable` for anything
        else.
        """
        ...

    @property
    def depth(self) -> tuple[int, int]:
        """How many jobs wait for writers of this process, and how many operations for their servers."""
        ...

    @property
    def synced(self) -> int:
        """How many transactions it has synced to this host's disk since it was opened; 0 where others store. It never
        falls, also where the store lets its files go and opens them anew."""
        ...

    async def __aenter__(self) -> ShardStore: ...

    async def __aexit__(self, *exc_info: object) -> None: ...
