"""What the engine asks of the part that deals out credit to send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from remora.policy.cells import MemberAccount


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
