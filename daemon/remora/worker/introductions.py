"""Who sends to this host's topics, by the tokens file, and who receives from them, by certificates and by addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from remora.codec.topic import CERTIFICATE, parse_args
from remora.model.shard import Origin
from remora.model.topic import Topic
from remora.policy.shaping.classes import Introduction

if TYPE_CHECKING:
    from remora.servers.tokens import Tokens

REREAD_S = 60.0
"""How often files and names are looked at again: a replaced certificate may have another subject, a name another
address."""

FORGET_ROUNDS = 60
"""For how many rounds what was found is kept while nobody asks for it: topics go, and their names with them."""

MOST_KNOWN = 1024

_AT_ONCE = 4
"""A name without an answer keeps a thread for as long as the resolver waits, and endpoints need threads, too."""

V = TypeVar("V")


class _Findings(Generic[V]):
    """What is found out about files or names: soon after the first question, and again in each round.

    Meanwhile, and where it cannot be found out now, what was found before counts.
    """

    def __init__(self, find: Callable[[str], Awaitable[V | None]], unknown: V, on_change: Callable[[], None]) -> None:
        """`find` answers None where it cannot tell now."""
        self._find = find
        self._unknown = unknown
        self._on_change = on_change
        self._due: asyncio.Queue[str] = asyncio.Queue()
        self._unasked: dict[str, int] = {}
        """For how many rounds nobody has asked."""
        self._is_due: set[str] = set()
        self._has_changed = False
        self.found: dict[str, V] = {}

    def get(self, name: str) -> V:
        """What is known now."""
        if name in self._unasked or len(self._unasked) < MOST_KNOWN:
            if name not in self._unasked:
                self._look_at(name)
            self._unasked[name] = 0
        return self.found.get(name, self._unknown)

    async def run(self) -> None:
        """Find out what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._answer(), name="introduction")
            while True:
                await asyncio.sleep(REREAD_S)
                self._begin_round()

    def _look_at(self, name: str) -> None:
        if name not in self._is_due:
            self._is_due.add(name)
            self._due.put_nowait(name)

    def _begin_round(self) -> None:
        """Look at everything again. Who has been answered asks again, so that what is still needed is known."""
        self._unasked = {name: rounds + 1 for name, rounds in self._unasked.items() if rounds < FORGET_ROUNDS}
        self.found = {name: each for name, each in self.found.items() if name in self._unasked}
        for name in self._unasked:
            self._look_at(name)
        if self._unasked:
            self._on_change()

    async def _answer(self) -> None:
        while True:
            name = await self._due.get()
            found = await self._find(name)
            self._is_due.discard(name)
            if found is not None and found != self.found.get(name, self._unknown):
                self.found[name] = found
                self._has_changed = True
            if self._has_changed and self._due.empty():  # once for all that were due together
                self._has_changed = False
                self._on_change()


class HostIntroductions:
    """Names of senders and receivers, as far as they are known. What is not known yet is found out."""

    def __init__(
        self,
        read_subject: Callable[[str], Awaitable[str]],
        find_addresses: Callable[[str], Awaitable[tuple[str, ...] | None]],
        on_change: Callable[[], None],
    ) -> None:
        """`read_subject` gives the subject of the certificate in a file, `find_addresses` those of a host, or
        None where there is no answer; `on_change` is called when something may have changed."""
        self._subjects: _Findings[str] = _Findings(read_subject, "", on_change)
        self._addresses: _Findings[tuple[str, ...]] = _Findings(find_addresses, (), on_change)
        self._on_change = on_change
        self._tokens: Tokens | None = None

    @property
    def addresses(self) -> Mapping[str, Sequence[str]]:
        """The addresses of all hosts that were asked for and found, by name."""
        return self._addresses.found

    def learn_tokens(self, tokens: Tokens | None) -> None:
        """These tokens count from now on; None: every client may send."""
        self._tokens = tokens
        self._on_change()

    def __call__(self, topic: Topic, hosts: Sequence[str] = ()) -> Introduction:
        """What is known now of a topic, and of hosts. No token lets anybody send to a topic of radosgw's."""
        tokens = self._tokens if topic.origin is Origin.REMORA else None
        names = tokens.names_for(topic.name) if tokens is not None else ()
        location = parse_args(topic.target.args).get(CERTIFICATE, "")
        addresses = {host: found for host in hosts if (found := self._addresses.get(host))}
        return Introduction(names, self._subjects.get(location) if location else "", addresses)

    async def run(self) -> None:
        """Read certificates and look names up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subjects.run(), name="client certificates")
            tasks.create_task(self._addresses.run(), name="addresses of brokers")
