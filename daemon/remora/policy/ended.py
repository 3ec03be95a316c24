"""Whether the worker that holds a lock has surely ended: only then may the lock be broken before its lease ends."""

from __future__ import annotations

from dataclasses import dataclass


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
