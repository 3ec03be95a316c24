"""The sequencer that serves a log, whichever that is by now: positions and tails from one client at a time.

The projection in the store says who serves a log. It is read when the log is opened, and each time that no server has
given anything for a while. The client tries the projection's address and those that were configured in turn.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from remora.client import SequencerClient, SequencerUnavailable
from remora.model.errors import StoreError
from remora.model.log import LogName, LogUnknown, Token
from remora.ports.log import Logs

T = TypeVar("T")


class LogServers:
    """See the module. What many ask for in one turn of the event loop travels as one range."""

    def __init__(
        self, logs: Logs, log: LogName, addresses: Sequence[str], ask_s: float, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`ask_s` is how long servers are asked before the projection is read again."""
        self._logs = logs
        self._log = log
        self._configured = list(addresses)
        self._ask_s = ask_s
        self._tls = tls
        self._was_in_vain = False
        """Whether servers were asked that gave nothing."""
        self.is_closed = False
        self._client: SequencerClient | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.is_closed = True
        await self._close()

    def check_open(self) -> None:
        """Raise SequencerUnavailable where this was left: nobody would close what is opened from then on."""
        if self.is_closed:
            raise SequencerUnavailable("the log is closed")

    async def next(self, within_s: float) -> Token:
        """A position that nobody else gets in its epoch. Raises SequencerUnavailable and LogUnknown."""
        return await self._ask(lambda client: client.next(self._log), within_s)

    async def tail(self, within_s: float) -> Token:
        """The last position that was handed out. Raises SequencerUnavailable and LogUnknown."""
        return await self._ask(lambda client: client.tail(self._log), within_s)

    async def _ask(self, question: Callable[[SequencerClient], Awaitable[T]], within_s: float) -> T:
        loop = asyncio.get_running_loop()
        ends = loop.time() + within_s
        while True:
            client = await self._current()
            try:
                return await question(client)
            except SequencerUnavailable:
                if loop.time() >= ends:
                    raise
            if self._client is client:  # else somebody else has seen to it that the projection is read
                self._was_in_vain = True
                await self._close()

    async def _current(self) -> SequencerClient:
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._client is None:
                addresses = await self._addresses()
                self.check_open()
                self._client = SequencerClient(addresses, timeout_s=self._ask_s, projection=self.epoch, tls=self._tls)
            return self._client

    def ended(self, token: Token) -> None:
        """The store refuses this token's epoch: the next question is of the one that the projection names by then."""
        if self._client is not None:
            self._client.ended(self._log, token.epoch)

    async def epoch(self, log: LogName) -> int | None:
        """The epoch by the store; None where it says none, and the server is to tell."""
        try:
            return (await self._logs.projection(log)).epoch or None
        except StoreError:
            return None

    async def _addresses(self) -> list[str]:
        """Where to ask now: at the projection's server, then at those that are configured.

        Raises LogUnknown where some were asked in vain: one may have made a log that does not exist.
        """
        try:
            known = [(await self._logs.projection(self._log)).address]
        except LogUnknown:
            if self._was_in_vain:
                raise
            known = []
        except StoreError:
            known = []
        addresses = [*dict.fromkeys(each for each in (*known, *self._configured) if each)]
        if not addresses:
            raise SequencerUnavailable(f"no server has ever served {self._log}, and no address is configured")
        return addresses

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)
