"""What the engine asks of the part that deals out credit to send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from remora.policy.shaping.cells import MemberAccount


class Bank(Protocol):
    """The accounts of one worker in the groups of its host."""

    @property
    def groups(self) -> Collection[str]:
        """The names of all groups that there are."""

    def find(self, group: str) -> str | None:
        """The name under which a group is metered, its own or that of its scope's further ones.

        None where there is no such group yet; then it is asked for, and until it is there everything passes.
        """

    def note_unacked(self, group: str, nbytes: int) -> None:
        """Set how many bytes of a group are granted to this worker and acknowledged by no endpoint."""

    def account(self, group: str) -> MemberAccount:
        """The account in a group by the name that `find` gave."""


class Budgets(Protocol):
    """What is noted of groups whose limits all workers of the store share, for this worker's share of them."""

    def configure(self, limits: Mapping[str, int], waiting: Callable[[], Collection[str]]) -> None:
        """Share these limits, in bytes per second by group; `waiting` says in which groups a listing waits."""

    def granted(self, group: str, nbytes: int) -> None:
        """A listing was granted `nbytes` in a group, whatever its kind."""

    def waits(self, group: str) -> None:
        """A listing begins to wait in a group."""


class StoreTraffic(Protocol):
    """Meters what a process has its host's store do beside deliveries. Nothing of it is refused."""

    def committed(self, nbytes: int) -> None:
        """A commit of events sends so many bytes."""

    def looked(self, nbytes: int) -> None:
        """A look at a queue or at a list has read so many bytes."""

    async def walked(self, nbytes: int) -> None:
        """A walk over entries or letters has read so many bytes; returns when it may go on."""

    async def redriven(self, nbytes: int) -> None:
        """A re-drive has sent so many bytes and removes as many; returns when it may go on."""


class NoStoreTraffic:
    """For a process whose traffic with the store nobody meters."""

    def committed(self, nbytes: int) -> None:
        """Nothing happens."""

    def looked(self, nbytes: int) -> None:
        """Nothing happens."""

    async def walked(self, nbytes: int) -> None:
        """It may go on."""

    async def redriven(self, nbytes: int) -> None:
        """It may go on."""


NO_TRAFFIC = NoStoreTraffic()


class NoBudgets:
    """For a worker that shares no limit with others."""

    def configure(self, limits: Mapping[str, int], waiting: Callable[[], Collection[str]]) -> None:
        """Nothing happens."""

    def granted(self, group: str, nbytes: int) -> None:
        """Nothing is noted."""

    def waits(self, group: str) -> None:
        """Nothing is noted."""


class NoBank:
    """For a worker without a supervisor: everything passes."""

    groups: Collection[str] = ()

    def find(self, group: str) -> str | None:
        """None."""
        return None

    def note_unacked(self, group: str, nbytes: int) -> None:
        """Nothing is noted."""

    def account(self, group: str) -> MemberAccount:
        """Raises KeyError: there is none."""
        raise KeyError(group)
