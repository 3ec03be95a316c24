"""A sequencer on a store, without a process or sockets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from remora.config import SequencerSettings
from remora.engine.sequencer import Sequencing
from remora.metrics.sequencer import SequencerTelemetry
from remora.model.log import LogName

INIT_LOG = bytes.fromhex("0000000408001001")
LEASE_S = 3600.0
"""No test takes as long: a lease ends when the clock of its server is moved."""


class Server:
    """A sequencer whose rounds the test makes."""

    def __init__(self, logs: Any, **options: Any) -> None:
        settings = SequencerSettings(lease_s=LEASE_S, **options)
        self.telemetry = SequencerTelemetry()
        self.sequencing = Sequencing(logs, settings, "unix:/s", Random(1), self.telemetry)
        self.late_s = 0.0
        loop = asyncio.get_running_loop()
        self.sequencing._now = lambda: loop.time() + self.late_s  # type: ignore[method-assign]  # a clock that is moved

    def round(self, log: LogName, epoch: int, *, asks_for_trust: bool = True) -> bytes:
        """One request for a position, in a round of its own; its reply."""
        body = b"\x08" + bytes([epoch]) + b"\x12\x04pool\x1a" + bytes([len(log.name)]) + log.name + b"\x20\x01"
        if asks_for_trust:
            self.sequencing.before()
        answer = self.sequencing.core.answer(len(body).to_bytes(4, "big") + body)
        self.sequencing.after()
        return answer.replies

    async def position(self, log: LogName, epoch: int) -> int:
        """A position, once the log is registered with this epoch."""
        while (reply := self.round(log, epoch)) == INIT_LOG:
            await asyncio.gather(*self.sequencing._tasks)
        return shown(reply)


def shown(reply: bytes) -> int:
    """The position of a short reply."""
    value = 0
    for shift, byte in enumerate(reply[5:]):
        value |= (byte & 0x7F) << 7 * shift
    return value
