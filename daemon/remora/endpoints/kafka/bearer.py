"""Log-ins with a token by SASL's mechanism OAUTHBEARER (RFC 7628), and again before a session ends (KIP-368).

aiokafka has an authenticator for it, which takes a refusal, which a broker says in a challenge, for a log-in that
worked, and knows no end of a session. So a connection is made without a log-in, as for Kerberos (`kerberos.py`), and
this one goes over it. To log in again takes the same two requests, written in one turn of the event loop: a broker that
gets another request between them ends the connection.

Tokens come by OAuth 2's client-credentials grant: asked for once, and shared.

What was weighed: Authlib, whose asynchronous client brings httpx and all of its own, and reads answers of any size;
aiohttp, which the daemon has, and which leaves a connection that is cancelled while TLS is agreed on to the event loop,
half a minute long. The grant is one request with one small answer, so `codec.token_grant` has it whole; it goes over
`dial`, as everything else that an endpoint opens, and httptools reads the answer.

Who waits for a token waits for the same request as all others. A request that fails is followed by a pause that grows,
and whoever asks within it gets the same reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiokafka.errors as kafka
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

from remora.codec.token_grant import MECHANISM, GrantRefused, error_code, grant_request, read_grant
from remora.config.delivery import KafkaSettings
from remora.endpoints.arguments import TOKEN_URL
from remora.endpoints.kafka.kerberos import KerberosLogin, get_tickets, log_in
from remora.endpoints.kafka.target import Bearer, Broker
from remora.endpoints.shared import Shared, leave_open
from remora.endpoints.single_post import PostAnswer, post_once
from remora.endpoints.tasks import Tasks
from remora.endpoints.tls import Trust
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, without_frames
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.delivery.tokens import PAUSES, TokenTimes, parse_place, renewal_s, why_not
from remora.policy.ownership.quarantine import ANSWERED

MOST_OF_PATIENCE = 0.8
"""Of the time to connect, for the token: then there is some left to say that it was the token's server."""

MANY_DESKS = 256

PASSING = frozenset({408, 425, 429})
"""Statuses below 500 that pass by themselves."""


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """All that makes tokens alike: what is asked, as whom, and whom to trust with the secret."""

    asked: Bearer
    trust: Trust


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token with its times on the event loop's clock."""

    token: str = field(repr=False)
    times: TokenTimes
    lasts_s: float


class TokenSource(Protocol):
    """Where a log-in gets its token."""

    async def token(self) -> str:
        """A token that is good yet. Raises EndpointError with why there is none."""
        ...

    def refuse(self, token: str, reason: EndpointError) -> None:
        """A broker refuses this token."""
        ...


@dataclass(frozen=True, slots=True)
class GivenToken:
    """A token for some log-ins that follow at once."""

    held: HeldToken

    async def token(self) -> str:
        """The token."""
        return self.held.token

    def refuse(self, _token: str, _reason: EndpointError) -> None:
        """Nobody asks for another one."""


Grant = Callable[[TokenLogin], Coroutine[Any, Any, HeldToken]]
"""Asks for a token. Raises EndpointError."""


class TokenDesk:
    """The token of one log-in, for all of its connections."""

    def __init__(self, login: TokenLogin, tasks: Tasks, grant: Grant, chance: Callable[[], float]) -> None:
        self._login = login
        self._grant = grant
        self._chance = chance
        self._now = asyncio.get_running_loop().time
        self._failures = 0
        self._failure: EndpointError | None = None
        self._again_at = 0.0
        self._held = Shared(
            f"token of {login.asked.url}", tasks, self._ask, leave_open,
            is_usable=lambda held: self._now() < held.times.renew_at,
        )  # fmt: skip
        self.used_at = self._now()

    async def token(self) -> str:
        """A token that is good yet. Raises EndpointError with why there is none.

        From the time on at which it is renewed, the former one serves while no other is granted, until it ends.
        """
        self.used_at = self._now()
        try:
            return (await self._held.ready()).token
        except EndpointError:
            held = self._held.current
            if held is None or self._now() >= held.times.ends_at:
                raise
            return held.token

    def refuse(self, token: str, reason: EndpointError) -> None:
        """A broker refuses this token: ask for another one, after a pause."""
        held = self._held.current
        if held is not None and held.token == token:
            self._held.close_current()
            self._failed(reason)

    def close(self) -> None:
        """Nobody needs it any more."""
        self._held.close()

    async def _ask(self) -> HeldToken:
        if self._failure is not None and self._now() < self._again_at:
            raise self._failure.again()
        try:
            held = await self._grant(self._login)
        except EndpointError as exc:
            self._failed(exc)
            raise
        self._failures, self._failure = 0, None
        return held

    def _failed(self, exc: EndpointError) -> None:
        self._failures += 1
        self._failure = without_frames(exc.again())
        self._again_at = self._now() + PAUSES.delay(self._failures, self._chance())


class TokenDesks:
    """The desks of an endpoint, by log-in. Where there are many, those that nothing used for long are forgotten."""

    def __init__(
        self,
        settings: KafkaSettings,
        tasks: Tasks,
        rules: DestinationRules,
        grant: Grant | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`grant` asks, by default the token's server; `chance` is uniform in [0, 1)."""
        self._settings = settings
        self._tasks = tasks
        self._grant = grant or (lambda login: ask_for_token(login, settings, rules))
        self._chance = chance
        self._desks: dict[TokenLogin, TokenDesk] = {}

    def desk(self, login: TokenLogin) -> TokenDesk:
        """The desk of a log-in, the same one for all. Raises EndpointMisconfigured where its URL may not be asked."""
        refuse_url(login.asked, self._settings)
        desk = self._desks.get(login)
        if desk is None:
            if len(self._desks) >= MANY_DESKS:
                before = asyncio.get_running_loop().time() - self._settings.idle_timeout_s
                self._desks = {login: each for login, each in self._desks.items() if each.used_at > before}
            desk = self._desks[login] = TokenDesk(login, self._tasks, self._grant, self._chance)
        desk.used_at = asyncio.get_running_loop().time()
        return desk

    def close(self) -> None:
        """End requests that are under way."""
        for each in self._desks.values():
            each.close()


async def ask_for_token(login: TokenLogin, settings: KafkaSettings, rules: DestinationRules) -> HeldToken:
    """Ask the token's server, once. Raises EndpointError, beginning with the URL."""
    asked, trust, timeout_s = login.asked, login.trust, settings.connect_timeout_s * MOST_OF_PATIENCE
    refuse_url(asked, settings)
    place = parse_place(asked.url)
    asked_at = asyncio.get_running_loop().time()
    headers, body = grant_request(asked.client_id, asked.secret, asked.scope)
    answer = await post_once(place, headers, body, trust, rules, timeout_s)
    _refuse(answer, str(place))
    try:
        granted = read_grant(answer.body)
    except GrantRefused as exc:
        raise EndpointMisconfigured(f"{place}: {exc}") from None
    return HeldToken(granted.token, TokenTimes.of(asked_at, granted.lasts_s), granted.lasts_s)


def refuse_url(asked: Bearer, settings: KafkaSettings) -> None:
    """Raise EndpointMisconfigured where the operator does not name a topic's URL."""
    if why := why_not(asked.url, map(parse_place, settings.token_endpoints)):
        raise EndpointMisconfigured(f"{TOKEN_URL.name}: {why}")


def _refuse(answer: PostAnswer, place: str) -> None:
    """Raise what an answer without a token means."""
    status = answer.status
    if status == 200:
        return
    code = error_code(answer.body)
    said = f"{status}, {code}" if code else str(status)
    if 300 <= status < 400:
        raise EndpointMisconfigured(f"{place}: it redirects ({said}), which is not followed")
    if status >= 500 or status in PASSING:
        raise EndpointUnavailable(f"{place}: it grants no token now ({said})", ANSWERED)
    raise EndpointMisconfigured(f"{place}: it refuses the client or its scope ({said})")


LEAST_PAUSE_S = 0.5
"""Before a renewal is tried again that failed."""

OwnLogin = KerberosLogin | TokenDesk | GivenToken
"""With Kerberos, or with a token."""


async def show_token(connection: Any, source: TokenSource) -> float:
    """Log in over a connection; returns for how many seconds the broker lets us in, 0 where it sets no end.

    Raises EndpointMisconfigured where the broker refuses the token, else as `TokenSource.token`, and what aiokafka
    raises. The connection is good for nothing then.
    """
    token = await source.token()
    message = b"n,,\x01auth=Bearer %b\x01\x01" % token.encode()  # RFC 7628
    handshake = asyncio.ensure_future(connection.send(SaslHandShakeRequest(MECHANISM)))
    try:
        shown = asyncio.ensure_future(connection.send(SaslAuthenticateRequest(message)))
    except BaseException:
        handshake.cancel()
        raise
    answers: list[Any] = list(await asyncio.gather(handshake, shown, return_exceptions=True))
    for each in answers:
        if isinstance(each, BaseException):
            raise each
        if each.error_code and kafka.for_code(each.error_code) is not kafka.SaslAuthenticationFailed:
            raise kafka.for_code(each.error_code)
    answer = answers[1]
    if answer.error_code or answer.sasl_auth_bytes:
        status = error_code(bytes(answer.sasl_auth_bytes or b""), "status")
        where = f"{connection.host}:{connection.port}"
        refused = EndpointMisconfigured(f"{where}: the broker refuses the token" + (f" ({status})" if status else ""))
        source.refuse(token, refused)
        connection.close()  # a broker that has refused waits for more of the log-in, whatever is sent
        raise refused
    return float(getattr(answer, "session_lifetime_ms", 0)) / 1000


class BearerSessions:
    """The sessions of a client's connections: each is renewed before the broker ends it, while its token is."""

    def __init__(self, desk: TokenDesk) -> None:
        self._desk = desk
        self._begun: asyncio.Queue[tuple[Any, float]] = asyncio.Queue()

    def begun(self, connection: Any, session_s: float) -> None:
        """The broker lets a connection in for `session_s` seconds; 0 for ever."""
        if renewal_s(session_s) is not None:
            self._begun.put_nowait((connection, session_s))

    async def run(self) -> None:
        """Until cancelled, renew the sessions that have begun."""
        async with asyncio.TaskGroup() as group:
            while True:
                connection, session_s = await self._begun.get()
                group.create_task(self._keep(connection, session_s), name=f"session at {connection.host}")

    async def _keep(self, connection: Any, session_s: float) -> None:
        """Renew one connection's session, as long as there is one."""
        now = asyncio.get_running_loop().time
        ends_at, pause_s = now() + session_s, renewal_s(session_s)
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            if not connection.connected():
                return
            try:
                session_s = await show_token(connection, self._desk)
            except (EndpointError, OSError, RuntimeError, kafka.KafkaError) as exc:
                # Where no token is granted the session goes on until it ends; then the next opening says why.
                without_frames(exc)
                left_s = ends_at - now()
                again_s = max(left_s / 4, LEAST_PAUSE_S)
                pause_s = again_s if again_s < left_s else None
            else:
                ends_at, pause_s = now() + session_s, renewal_s(session_s)


async def prepare(login: OwnLogin | None, broker: Broker, timeout_s: float) -> None:
    """Have what is shown to a broker before there is a connection: what is left of the time then is the broker's.

    Raises EndpointError.
    """
    match login:
        case KerberosLogin():
            await get_tickets(login, broker.host, str(broker), timeout_s)
        case TokenDesk() | GivenToken():
            await login.token()


async def let_in(connection: Any, login: OwnLogin | None, timeout_s: float) -> float:
    """Log in; returns for how many seconds, 0 where nobody has to log in again. Raises as `log_in` and `show_token`."""
    match login:
        case KerberosLogin():
            await log_in(connection, login, timeout_s)
        case TokenDesk() | GivenToken():
            return await show_token(connection, login)
    return 0.0
