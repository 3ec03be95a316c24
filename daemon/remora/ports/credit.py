"""What the engine asks of whoever deals out credit to send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remora.policy.waiting import Account

Count = Callable[[str, int, bool], None]
"""Called with the priority and the bytes of what goes, and whether it was charged."""


class Bank(Protocol):
    """The accounts of one worker in the groups of its host."""

    def find(self, group: str) -> str | None:
        """The name under which a group is metered, its own or that of its scope's further ones.

        None where there is no such group yet; then it is asked for, and until it is there everything passes.
        """

    def account(self, group: str, count: Count) -> Account:
        """The account in a group by the name that `find` gave."""


class NoBank:
    """For a worker without a supervisor: everything passes."""

    def find(self, group: str) -> str | None:
        """None."""
        return None

    def account(self, group: str, count: Count) -> Account:
        """Raises KeyError: there is none."""
        raise KeyError(group)
