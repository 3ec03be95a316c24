"""Log-ins that are not aiokafka's: each goes over a connection that aiokafka has made without one."""

from __future__ import annotations

from typing import Any

from remora.endpoints.kafka.bearer import show_token
from remora.endpoints.kafka.kerberos import KerberosLogin, get_tickets, log_in
from remora.endpoints.kafka.target import Broker
from remora.endpoints.kafka.tokens import GivenToken, TokenDesk

OwnLogin = KerberosLogin | TokenDesk | GivenToken
"""With Kerberos, or with a token."""


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
