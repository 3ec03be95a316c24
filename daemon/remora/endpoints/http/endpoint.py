"""The HTTP endpoint: routes from shards to receivers, over pools of connections that equal targets share."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.config.settings import Settings
from remora.endpoints.arrived import Arrived
from remora.endpoints.dial import dial
from remora.endpoints.http.answers import (
    BATCHED_LANES,
    QUICK_TRIES,
    Answer,
    Verdict,
    batched_lanes,
    push_records,
    quick_pause_s,
    retry_after_s,
    verdict,
)
from remora.endpoints.http.connection import ExchangeFailed, Lost
from remora.endpoints.http.credentials import Credential, read_credential
from remora.endpoints.http.pool import ConnectionKey, Pools
from remora.endpoints.http.posts import Posting, pack
from remora.endpoints.http.requests import RequestMaker, place_of
from remora.endpoints.http.target import HttpTarget, parse_target
from remora.endpoints.observer import HttpObserver, LogObserver
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import TlsFiles, Trust, TrustCache, refused_client
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter, Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from remora.policy.delivery.lane_steps import PROOF, LaneSteps
from remora.policy.delivery.refusals import POISON_APART_S, Finding, Refusals
from remora.policy.ownership.quarantine import ANSWERED, CONNECT
from remora.ports.endpoint import Batch

log = logging.getLogger(__name__)

MOST_KNOWN = 10_000
"""The most targets whose answers are remembered."""

RECENT_S = 1.0
"""Other requests succeed where one was acknowledged so recently."""

_WEIGHT = 1 / 32

KINDS = {
    Lost.CUT: ANSWERED,
    Lost.NOT_HTTP: ANSWERED,
    Lost.REFUSED_TLS: CONNECT,
    Lost.SILENT: "timeout",
}
"""What lost answers are about, as `policy.quarantine` has it. Where one began, something answers for this path; all
others say that the host is unavailable."""

UNCLEAR = (Lost.RESET, Lost.CUT, Lost.SILENT, Lost.NOT_HTTP)
"""How an exchange ends of whose request it is not known whether the receiver took it."""

PROXIES = {
    "http": ("http_proxy", "all_proxy", "ALL_PROXY"),
    "https": ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"),
}
"""The variables of the environment that radosgw's libcurl would read."""


@dataclass(slots=True, eq=False)
class Receiver:
    """How a target answers: what its routes share.

    `batched_lanes` are those of a target of batches, `steps` tell them for any other one.
    `refusals` are those of each topic that posts there, `arrived` are the records that it acknowledged too late.
    `failed` is true from a failure until the next acknowledgement, `by_operator` while no S3 user's topic has it.
    """

    batched_lanes: int = BATCHED_LANES[0]
    steps: LaneSteps = field(default_factory=LaneSteps)
    mean_s: float = 0.0
    acked_at: float = float("-inf")
    refusals: dict[str, Refusals] = field(default_factory=dict)
    arrived: Arrived = field(default_factory=Arrived)
    failed: bool = False
    by_operator: bool = True

    def refusals_of(self, topic: str) -> Refusals:
        """What it refused of one topic."""
        found = self.refusals.get(topic)
        if found is None:
            if len(self.refusals) >= MOST_KNOWN:
                self.refusals.clear()  # open routes keep theirs
            found = self.refusals[topic] = Refusals(POISON_APART_S)
        return found

    def acked(self, seconds: float, now: float) -> None:
        """A request was acknowledged after `seconds`."""
        self.acked_at = now
        self.failed = False
        self.mean_s += (seconds - self.mean_s) * _WEIGHT
        self.steps.acked(seconds, now)


class HttpEndpoint:
    """Delivers to `http://` and `https://` targets: at least once, in order per key.

    Used as `async with HttpEndpoint(settings) as endpoint`; leaving closes every connection.
    """

    def __init__(self, settings: Settings, observer: HttpObserver | None = None) -> None:
        self._settings = settings.http_within_drain
        self._credentials = settings.credentials
        self._observer = observer or LogObserver()
        self._trusts = TrustCache(TlsFiles(settings.kafka.ca_places, settings.kafka.client_places))
        self._pools = Pools(self._settings, settings.destination_rules, self._observer)
        self._receivers: dict[HttpTarget, Receiver] = {}

    @property
    def schemes(self) -> frozenset[str]:
        return frozenset({"http", "https"})

    async def __aenter__(self) -> Self:
        await self._pools.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._pools.__aexit__(None, None, None)

    def check(self, target: Target) -> list[str]:
        remarks = list(parse_target(target).remarks)
        if any(os.environ.get(each) for each in PROXIES[target.scheme]):
            remarks.append("the environment's proxy is not used: behind one a receiver's address cannot be checked")
        return remarks

    def publishes_letters(self, target: Target) -> bool:
        return bool(parse_args(target.args).get(DEAD_LETTER_TOPIC))  # which no such target can have and work

    async def up(self, target: Target) -> frozenset[str]:
        try:
            meant = parse_target(target)
            server, by_operator = meant.server, self._receiver(meant).by_operator
            peer = ConnectionKey(server, by_operator=by_operator)
            addresses = await self._pools.addresses(peer, self._settings.connect_timeout_s)
        except EndpointError:
            return frozenset()
        return frozenset({str(server)}) if await self._answers(addresses, server.port) else frozenset()

    async def _answers(self, addresses: Sequence[str], port: int) -> bool:
        """Whether a connection opens; it is closed at once, and nothing is sent."""
        for address in addresses:
            try:
                async with asyncio.timeout(self._settings.connect_timeout_s / len(addresses)):
                    transport, _ = await dial(asyncio.Protocol, address, port)
            except (OSError, TimeoutError):
                continue
            transport.abort()
            return True
        return False

    def destination(self, target: Target) -> Hashable:
        try:
            return str(parse_target(target).server)  # whatever the path: a host that is away is away for all of them
        except EndpointMisconfigured:
            return target.uri, target.args

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[HttpRoute]:
        meant = parse_target(target)
        trust, credential = await self._files(meant)
        peer = ConnectionKey(
            meant.server,
            trust,
            meant.login,
            credential.digest if credential is not None else "",
            by_operator=shard.origin is Origin.REMORA,
        )
        receiver = self._receiver(meant)
        receiver.by_operator = receiver.by_operator and peer.by_operator
        if receiver.failed:  # a receiver that is away costs one connection, not one for each lane
            await self._pools.prove(peer)
        maker = RequestMaker(meant, credential, shard.queue, incarnation)
        route = HttpRoute(
            meant, peer, receiver, maker, quick_retries=quick_retries, push_s=self._settings.request_timeout_s
        )
        route.pools, route.observer = self._pools, self._observer
        route.refusals = receiver.refusals_of(target.topic)
        try:
            yield route
        finally:
            route.stop()

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        try:
            receiver = self._receiver(parse_target(target))
        except EndpointMisconfigured:
            return frozenset()
        places = {place_of(shard.queue, incarnation, each): each for each in positions}
        arrived = await receiver.arrived.take_all(list(places), self._settings.request_timeout_s)
        return frozenset(position for place, position in places.items() if place in arrived)

    async def _files(self, meant: HttpTarget) -> tuple[Trust | None, Credential | None]:
        """What this host's files say now of whom to trust, and what to show."""
        tls, name, timeout_s = meant.tls, meant.credential, self._settings.connect_timeout_s
        trust = credential = None
        if tls is not None:
            trust = await run_blocking(("trust", tls), lambda: self._trusts.read(tls), tls.what, timeout_s)
        if name:
            directory, host = self._credentials.directory, meant.server.host
            credential = await run_blocking(
                ("credential", name, host),
                lambda: read_credential(directory, name, host),
                f"remora-credential {name}",
                timeout_s,
            )
        return trust, credential

    def _receiver(self, meant: HttpTarget) -> Receiver:
        found = self._receivers.get(meant)
        if found is None:
            if len(self._receivers) >= MOST_KNOWN:
                self._receivers.clear()  # open routes keep theirs
            found = self._receivers[meant] = Receiver()
        return found


class Tries:
    """The answers to one record within a push that were no acknowledgement."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._first_at = 0.0
        self.count = 0

    def add(self) -> int:
        """One more; answers how many there are."""
        if not self.count:
            self._first_at = self._now()
        self.count += 1
        return self.count

    @property
    def spent_s(self) -> float:
        """Seconds since the first one."""
        return self._now() - self._first_at


class HttpRoute:
    """From one shard to one receiver, with a fixed number of lanes, as many of them under way as `LaneSteps` allow.

    After a failure nothing new is posted: the other pushes end behind the record that is under way. Nor does a push
    begin a request when it has lasted as long as one may take: that its shard is held is asked before each push only.
    """

    acks_show_load = False
    pools: Pools
    observer: HttpObserver
    refusals: Refusals

    def __init__(
        self,
        target: HttpTarget,
        peer: ConnectionKey,
        receiver: Receiver,
        maker: RequestMaker,
        *,
        quick_retries: bool,
        push_s: float,
    ) -> None:
        self._target = target
        self._peer = peer
        self._receiver = receiver
        self._maker = maker
        self._quick_tries = QUICK_TRIES if quick_retries else 0
        self._lanes = receiver.steps.groups if target.batching is None else receiver.batched_lanes
        self._turns = self._asking = 0
        self._stopped = asyncio.Event()
        self._has_backlog = False
        self._push_s = push_s
        self._now = asyncio.get_running_loop().time

    @property
    def stale(self) -> bool:
        receiver = self._receiver
        if self._target.batching is None:
            return self._has_backlog and receiver.steps.groups != self._lanes
        wanted = batched_lanes(self._lanes, receiver.mean_s, has_backlog=self._has_backlog)
        receiver.batched_lanes = max(receiver.batched_lanes, wanted)
        return self._has_backlog and receiver.batched_lanes > self._lanes

    @property
    def width(self) -> int:
        if self._target.batching is not None:
            return self._lanes
        return PROOF if self._receiver.failed else self._receiver.steps.lanes

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        together = self._target.batching.fitting(len(records[0].body)) if self._target.batching and records else 1
        most = self._lanes if self._target.batching else self._receiver.steps.lanes
        self._has_backlog = len(records) > most * together
        self._maker.begin(records)
        return list(pack(records, self._lanes, push_records(self._receiver.mean_s, together))), []

    def succeeds(self, after: bytes) -> None:
        self._maker.succeeds(after)

    async def look_again(self) -> None:
        """Nothing: no limit of a receiver's is known before it refuses."""

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Nothing: letters are in the store."""

    def stop(self) -> None:
        """Begin no further request."""
        self._stopped.set()

    async def push(self, batch: Batch) -> None:
        until = self._now() + self._push_s

        def is_wanted() -> bool:
            return not self._stopped.is_set() and self._now() < until

        posting = Posting(batch.records, self._maker, self._target.batching, is_wanted, self._acked)
        posting.most_together, posting.on_given_up = self._most_together, self._given_up
        self._turns += 1
        try:
            await self._post_all(posting)
        except EndpointError as exc:
            exc.unclear = sorted({*exc.unclear, *posting.unclear(is_last=True)})
            exc.once_unclear = posting.unclear(is_last=False)
            if not isinstance(exc, EntryRefused):
                if exc.tries != 0:
                    self._receiver.failed = True
                    self._receiver.steps.failed(self._now())
                self.stop()
            raise
        finally:
            self._turns -= 1

    def _acked(self, records: int, seconds: float) -> None:
        now = self._now()
        self._receiver.acked(seconds, now)
        self.refusals.took(now, records)

    def _given_up(self, records: Sequence[Record]) -> Callable[[bool], None]:
        """Records were not answered in time; what is to be called when they are, or cannot be any more."""
        places, arrived = [self._maker.place(each) for each in records], self._receiver.arrived
        arrived.awaits(places)

        def tell(acknowledged: bool) -> None:
            arrived.tell(places, arrived=acknowledged)
            if acknowledged:
                self.refusals.took(self._now(), len(places))

        return tell

    def _most_together(self, record: Record) -> int | None:
        return self.refusals.most_together(self._maker.place(record)) if self.refusals.are_known else None

    async def _post_all(self, posting: Posting) -> None:
        """Post until all is acknowledged; raise with how far it came."""
        tries = Tries(self._now)
        while not posting.is_done:
            if not posting.is_wanted():
                why = "another request failed" if self._stopped.is_set() else f"not all within {self._push_s:g} s"
                kind = "refused" if tries.count else "aborted"  # the next push goes on counting refusals
                raise EndpointUnavailable(f"{self._peer.server}: {why}", kind).at(posting.arrived, tries.count)
            place = self._maker.place(posting.oldest)
            if self._receiver.arrived.take(place):
                posting.arrived += 1
                tries = Tries(self._now)
                self.refusals.forget([place])
                continue
            before = posting.arrived
            answer = await self._exchange(posting, tries)
            if posting.arrived != before:
                tries = Tries(self._now)
            if answer is None:
                continue
            if verdict(answer.status) is Verdict.POISON and posting.under_way > 1:
                self.refusals.refused_together(self._maker.place(posting.oldest), posting.under_way)
                continue
            pause_s = self._after(answer, posting, tries)
            self.observer.http_retried()
            await self._rest(pause_s)
            if self._turns > self.width:  # it began when more might
                self._turns -= 1
                while self._turns >= self.width and posting.is_wanted():
                    await self._rest(pause_s)
                self._turns += 1

    async def _exchange(self, posting: Posting, tries: Tries) -> Answer | None:
        """Post over one connection as far as it goes. A connection that had closed meanwhile costs nothing."""
        before, requests = posting.arrived, posting.requests
        try:
            async with self.pools.connection(self._peer, self._target.path) as connection:
                self._asking += 1
                self._receiver.steps.begun(self._asking)
                try:
                    answer = await connection.run(posting)
                finally:
                    self._asking -= 1
        except EndpointError as exc:
            exc.at(posting.arrived, tries.count + 1 if tries.count else None)
            raise
        except ExchangeFailed as exc:
            answered = posting.requests - requests - 1
            self._count("2xx", answered)
            self._count("none", 1)
            if exc.how is Lost.UNREAD:
                posting.doubted()
            if exc.how in (Lost.UNREAD, Lost.UNTOUCHED):
                return None
            count = 1 + (tries.count if posting.arrived == before else 0)
            error = self._translate(exc).at(posting.arrived, count, posting.under_way)
            if exc.how in UNCLEAR:
                error.unclear = range(posting.arrived, posting.arrived + posting.under_way)
            raise error from exc
        finally:
            if self.refusals.are_known:
                self.refusals.forget(map(self._maker.place, posting.records[before : posting.arrived]))
        done = posting.requests - requests
        self._count("2xx", done - (answer is not None))
        if answer is not None:
            posting.refused()
            self._count(f"{answer.status // 100}xx" if 300 <= answer.status < 600 else "other", 1)
        return answer

    def _count(self, kind: str, requests: int) -> None:
        if requests:
            self.observer.http_answered(kind, requests)

    def _translate(self, failed: ExchangeFailed) -> EndpointError:
        text = f"{self._peer.server}: {failed}"
        if failed.how is Lost.TLS_ONLY:
            return EndpointMisconfigured(text)
        if failed.how is Lost.REFUSED_TLS and (why := refused_client(failed.cause, shown=self._peer.shows_certificate)):
            return EndpointMisconfigured(f"{self._peer.server}: {why}")
        return EndpointUnavailable(text, KINDS.get(failed.how, "unavailable"))

    def _after(self, answer: Answer, posting: Posting, tried: Tries) -> float:
        """Seconds until the record under way is tried again; else raises what its answers prove."""
        status, server = answer.status, self._peer.server
        tries = tried.add()
        asked_s = retry_after_s(answer.retry_after, time.time()) if answer.retry_after else None
        match verdict(status):
            case Verdict.TRANSIENT:
                self._receiver.steps.refused(self._now())
                pause_s = quick_pause_s(tries, self._quick_tries, asked_s, tried.spent_s)
                if pause_s is not None and self._now() - self._receiver.acked_at <= RECENT_S:
                    return pause_s
                unavailable = EndpointUnavailable(f"{server}: it answers with {status}", ANSWERED)
                unavailable.at(posting.arrived, tries, posting.under_way)
                unavailable.retry_after_s = asked_s
                raise unavailable
            case Verdict.POISON:
                return self._refused(posting, status, tries)
            case _:
                raise EndpointMisconfigured(f"{server}: it answers with {status}").at(
                    posting.arrived, tries, posting.under_way
                )

    def _refused(self, posting: Posting, status: int, tries: int) -> float:
        """Seconds until a refused record is posted again; else raises what its refusals prove, over all pushes."""
        server = self._peer.server
        match self.refusals.refused(self._maker.place(posting.oldest), self._now()):
            case Finding.PARK:
                raise EntryRefused(f"{server}: it refuses this record with {status}").at(posting.arrived, tries)
            case Finding.STOP:
                raise EndpointMisconfigured(f"{server}: it refuses everything with {status}").at(posting.arrived, tries)
        if not self._quick_tries:
            why = f"{server}: it refuses this record with {status}, and is asked again"
            raise EndpointUnavailable(why, "refused").at(posting.arrived, tries)
        return POISON_APART_S

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until the route stops."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return
