"""Who sends to this host's topics, by the tokens file, and as whom their endpoints are opened, by certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from remora.codec.topic import CERTIFICATE, parse_args
from remora.model.shard import Origin
from remora.model.topic import Topic
from remora.policy.classes import Introduction

if TYPE_CHECKING:
    from remora.servers.tokens import Tokens

REREAD_S = 60.0
"""How often certificates are read again: a replaced one may have another subject."""

MOST_CERTIFICATES = 1024


class HostIntroductions:
    """Names of senders and receivers, as far as they are known. A certificate is read when it is first asked for."""

    def __init__(self, read_subject: Callable[[str], Awaitable[str]], on_change: Callable[[], None]) -> None:
        """`read_subject` gives the subject of the certificate in a file; `on_change` is called when a name may have
        changed."""
        self._read_subject = read_subject
        self._on_change = on_change
        self._tokens: Tokens | None = None
        self._subjects: dict[str, str] = {}
        self._unread: set[str] = set()
        self._wanted = asyncio.Event()

    def learn_tokens(self, tokens: Tokens | None) -> None:
        """These tokens count from now on; None: every client may send."""
        self._tokens = tokens
        self._on_change()

    def __call__(self, topic: Topic) -> Introduction:
        """Who is known of a topic now. No token lets anybody send to a topic of radosgw's."""
        tokens = self._tokens if topic.origin is Origin.REMORA else None
        names = tokens.names_for(topic.name) if tokens is not None else ()
        location = parse_args(topic.target.args).get(CERTIFICATE, "")
        if location and location not in self._subjects and len(self._subjects) < MOST_CERTIFICATES:
            self._subjects[location] = ""
            self._unread.add(location)
            self._wanted.set()
        return Introduction(names, self._subjects.get(location, ""))

    async def run(self) -> None:
        """Read certificates that are asked for, and all of them again from time to time, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(REREAD_S):
                    await self._wanted.wait()
            except TimeoutError:
                self._unread |= self._subjects.keys()
            self._wanted.clear()
            await self._read()

    async def _read(self) -> None:
        has_changed = False
        while self._unread:
            location = self._unread.pop()
            subject = await self._read_subject(location)
            has_changed |= subject != self._subjects[location]
            self._subjects[location] = subject
        if has_changed:
            self._on_change()
