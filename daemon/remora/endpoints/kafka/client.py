"""aiokafka's client as this endpoint uses it: it resolves names in threads of their own, and it closes in bounded time.

aiokafka's producer is not used. Of the client and its connections these private members are, here and nowhere else;
`tests/unit/endpoints/test_kafka_private.py` holds this list against the code and against aiokafka:

* `AIOKafkaClient._get_conn` is overridden, and keeps what it opens in `_conns`. Every connection is made there, also
  those that renew the metadata, to names that the cluster itself gave: aiokafka has no other place to resolve a name
  before it connects, and it forgets a connection whose opening fails or is cancelled, while it still is there.
* `AIOKafkaClient._on_connection_closed` is given to each connection, as aiokafka does: it renews the metadata.
* `AIOKafkaClient._topics` loses one topic at a time. `set_topics` replaces the set instead; while the metadata is being
  renewed by age, that makes each `force_metadata_update` wait until it is so old again.
* `AIOKafkaClient._sync_task` and `_md_synchronizer` are begun here: aiokafka begins them after it has made a first
  connection, which it forgets when it is cancelled before it is answered, and which cannot log in as we do.
* `AIOKafkaConnection._protocol`, and asyncio's `_transport` of it: `close` says goodbye, and forgets the transport
  before the other side has answered; and nothing else tells which of a name's addresses was connected to.
* `AIOKafkaConnection._loop` is the event loop by which it connects; ours cuts what a cancelled opening has made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiokafka.errors as kafka
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

from remora.config.delivery import KafkaSettings
from remora.endpoints.dial import DiallingLoop, look_up, refusal
from remora.endpoints.kafka.bearer import BearerSessions, OwnLogin, TokenDesk, let_in
from remora.endpoints.kafka.target import Broker
from remora.endpoints.threads import PATIENCE_S, resolve
from remora.model.errors import EndpointDenied, EndpointError, without_frames
from remora.policy.delivery.destinations import DestinationRules

log = logging.getLogger("aiokafka.connections")
"""Of aiokafka's, so that a kind of line comes once a minute: see RepeatFilter."""

CLOSE_PATIENCE_S = 2.0
"""How long brokers may take to answer the goodbye of a client's connections."""

GOODBYE_S = 1.0
"""How long the end of a TLS connection waits for the other side to end it too."""

REPEAT_S = 60.0

_out = logging.getLogger("remora.kafka")


def request_timeout_s(settings: KafkaSettings) -> float:
    """Shorter than a delivery may take, so that a request to a silent broker ends while its sender still waits."""
    return max(0.1, settings.delivery_timeout_s * 0.8)


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """The connections to one cluster, first to `broker`, then to the brokers that it names.

    With a `login` each connection logs in with it before it is handed out, and with a token again before its session
    ends.
    """

    def __init__(
        self,
        broker: Broker,
        options: dict[str, Any],
        settings: KafkaSettings,
        rules: DestinationRules,
        login: OwnLogin | None = None,
    ) -> None:
        super().__init__(
            bootstrap_servers=str(broker),
            client_id=settings.client_id,
            request_timeout_ms=int(request_timeout_s(settings) * 1000),
            metadata_max_age_ms=int(settings.metadata_max_age_s * 1000),
            connections_max_idle_ms=None,  # a client that nothing uses is closed as a whole
            **options,
        )
        self._options = {**options, "request_timeout_ms": int(request_timeout_s(settings) * 1000)}
        self._made: list[Any] = []  # every connection that may still have a socket
        self._rules = rules
        self._broker, self._settings, self._login = broker, settings, login
        self._sessions = BearerSessions(login) if isinstance(login, TokenDesk) else None
        self._renewing: asyncio.Task[None] | None = None
        self._at_the_door = asyncio.Lock()

    async def bootstrap(self) -> None:
        """Learn which brokers there are, and begin to keep that up to date. Raises what aiokafka does."""
        settings = self._settings
        try:
            async with connected(
                self._broker, settings.client_id, self._login, settings.connect_timeout_s, **self._options
            ) as connection:
                with writing():
                    answer = await connection.send(MetadataRequest([]))
        except OSError as exc:
            raise kafka.KafkaConnectionError(f"{self._broker}: {exc}") from exc
        self.cluster.update_metadata(answer)
        self._sync_task = asyncio.create_task(self._md_synchronizer(), name=f"metadata of {self._broker}")
        if self._sessions is not None:
            self._renewing = asyncio.create_task(self._sessions.run(), name=f"sessions at {self._broker}")

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        place, broker = (node_id, group), self.cluster.broker_metadata(node_id)
        if (known := self._open_at(place)) is not None:
            return known
        try:
            if broker is None:
                raise kafka.StaleMetadata(f"broker {node_id} is not known")
            await admit(broker, self._rules)
            async with self._at_the_door:
                if self._open_at(place) is None:  # another one may have asked for it meanwhile, too
                    self._conns[place] = await self._opened(broker)
                return self._conns[place]
        except (OSError, EndpointError, kafka.KafkaError) as exc:
            without_frames(exc)
            log.warning("%s: no connection: %s", broker or self._broker, str(exc) or type(exc).__name__)
            self.force_metadata_update()  # as aiokafka does for any broker that it cannot connect to
            return None

    def _open_at(self, place: Any) -> Any:
        """The connection that is open at this place, else None."""
        known = self._conns.get(place)
        return known if known is not None and known.connected() else None

    async def _opened(self, broker: Any) -> Any:
        """A new connection that is let in; whatever comes in between, nothing of it is left."""
        self._made = [each for each in self._made if has_socket(each)]
        settings, heard = self._settings, self._on_connection_closed
        connection = new_connection(broker, settings.client_id, on_close=heard, **self._options)
        try:
            await connection.connect()
            if why := why_denied(connection, broker, self._rules):
                raise EndpointDenied(why)
            session_s = await let_in(connection, self._login, settings.connect_timeout_s)
        except BaseException:
            connection.close()
            cut(connection)
            raise
        self._made.append(connection)
        if self._sessions is not None:
            self._sessions.begun(connection, session_s)
        return connection

    def unfollow(self, topic: str) -> None:
        """Stop looking at a topic; the last one stays, because aiokafka asks for all when it has none."""
        if len(self._topics) > 1:
            self._topics.discard(topic)

    async def shut(self) -> None:
        """Close every connection in bounded time, also with brokers that do not answer; raises nothing of theirs."""
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await self.close()
        except (TimeoutError, OSError, kafka.KafkaError) as exc:
            without_frames(exc)
        finally:
            for connection in self._made:
                cut(connection)
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.wait([self._renewing])


async def admit(broker: Broker, rules: DestinationRules, timeout_s: float = PATIENCE_S) -> None:
    """Return when a broker may be connected to, and its name can be looked up without waiting; see `resolve`.

    What topics of Kafka may connect to is what the operator wrote, whoever made them: a denial that he did not write
    would stop topics that have been delivered since before there was any. Raises EndpointDenied, else as `resolve`.
    """
    await resolve(broker.host, timeout_s)
    if rules.admit_all(broker.port, by_operator=True):
        return
    try:
        await look_up(broker.host, broker.port, rules, timeout_s, by_operator=True)
    except EndpointDenied as exc:
        raise EndpointDenied(f"{broker.host}:{broker.port}: {exc}") from None


def why_denied(connection: Any, broker: Broker, rules: DestinationRules) -> str:
    """Why a broker must not lie where this connection to it leads; empty when it may.

    aiokafka connects to a name, which it looks up itself: its answer may be another one than that which was checked.
    """
    transport = connection._protocol and connection._protocol._transport  # noqa: SLF001  # see the module
    if transport is None or rules.admit_all(broker.port, by_operator=True):
        return ""
    return refusal(broker.host, transport.get_extra_info("peername")[0], broker.port, rules, by_operator=True)


def new_connection(broker: Any, client_id: str, **options: Any) -> Any:
    """A connection of aiokafka's that is not open yet. Who opens it closes and cuts it, also where opening it fails."""
    connection = AIOKafkaConnection(broker.host, broker.port, client_id=client_id, **options)
    connection._loop = DiallingLoop(asyncio.get_running_loop())  # noqa: SLF001  # see the module
    return connection


def has_socket(connection: Any) -> bool:
    """Whether something is left of an aiokafka connection, which may be closed and wait for the other side."""
    return bool(connection._protocol and connection._protocol._transport)  # noqa: SLF001  # see the module


def cut(connection: Any) -> None:
    """End an aiokafka connection without goodbye, also one that it has closed and that waits for the other side."""
    if has_socket(connection):
        connection._protocol._transport.abort()  # noqa: SLF001  # see the module


@asynccontextmanager
async def connected(
    broker: Broker, client_id: str, login: OwnLogin | None = None, timeout_s: float = PATIENCE_S, **options: Any
) -> AsyncIterator[Any]:
    """A connection of our own to one broker, logged in, which nothing is left of afterwards.

    aiokafka forgets one that fails to log in, while TLS still says goodbye: to a broker that is slow with its answer,
    the socket would outlive its event loop. A log-in of our own fails after `timeout_s`.
    """
    connection = new_connection(broker, client_id, **options)
    patience_s = 0.0
    try:
        await connection.connect()
        await let_in(connection, login, timeout_s)
        yield connection
        patience_s = GOODBYE_S
    finally:
        closed = connection.close()
        try:
            if closed is not None:
                await asyncio.wait([closed], timeout=patience_s)
        finally:
            cut(connection)


@contextmanager
def writing() -> Iterator[None]:
    """A connection that broke just now as what it is: uvloop refuses to write before aiokafka has heard of it."""
    try:
        yield
    except NotImplementedError as exc:  # what aiokafka says when the broker's versions of a request all are newer
        raise kafka.IncompatibleBrokerVersion from exc
    except RuntimeError as exc:
        raise kafka.KafkaConnectionError from exc


class RepeatFilter(logging.Handler):
    """Passes a line on unless one of its kind was passed on within a minute.

    What matters reaches status and metrics as an endpoint's error; these lines only help to find its cause. A
    broker that is down makes aiokafka repeat them ten times a second.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: dict[tuple[str, str], float] = {}
        self._held_back: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        # The template and not the text: addresses and numbers in it would make each line a kind of its own.
        kind = (record.name, str(record.msg))
        now = time.monotonic()
        if now - self._last.get(kind, -REPEAT_S) < REPEAT_S:
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        self._last[kind] = now
        held_back = self._held_back.pop(kind, 0)
        _out.warning("%s%s", record.getMessage(), f" ({held_back} more like this in between)" if held_back else "")


def install_log_filter() -> None:
    """Take aiokafka's log over. Debug stays off whatever the daemon's level: requests in it hold passwords."""
    theirs = logging.getLogger("aiokafka")
    theirs.setLevel(logging.WARNING)
    theirs.propagate = False
    if not any(isinstance(handler, RepeatFilter) for handler in theirs.handlers):
        theirs.addHandler(RepeatFilter())
