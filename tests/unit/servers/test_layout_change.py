"""Requests to a topic that gets another number of shards are repeated, for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from devkit.clock import in_virtual_time
from remora.model.errors import TopicMoved
from remora.servers.ingest.desk import MOVED_PAUSE_S, MOVING_S, while_moving


@dataclass
class MovingTopic:
    """Refuses what is asked of it until a moment of the loop's clock."""

    until_s: float
    asked: int = 0

    async def ask(self) -> int:
        self.asked += 1
        if asyncio.get_running_loop().time() < self.until_s:
            raise TopicMoved("t has another number of shards")
        return self.asked


@in_virtual_time
async def test_a_request_is_repeated_for_ten_seconds() -> None:
    """It is answered when the topic stands within them; and refused as moved, not repeated for ever, when it does not:
    then the sender hears that after ten seconds, and no pause later."""
    began = asyncio.get_running_loop().time()
    slow, stuck = MovingTopic(began + MOVING_S - 1), MovingTopic(began + 3600)

    assert await while_moving(slow.ask) == slow.asked > 2
    answered = asyncio.get_running_loop().time()
    with pytest.raises(TopicMoved):
        await while_moving(stuck.ask)

    ended = asyncio.get_running_loop().time()
    assert MOVING_S - 1 <= answered - began < MOVING_S
    assert MOVING_S <= ended - answered <= MOVING_S + 2 * MOVED_PAUSE_S
