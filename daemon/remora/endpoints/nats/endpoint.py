"""The NATS endpoint: routes from shards to a stream of JetStream, over shared connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from remora.codec.speedups import in_batches
from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.config.delivery import NatsSettings
from remora.endpoints.headers import HandoverNote
from remora.endpoints.nats.messages import MessageSource, letter_message
from remora.endpoints.nats.nkeys import UserKey, read_key
from remora.endpoints.nats.pool import ServerIdentity, StreamOutlet, StreamPlace, StreamWay, briefly, make_pool
from remora.endpoints.nats.publisher import PublishRun
from remora.endpoints.nats.streams import LANES, SubjectLooks
from remora.endpoints.nats.target import NatsServer, NatsTarget, parse_target
from remora.endpoints.observer import LogObserver, NatsObserver
from remora.endpoints.shared import TopicMakers
from remora.endpoints.tasks import Tasks
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import TlsFiles, Trust, TrustCache, read_client_file
from remora.model.errors import EndpointError, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter, Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from remora.policy.delivery.destinations import DestinationRules
from remora.ports.endpoint import ALL_LANES, Batch

ROOM = 1 << 40
"""All records of a lane make one batch, whatever their size."""


@dataclass(slots=True, eq=False)
class NatsBatch:
    """Records of one lane."""

    lane: int
    records: Sequence[Record]

    def __len__(self) -> int:
        return len(self.records)


def read_identity(server: NatsServer, trust: Trust | None, files: TlsFiles, *, by_operator: bool) -> ServerIdentity:
    """As whom to come, as this host's files say now; blocks. Raises EndpointMisconfigured."""
    key: UserKey | None = None
    if server.credentials:
        content = read_client_file("nats-credentials", server.credentials, files.clients)
        key = read_key(content, "nats-credentials")
    return ServerIdentity(server, trust, key, by_operator)


class NatsEndpoint:
    """Delivers to `nats://[user:password@|token@]host[:port]` and `nats+tls://...`, to a stream of JetStream.

    Used as `async with`; leaving it closes every connection within seconds.
    """

    schemes = frozenset({"nats", "nats+tls"})

    def __init__(
        self,
        settings: NatsSettings,
        observer: NatsObserver | None = None,
        files: TlsFiles | None = None,
        rules: DestinationRules | None = None,
    ) -> None:
        """`files` are the directories below which files may lie that topics name, `rules` where servers may."""
        self._settings = settings
        self._rules = rules or DestinationRules()
        self._makers: TopicMakers[NatsServer] = TopicMakers()
        self._observer = observer or LogObserver()
        self._files = files or TlsFiles()
        self._trusts = TrustCache(self._files)
        self._tasks = Tasks(self._observer)
        self._pool = make_pool(settings, self._rules, self._observer, self._tasks)
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.begin(
            self._pool.sweep(self._settings.idle_timeout_s), name="close idle NATS connections"
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        self._pool.close()
        await self._tasks.__aexit__(None, None, None)

    def check(self, target: Target) -> list[str]:
        return list(parse_target(target).remarks)

    def publishes_letters(self, target: Target) -> bool:
        return bool(parse_args(target.args).get(DEAD_LETTER_TOPIC))  # asked of targets that cannot work, too

    async def up(self, target: Target) -> frozenset[str]:
        try:
            server = parse_target(target).server
            identity = await self._identity(server, by_operator=self._makers.is_operators(server))
            slot = self._pool.slot(identity)
            for each in slot.connections if slot is not None else ():
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    await each.ping()
                return frozenset({str(each)})
            async with briefly(identity, self._settings, self._rules) as connection:
                return frozenset({str(connection)})
        except (EndpointError, TimeoutError):
            return frozenset()

    def destination(self, target: Target) -> Hashable:
        try:
            server = parse_target(target).server
        except EndpointError:
            return target.uri, target.args
        return server.host, server.port  # whatever the stream: a server that is away is away for all of them

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[NatsRoute]:
        meant = parse_target(target)
        outlet = await self._outlet(shard, meant)
        with outlet.in_use():
            way = await outlet.fresh()
            yield NatsRoute(outlet, way, shard, incarnation, meant, self._settings)

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        try:
            meant = parse_target(target)
            identity = await self._identity(meant.server, by_operator=shard.origin is Origin.REMORA)
        except EndpointError:
            return frozenset()
        outlet = self._pool.known_outlet(identity, StreamPlace(meant.stream, meant.template))
        sender = MessageSource(shard.queue, incarnation, meant.stream)
        ids = {sender.message_id(each): each for each in positions}
        arrived = await outlet.arrived_late(list(ids), self._settings.delivery_timeout_s) if outlet is not None else []
        return frozenset(ids[each] for each in arrived)

    async def _outlet(self, shard: Shard, meant: NatsTarget) -> StreamOutlet:
        by_operator = shard.origin is Origin.REMORA
        self._makers.note(meant.server, by_operator=by_operator)
        identity = await self._identity(meant.server, by_operator=by_operator)
        return self._pool.outlet(identity, StreamPlace(meant.stream, meant.template))

    async def _identity(self, server: NatsServer, *, by_operator: bool) -> ServerIdentity:
        if server.tls is None and not server.credentials:
            return ServerIdentity(server, by_operator=by_operator)

        def read() -> ServerIdentity:
            trust = self._trusts.read(server.tls) if server.tls is not None else None
            return read_identity(server, trust, self._files, by_operator=by_operator)

        what = ", ".join(filter(None, (server.tls.what if server.tls else "", server.credentials)))
        question = "nats", server, by_operator
        return await run_blocking(question, read, what, self._settings.connect_timeout_s)


class NatsRoute:
    """From one shard to a stream, each event with its subject; and to one subject for its dead letters, if any."""

    stale = False
    acks_show_load = False
    width = ALL_LANES

    def __init__(
        self,
        outlet: StreamOutlet,
        way: StreamWay,
        shard: Shard,
        incarnation: str,
        meant: NatsTarget,
        settings: NatsSettings,
    ) -> None:
        self._outlet = outlet
        self._way = way
        self._meant = meant
        self._settings = settings
        self._sender = MessageSource(shard.queue, incarnation, meant.stream)
        self._note = HandoverNote()
        self._looks = SubjectLooks(way.stream.window_s) if way.looks else None

    def __str__(self) -> str:
        return self._outlet.what

    def remarks(self, pause_s: float) -> list[str]:
        """What an operator has to know of the stream; attempts may lie `pause_s` apart."""
        return list(self._way.stream.remarks(pause_s, looks=self._way.looks))

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        most = self._way.most_bytes
        refused: list[tuple[Record, str]] = []
        taken: list[Record] = []
        for each in records:
            nbytes = len(each.body)
            if nbytes + 4 * (len(each.key) + len(each.event_id)) + 1024 > most:  # near the limit it is made
                nbytes = self._sender.message(each, self._meant.template.subject(each.key)).nbytes
            if nbytes > most:
                refused.append((each, f"{nbytes} bytes with headers, more than the {most} that the stream takes"))
            else:
                taken.append(each)
        if self._note.is_pending and taken:
            made = self._sender.message(taken[0], self._meant.template.subject(taken[0].key))
            self._note.goes_with(taken[0], most - made.nbytes)
        return [NatsBatch(lane, members) for lane, members, _ in in_batches(taken, LANES, 0, ROOM)], refused

    def succeeds(self, after: bytes) -> None:
        self._note.succeeds(after)

    async def look_again(self) -> None:
        self._way = await self._outlet.fresh(0.0)

    async def push(self, batch: Batch) -> None:
        assert isinstance(batch, NatsBatch)
        sender, note, records, subject = self._sender, self._note, batch.records, self._meant.template.subject
        run = PublishRun(
            [sender.message_id(each.position) for each in records],
            lambda at: sender.message(records[at], subject(records[at].key), note.told_by(records[at])),
            [each.key for each in records],
        )
        if self._looks is not None:
            run.look_first(self._looks, batch.lane, records, sender)
        await self._send(run)

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        if not self._meant.letters or not letters:
            return
        subject = self._meant.letters.encode()
        made = [letter_message(each, subject, self._way.most_bytes) for each in letters]
        ids, without = [each[0] for each in made], set[int]()
        while True:
            try:
                await self._send(PublishRun(ids, lambda at: made[at][1], are_letters=True))
                break
            except EntryRefused as exc:  # by a stream of their own, whose limit is another one
                if exc.arrived in without:
                    raise EndpointUnavailable(f"a dead letter: {exc}") from exc
                without.add(exc.arrived)
                made[exc.arrived] = letter_message(letters[exc.arrived], subject, 0)

    async def _send(self, run: PublishRun) -> None:
        """Return when all messages of a run are acknowledged."""
        timeout_s = self._settings.delivery_timeout_s
        publisher = (await self._outlet.ready()).publisher

        def too_late() -> EndpointUnavailable:
            return EndpointUnavailable(f"{publisher.what}: not acknowledged within {timeout_s:g} s", "timeout")

        await publisher.carry(run, timeout_s, too_late)
