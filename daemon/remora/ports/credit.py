"""What the engine asks of the part that deals out credit to send."""

from __future__ import annotations

from collections.abc import Collection
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
