"""When a lock may be trusted, and when one may be broken before its lease ends: its holder has surely ended.

A lease runs on the store's clock from the moment the store answers, which lies somewhere between the request
and its reply. Counting from before the request can only make us stop too early, and the margin covers clocks
that run at different speeds. Trust therefore always ends before the lease does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of a lock in seconds, and the one rule that binds them: a renewal has two chances to succeed."""

    lease_s: float = 90.0
    renew_s: float = 30.0
    margin_s: float = 5.0

    def broken_rule(self) -> str | None:
        """The sentence that says why these times cannot work together; None when they can."""
        if self.lease_s <= 0 or self.renew_s <= 0 or self.margin_s <= 0:
            return "the lease, its renewal interval and its margin must all be longer than 0"
        if 2 * self.renew_s + self.margin_s > self.lease_s:
            return (
                f"a renewal every {self.renew_s:g} s is too slow for a lease of {self.lease_s:g} s: twice the interval"
                f" and the margin of {self.margin_s:g} s must fit into it, so that one failed renewal costs nothing"
            )
        return None


@dataclass(frozen=True, slots=True)
class Term:
    """One stretch of ownership, in seconds of the monotonic clock."""

    renew_at: float
    trusted_until: float

    @classmethod
    def granted(cls, times: LeaseTimes, asked_at: float) -> Term:
        """The term that a lock or renewal gives; `asked_at` is the time before the request was sent."""
        return cls(asked_at + times.renew_s, asked_at + times.lease_s - times.margin_s)

    def is_trusted(self, now: float) -> bool:
        """Whether something may still be started in the owner's name."""
        return now < self.trusted_until

    def retry_renewal(self, times: LeaseTimes, now: float) -> Term:
        """The same trust, with the next attempt a tenth of the interval away: a failed renewal is repeated soon."""
        return Term(now + times.renew_s / 10, self.trusted_until)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the holder of a lock.

    `reaped`: the asking worker's supervisor has reaped it. `unlocked`: its file in this host's run directory is there,
    and locked by no process. `earlier_boot`: its cookie names this host, and another of its boots than this one.
    `announced`: the list of workers shows it as live; there a worker stays for seconds after it has ended.
    """

    reaped: bool = False
    unlocked: bool = False
    earlier_boot: bool = False
    announced: bool = False


def has_ended(evidence: Evidence) -> bool:
    """Whether the worker has surely ended.

    The first two are about this one process. Another boot proves something only where no other host has this one's
    name, as a copy of a virtual machine does: who goes on announcing itself lives, whatever its cookie says.
    """
    if evidence.reaped or evidence.unlocked:
        return True
    return evidence.earlier_boot and not evidence.announced


def is_doubtful(evidence: Evidence) -> bool:
    """Whether it would have ended if it did not announce itself: when it stops to, it has."""
    return evidence.earlier_boot and evidence.announced and not has_ended(evidence)
