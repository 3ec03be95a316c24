"""A connection to an AMQP broker, frame by frame, without a broker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from pamqp import base, commands, frame

from remora.endpoints.amqp.channels import Channel
from remora.endpoints.amqp.connection import AmqpConnection
from remora.endpoints.arrived import Arrived

OPENED = (commands.Channel.OpenOk(), commands.Confirm.SelectOk(), commands.Exchange.DeclareOk())


@pytest.fixture
async def connection() -> AmqpConnection:
    return AmqpConnection("b:5672", 60.0, lambda _: None)


async def says(connection: AmqpConnection, *methods: base.Frame) -> None:
    """The broker says this on the first channel, one thing after the other."""
    for each in methods:
        await asyncio.sleep(0)
        connection.data_received(frame.marshal(each, 1))


def opening(connection: AmqpConnection) -> asyncio.Task[Channel]:
    return asyncio.create_task(connection.open_channel("x", "exchange x", Arrived(), lambda: None))


async def given_up(connection: AmqpConnection) -> None:
    """A channel whose opening is given up while the broker looks for the exchange."""
    attempt = opening(connection)
    await says(connection, *OPENED[:2])
    await asyncio.sleep(0)
    attempt.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attempt


async def test_both_sides_close_a_channel(connection: AmqpConnection) -> None:
    """Where the broker closes a channel that is being closed it answers all the same: that costs no other topic its
    connection, and the channel's number is free from then on."""
    await given_up(connection)
    await says(connection, commands.Channel.Close(404, "NOT_FOUND", 40, 10), commands.Channel.CloseOk())
    assert connection.error is None
    await asyncio.sleep(0)

    again = opening(connection)
    await says(connection, *OPENED)

    assert (await again).number == 1


async def test_a_connection_that_ends_while_a_channel_is_closed(connection: AmqpConnection) -> None:
    """Nobody waits for the end of such a channel, and nothing complains of that."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    await given_up(connection)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    gc.collect()

    assert complaints == []
