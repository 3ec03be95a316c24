"""Log-ins that are not aiokafka's: with Kerberos (`kerberos.py`), and with a token by SASL's mechanism OAUTHBEARER
(RFC 7628), and again before a session ends (KIP-368).

aiokafka has an authenticator for OAUTHBEARER. It takes a refusal, which a broker says in a challenge, for a log-in that
worked, and it knows no end of a session. So a connection is made without a log-in, as for Kerberos, and this one goes
over it. To log in again takes the same two requests, written in one turn of the event loop: a broker that gets another
request between them ends the connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka.errors as kafka
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

from remora.codec.token_grant import MECHANISM, error_code
from remora.endpoints.kafka.kerberos import KerberosLogin, get_tickets, log_in
from remora.endpoints.kafka.target import Broker
from remora.endpoints.kafka.tokens import GivenToken, TokenDesk, TokenSource
from remora.model.errors import EndpointError, EndpointMisconfigured, without_frames
from remora.policy.tokens import renewal_s

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
