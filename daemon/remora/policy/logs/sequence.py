"""The states of a log in a sequencer, without a clock, and which logs it remembers though it does not serve them.

Nothing of a counter outlives its epoch: a log that was lost is registered anew. The result of a registration counts
only for the attempt that it belongs to, so a slow one that was overtaken changes nothing.

A client may ask for logs that do not exist, and each such request reads the store. With a share for each client, the
logs of others find room, and their looks wait behind a few of its own only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from remora.model.log import LogName
from remora.policy.ownership.lease import LeaseTimes

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
"""Between two attempts to register a log that cannot be served."""

UNKNOWN_S = 1.0
"""How long a log is remembered as one that does not exist."""

LOOK_AGAIN_S = 1.0
"""How often a log's projection is read again because clients know a later epoch."""

TRUSTED = 0.8
"""The part of a lease for which its holder trusts it, from before it was asked for."""

RENEW = 0.25
"""The part of a lease after which it is renewed."""


def lease_times(lease_s: float) -> LeaseTimes:
    """The times of a log's lock."""
    return LeaseTimes(lease_s, renew_s=RENEW * lease_s, margin_s=(1 - TRUSTED) * lease_s)


class LogPhase(Enum):
    """Where a log is."""

    UNKNOWN = "unknown"
    REGISTERING = "registering"
    SERVING = "serving"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LogState:
    """A log in a sequencer.

    `attempt` numbers the registrations; `until` is the time before which nothing new is tried: a registration while the
    log is refused, a look at its projection while it is served. `is_missing`: the last registration has found no such
    log.
    """

    phase: LogPhase = LogPhase.UNKNOWN
    attempt: int = 0
    failures: int = 0
    until: float = 0.0
    epoch: int = 0
    reason: str = ""
    is_missing: bool = False


def asked(state: LogState, now: float) -> tuple[LogState, bool]:
    """A client asks for a log that is not served: the state, and whether to begin a registration."""
    if state.phase is LogPhase.UNKNOWN or (state.phase is LogPhase.REFUSED and now >= state.until):
        return replace(state, phase=LogPhase.REGISTERING, attempt=state.attempt + 1), True
    return state, False


def ahead(state: LogState, now: float) -> tuple[LogState, bool]:
    """A client knows a later epoch than is served: the state, and whether to read the projection again."""
    if state.phase is LogPhase.SERVING and now >= state.until:
        return replace(state, until=now + LOOK_AGAIN_S), True
    return state, False


def registered(state: LogState, attempt: int, epoch: int) -> tuple[LogState, bool]:
    """A registration has succeeded: the state, and whether its epoch is to be served."""
    if state.phase is not LogPhase.REGISTERING or state.attempt != attempt:
        return state, False
    return LogState(LogPhase.SERVING, attempt, epoch=epoch), True


def failed(state: LogState, attempt: int, now: float, reason: str, *, chance: float, unknown: bool = False) -> LogState:
    """A registration has failed; `chance`, in [0, 1), spreads the next one, `unknown` says: no such log."""
    if state.phase is not LogPhase.REGISTERING or state.attempt != attempt:
        return state
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(state.failures, 30))
    pause_s = UNKNOWN_S if unknown else max(FIRST_PAUSE_S, longest * chance)
    return LogState(LogPhase.REFUSED, attempt, state.failures + 1, now + pause_s, reason=reason, is_missing=unknown)


def lost(state: LogState, epoch: int, reason: str) -> tuple[LogState, bool]:
    """An epoch is over, as its lock is not trusted or another server has a later one: whether to stop serving it."""
    if state.phase is not LogPhase.SERVING or state.epoch != epoch:
        return state, False
    return LogState(attempt=state.attempt, reason=reason), True


class LogShares:
    """Logs, each counted for the client that asked for it first."""

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most` logs at a time, and `most_of_one` of a client."""
        self._most = most
        self._most_of_one = most_of_one
        self._clients: dict[LogName, int] = {}
        self._counts: dict[int, int] = {}

    def __contains__(self, log: LogName) -> bool:
        """Whether a log is counted."""
        return log in self._clients

    def admit(self, log: LogName, client: int) -> bool:
        """Count a log for a client, unless its share or the room of all is used up. One that is counted stays so."""
        if log in self._clients:
            return True
        count = self._counts.get(client, 0)
        if count >= self._most_of_one or len(self._clients) >= self._most:
            return False
        self._clients[log], self._counts[client] = client, count + 1
        return True

    def drop(self, log: LogName) -> None:
        """Stop counting a log. One that is not counted stays so."""
        client = self._clients.pop(log, None)
        if client is None:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
