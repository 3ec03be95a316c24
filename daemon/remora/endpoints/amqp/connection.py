"""A connection to an AMQP broker: handshake, heartbeats, channels, and what is due written at once.

aio-pika and aiormq were weighed: the first repeats publishes after its own reconnecting, below the policy of the
engine; the second takes several futures and a lock for a message and ignores `connection.blocked` when it publishes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pamqp import base, commands, frame, header
from pamqp.common import FieldTable

from remora import __version__
from remora.endpoints.amqp.channels import Channel, MessageRun
from remora.endpoints.amqp.errors import why_closed
from remora.endpoints.amqp.frames import (
    ACK,
    BODY,
    DEFAULT_FRAME_BYTES,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    LEAST_FRAME_BYTES,
    METHOD,
    MOST_FRAME_BYTES,
    NACK,
    PREAMBLE,
    BadFrames,
    Frame,
    Splitter,
    look_for_exchange,
    open_vhost,
    read_confirm,
)
from remora.endpoints.amqp.target import AmqpServer
from remora.endpoints.arrived import Arrived
from remora.endpoints.heartbeat import GOODBYE_S, WRITE_BYTES, HeartbeatConnection
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, without_frames

M = TypeVar("M", bound=base.Frame)

MOST_CHANNELS = 2047
MOST_BLOCKED_CHARS = 120

CAPABILITIES: FieldTable = {
    "publisher_confirms": True, "basic.nack": True, "connection.blocked": True, "authentication_failure_close": True,
}  # fmt: skip


class AmqpConnection(HeartbeatConnection):
    """One connection. It ends by itself when the broker falls silent; `error` then says why, and is set first."""

    def __init__(
        self,
        name: str,
        heartbeat_s: float,
        on_end: Callable[[AmqpConnection], None],
        *,
        shows_certificate: bool = False,
    ) -> None:
        super().__init__(name, heartbeat_s, on_end, shows_certificate=shows_certificate)
        self.blocked: str | None = None
        self.message_bytes: int | None = None
        self.frame_bytes = LEAST_FRAME_BYTES
        self.most_channels = MOST_CHANNELS
        self._splitter = Splitter()
        self._channels: dict[int, Channel] = {}
        self._replies: dict[int, tuple[tuple[type[base.Frame], ...], asyncio.Future[Any]]] = {}
        self._early: deque[base.Frame] = deque(maxlen=4)
        self._due: deque[tuple[Channel, MessageRun]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another channel may be opened."""
        return self.error is None and len(self._channels) < self.most_channels

    # ----------------------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._transport.write(PREAMBLE)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for each in self._splitter.feed(data):
                self._take(each)
                if self.error is not None:
                    return
        except BadFrames as exc:
            self._end(_explain_bytes(exc, data, self))

    # -------------------------------------------------------------------------------------- writing

    def due(self, channel: Channel, run: MessageRun) -> None:
        """Have a run's next message written at the end of this turn of the loop, with all others that are due."""
        self._due.append((channel, run))
        self._flush_soon()

    def learn_limit(self, nbytes: int) -> None:
        """Messages of more bytes are refused by this broker, as it said."""
        self.message_bytes = nbytes

    def _flush_soon(self) -> None:
        if not self._flushing and self._due and self.blocked is None and self._writable and self.error is None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.blocked is not None or self.error is not None or self._transport is None:
            return
        stopped: list[tuple[Channel, MessageRun]] = []
        while self._due and self._writable:
            chunks: list[bytes] = []
            nbytes = 0
            while self._due and nbytes < WRITE_BYTES:
                channel, run = self._due.popleft()
                if not channel.flowing and channel.error is None:
                    stopped.append((channel, run))
                    continue
                made = channel.encode(run)
                chunks += made
                nbytes += sum(map(len, made))
            if chunks:
                self._transport.write(b"".join(chunks))
        self._due.extend(stopped)

    def _send(self, channel: int, method: base.Frame | bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(method if isinstance(method, bytes) else frame.marshal(method, channel))

    # ------------------------------------------------------------------------------------- reading

    def _take(self, found: Frame) -> None:
        if found.kind == METHOD:
            start = found.payload[:4]
            if start == ACK:
                self._channel(found).acked(read_confirm(found.payload))
            elif start == NACK:
                self._channel(found).nacked(read_confirm(found.payload))
            else:
                self._take_method(found.channel, _decode(found))
        elif found.kind == HEADER:
            decoded = _decode(found)
            assert isinstance(decoded, header.ContentHeader)
            self._channel(found).content_header(decoded)
        elif found.kind == BODY:
            self._channel(found).content_body(len(found.payload))
        elif found.kind == HEARTBEAT and found.channel:
            raise BadFrames("a heartbeat on a channel")

    def _channel(self, found: Frame) -> Channel:
        channel = self._channels.get(found.channel)
        if channel is None:
            raise BadFrames(f"a frame on channel {found.channel}, which is not open")
        return channel

    def _take_method(self, number: int, method: Any) -> None:
        match method:
            case commands.Connection.Close():
                self._send(0, commands.Connection.CloseOk())
                self._end(why_closed(method.reply_code or 0, str(self), channel=False))
            case commands.Connection.Blocked():
                self.blocked = "".join(filter(str.isprintable, method.reason or ""))[:MOST_BLOCKED_CHARS]
            case commands.Connection.Unblocked():
                self.blocked = None
                self._flush_soon()
            case commands.Channel.Close():
                self._send(number, commands.Channel.CloseOk())
                self._channel_closed(number, method)
            case commands.Channel.Flow():
                active = bool(method.active)
                self._channel(Frame(METHOD, number, b"")).flowing = active
                self._send(number, commands.Channel.FlowOk(active))
                self._flush_soon()
            case commands.Basic.Return():
                self._channel(Frame(METHOD, number, b"")).returned(method)
            case _:
                self._answer(number, method)

    def _channel_closed(self, number: int, method: commands.Channel.Close) -> None:
        channel = self._channels.get(number)
        if channel is None:
            raise BadFrames(f"the broker closes channel {number}, which is not open")
        is_closing = channel.error is not None
        if is_closing:
            return  # both sides close it: the broker's answer to ours is to come, and then its number is free
        del self._channels[number]
        channel.closed(method.reply_code or 0, method.reply_text or "")
        _, reply = self._replies.pop(number, ((), None))
        if reply is not None and not reply.done():
            assert channel.error is not None
            reply.set_exception(type(channel.error)(str(channel.error)))

    def _answer(self, number: int, method: base.Frame) -> None:
        expected, reply = self._replies.get(number, ((), None))
        if reply is None and number == 0 and isinstance(method, commands.Connection.Start):
            self._early.append(method)  # it may come before it is asked for
            return
        if number in self._channels and self._channels[number].error and not isinstance(method, expected):
            return  # the answer to what was asked before the channel was closed
        if reply is None or not isinstance(method, expected):
            raise BadFrames(f"{method.name} out of turn")
        del self._replies[number]
        if not reply.done():
            reply.set_result(method)

    async def call(self, channel: int, method: base.Frame | bytes | None, reply: type[M]) -> M:
        """Send a method, or the frame of one, and return the broker's answer; without one, what comes by itself.

        Raises what ended channel or connection.
        """
        if self.error is not None:
            raise type(self.error)(str(self.error))
        if method is None and self._early and isinstance(self._early[0], reply):
            return self._early.popleft()  # type: ignore[return-value]  # it was just looked at
        answer: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        self._replies[channel] = (reply,), answer
        if method is not None:
            self._send(channel, method)
        try:
            return await answer
        finally:
            if self._replies.get(channel, (None, None))[1] is answer:
                del self._replies[channel]

    # ----------------------------------------------------------------------------------- life and end

    async def shake_hands(self, server: AmqpServer) -> None:
        """Log in and open the virtual host. Raises EndpointError."""
        start = await self.call(0, None, commands.Connection.Start)
        if (start.version_major, start.version_minor) != (0, 9):
            raise EndpointMisconfigured(f"{self}: it speaks another version of AMQP")
        if "PLAIN" not in (start.mechanisms or "").split():
            raise EndpointMisconfigured(f"{self}: it offers no log-in with user and password (PLAIN)")
        about: FieldTable = {"product": "remora", "version": __version__, "capabilities": CAPABILITIES}
        login = f"\0{server.user}\0{server.password}"
        ready = commands.Connection.StartOk(about, "PLAIN", login, "en_US")
        tune = await self.call(0, ready, commands.Connection.Tune)
        self._tune(tune)
        await self.call(0, open_vhost(server.vhost.encode()), commands.Connection.OpenOk)
        self._splitter.most_bytes = self.frame_bytes
        self.beat_later()

    def _tune(self, tune: commands.Connection.Tune) -> None:
        offered = tune.frame_max or DEFAULT_FRAME_BYTES
        if offered < LEAST_FRAME_BYTES:
            raise EndpointUnavailable(f"{self}: it takes frames of {offered} bytes, less than AMQP allows")
        self.frame_bytes = min(offered, MOST_FRAME_BYTES)
        self.most_channels = min(tune.channel_max or MOST_CHANNELS, MOST_CHANNELS)
        if tune.heartbeat:
            self._heartbeat_s = min(self._heartbeat_s, float(tune.heartbeat))
        seconds = max(1, round(self._heartbeat_s))
        self._send(0, commands.Connection.TuneOk(self.most_channels, self.frame_bytes, seconds))

    def send_beat(self) -> None:
        """A heartbeat frame."""
        assert self._transport is not None
        self._transport.write(HEARTBEAT_FRAME)

    async def open_channel(self, exchange: str, what: str, arrived: Arrived, unroutable: Callable[[], None]) -> Channel:
        """A channel in confirm mode for an exchange that exists. Raises EndpointError."""
        number = next((n for n in range(1, self.most_channels + 1) if n not in self._channels), 0)
        if not number:
            raise EndpointUnavailable(f"{self}: all {self.most_channels} channels of a connection are in use")
        self._channels[number] = channel = Channel(number, self, what, arrived, unroutable)
        try:
            await self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)
            await self.call(number, commands.Confirm.Select(), commands.Confirm.SelectOk)
            declare = look_for_exchange(number, exchange.encode())
            await self.call(number, declare, commands.Exchange.DeclareOk)
        except BaseException:
            self.close_channel(channel)
            raise
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Close a channel that no topic uses; its number is free once the broker has said so."""
        if channel.error is not None or self._channels.get(channel.number) is not channel:
            return
        channel.end(EndpointUnavailable(f"{channel.what}: its channel was closed", "aborted"))
        closing = commands.Channel.Close(200, "", 0, 0)
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[channel.number] = (commands.Channel.CloseOk,), ended

        def forget(_: object) -> None:
            ended.exception()  # of the connection, which all who wait for something are told
            self._channels.pop(channel.number, None)

        ended.add_done_callback(forget)
        self._send(channel.number, closing)

    async def close(self) -> None:
        """Say goodbye, in bounded time."""
        if self.error is None:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await self.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
            except (TimeoutError, EndpointError) as exc:
                without_frames(exc)
        self._end(EndpointUnavailable(f"{self}: the connection is closed", "aborted"))
        await self.ended()

    def fail_all(self, error: EndpointError) -> None:
        """All channels, and whoever waits for a reply."""
        for channel in list(self._channels.values()):
            channel.end(error)
        self._channels.clear()
        self._due.clear()
        for _, reply in list(self._replies.values()):
            if not reply.done():
                reply.set_exception(error.again())
        self._replies.clear()


def _decode(found: Frame) -> Any:
    try:
        _, _, decoded = frame.unmarshal(found.whole)
    except Exception as exc:  # whatever pamqp stumbles over, the frame is none
        raise BadFrames("a frame that cannot be read") from exc
    return decoded


def _explain_bytes(exc: BadFrames, data: bytes, connection: AmqpConnection) -> EndpointError:
    """What speaks there instead, where its first bytes tell."""
    if data.startswith(b"AMQP"):
        return EndpointMisconfigured(f"{connection}: it speaks another version of AMQP")
    if data.startswith((b"\x15\x03", b"\x16\x03")):
        return EndpointMisconfigured(f"{connection}: this port speaks TLS, but the endpoint is amqp and not amqps")
    return EndpointUnavailable(f"{connection}: {exc}")
