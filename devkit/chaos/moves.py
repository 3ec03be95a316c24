"""Hurts owners within moves of entries: killed at a step, or frozen there until another host has taken over."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence

from devkit.chaos.hosts import STEPS, Host

TIMES = 3
COMES_S = 25.0
"""How long a strike waits for a move."""

TAKEN_OVER_S = 2.5
"""A frozen owner goes on so long after its lease: another host moves entries of its queues by then."""


async def hurt_moves(hosts: Sequence[Host], chance: random.Random, lease_s: float) -> list[str]:
    """Hurt whoever comes to a move first, a few times; what was done each time."""
    done = []
    for _ in range(TIMES):
        step, moment = chance.choice(STEPS), chance.choice(("before", "after"))
        how = chance.choice((signal.SIGKILL, signal.SIGSTOP))
        for host in hosts:
            host.moves.hurt(step, moment, how)
        try:
            first = await _first(hosts)
            if first is None:
                continue
            if how is signal.SIGSTOP:
                await _freeze(first, lease_s)
            done.append(f"{first.name} {'killed' if how is signal.SIGKILL else 'frozen'} {moment} {step!r}")
        finally:
            for host in hosts:
                host.moves.forget()
    return done


async def _first(hosts: Sequence[Host]) -> Host | None:
    """The host whose worker has been hurt; None where none came in time."""
    deadline = time.monotonic() + COMES_S
    while time.monotonic() < deadline:
        for host in hosts:
            if host.moves.hurt_worker():
                return host
        await asyncio.sleep(0.01)
    return None


async def _freeze(host: Host, lease_s: float) -> None:
    """Freeze the rest of the host at once, so that no supervisor ends its worker; all go on after the lease."""
    host.send(signal.SIGSTOP)
    pids = host.everybody
    host.send(signal.SIGSTOP, *pids)
    await asyncio.sleep(lease_s + TAKEN_OVER_S)
    host.send(signal.SIGCONT, *pids)
