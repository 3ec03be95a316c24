"""Log-ins with Kerberos: SASL's mechanism GSSAPI (RFC 4752), with tickets that krb5 gets and renews from a keytab.

aiokafka has an authenticator for GSSAPI. It takes the one ticket cache of the process's environment, so that all topics
would come as the same principal; and a KDC that does not answer would hold the event loop's own few threads, one for
each connection. So a connection is made without a log-in, and this one then goes over it as any two requests do.

A request for tickets waits in a thread, at most one for a log-in and at most one for each broker of it. Tickets are
kept in the process's memory, one cache for each log-in, as long as the process lives.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

from remora.config.delivery import KafkaSettings
from remora.endpoints.kafka.target import KERBEROS, KERBEROS_KEYTAB, Kerberos
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import read_client_file
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable

if TYPE_CHECKING:
    import gssapi

KEYTAB_BEGINS = (b"\x05\x01", b"\x05\x02")
"""The two formats that there are."""

MOST_OF_PATIENCE = 0.8
"""Of the time to connect, for the KDC: then there is some left to say that it was the KDC."""

NO_PROTECTION = 1
NEITHER_SIGNED_NOR_SEALED = bytes((NO_PROTECTION, 0, 0, 0))
"""What follows the log-in goes as it is: Kafka knows no other way, and TLS is there for that."""

KRB5 = -1765328384 & 0xFFFFFFFF
"""Where krb5's own error numbers begin, as GSSAPI's minor ones have them."""

AWAY = frozenset({
    KRB5 + 29,  # KDC_ERR_SVC_UNAVAILABLE
    KRB5 + 32,  # AP_ERR_TKT_EXPIRED: another one comes with the next attempt
    KRB5 + 60,  # ERR_GENERIC: the KDC's own trouble
    KRB5 + 156,  # KDC_UNREACH
})  # fmt: skip
"""What passes by itself; all else waits for an operator."""

WORDS = {
    KRB5 + 24: "the KDC refuses the keytab's key, which was changed since or belongs to another principal",
    KRB5 + 31: "the KDC refuses the keytab's key, which was changed since or belongs to another principal",
    KRB5 + 195: "the keytab has no key of the principal",
}
"""Where krb5's own words say something else: PREAUTH_FAILED, AP_ERR_BAD_INTEGRITY, and no cache with tickets."""


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """As whom to come, and to what kind of service. `digest` stands for the keytab's content in comparisons.

    An empty `principal` is the first of the keytab.
    """

    service: str
    principal: str
    digest: str = field(repr=False)
    keytab: bytes = field(repr=False, compare=False)

    @property
    def cache(self) -> str:
        """The name of the cache that has the tickets of this principal and key."""
        return f"MEMORY:remora-{hashlib.sha256(f'{self.digest}/{self.principal}'.encode()).hexdigest()}"


def read_login(asked: Kerberos, settings: KafkaSettings) -> KerberosLogin:
    """Read the topic's keytab, else the operator's; blocks on the file system, and while the library is loaded.

    Raises EndpointMisconfigured with why it cannot.
    """
    _library()
    service = asked.service or settings.kerberos_service_name
    if asked.keytab:
        what, principal = f"{KERBEROS_KEYTAB} {asked.keytab}", asked.principal
        content = read_client_file(KERBEROS_KEYTAB, asked.keytab, settings.client_places)
    elif settings.kerberos_keytab:
        what, principal = f"kafka.kerberos_keytab {settings.kerberos_keytab}", settings.kerberos_principal
        content = read_client_file("kafka.kerberos_keytab", settings.kerberos_keytab, ["/"])
    else:
        raise EndpointMisconfigured(
            f"mechanism={KERBEROS} needs {KERBEROS_KEYTAB}, or the option kafka.kerberos_keytab"
        )
    if not content.startswith(KEYTAB_BEGINS):
        raise EndpointMisconfigured(f"{what}: not a keytab")
    return KerberosLogin(service, principal, hashlib.sha256(content).hexdigest(), content)


def _library() -> Any:
    try:
        import gssapi  # an extra, which only hosts with such topics need
    except ModuleNotFoundError:
        why = "is not installed; the extra remorad[gssapi] has it"
        raise EndpointMisconfigured(f"mechanism={KERBEROS}: the Python package gssapi {why}") from None
    except ImportError as exc:
        why = f"the Python package gssapi cannot be loaded: {exc}"
        raise EndpointMisconfigured(f"mechanism={KERBEROS}: {why}") from None
    return gssapi


async def log_in(connection: Any, login: KerberosLogin, timeout_s: float) -> None:
    """Log in over an aiokafka connection on which nothing was sent but a look at the versions.

    Raises EndpointMisconfigured where the KDC or the broker refuses, EndpointUnavailable where the KDC is away, and
    what aiokafka raises. The connection is good for nothing then.
    """
    where = f"{connection.host}:{connection.port}"
    context, token = await _begin(login, connection.host, where, timeout_s)
    answer = await connection.send(SaslHandShakeRequest(KERBEROS))
    if answer.error_code:
        raise kafka.for_code(answer.error_code)
    offer = await _exchange(connection, context, token, where)
    with _in_words(where):
        protections = context.unwrap(offer).message
        if not protections or not protections[0] & NO_PROTECTION:
            raise EndpointMisconfigured(f"{where}: the broker wants Kerberos to sign or seal what follows the log-in")
        last = context.wrap(NEITHER_SIGNED_NOR_SEALED, encrypt=False).message
    await _show(connection, last, where)


async def _exchange(connection: Any, context: gssapi.SecurityContext, token: bytes, where: str) -> bytes:
    """Show tokens until both sides know each other: what the broker then offers."""
    while True:
        answer = await _show(connection, token, where)
        if context.complete:
            return answer
        with _in_words(where):
            token = context.step(answer) or b""


async def _show(connection: Any, token: bytes, where: str) -> bytes:
    answer = await connection.send(SaslAuthenticateRequest(token))
    if answer.error_code:
        error = kafka.for_code(answer.error_code)
        if error is kafka.SaslAuthenticationFailed:
            raise EndpointMisconfigured(f"{where}: the broker refuses the Kerberos ticket")
        raise error
    return bytes(answer.sasl_auth_bytes)


async def get_tickets(login: KerberosLogin, host: str, where: str, timeout_s: float) -> gssapi.Credentials:
    """Have the tickets of a log-in in its cache, also that for the broker on this host, which `where` names.

    Those who come meanwhile wait for the same tickets, not in a thread of their own each. Raises EndpointError.
    """
    what, patience_s = f"{where}: Kerberos tickets", timeout_s * MOST_OF_PATIENCE
    credentials = await run_blocking(("ticket", login), lambda: _credentials(login), what, patience_s)
    await run_blocking(
        ("service ticket", login, host), lambda: _start(login, credentials, host, where), what, patience_s
    )
    return credentials


async def _begin(login: KerberosLogin, host: str, where: str, timeout_s: float) -> tuple[gssapi.SecurityContext, bytes]:
    """A log-in that begins, and a token for the broker, which may be shown once only.

    When it is made all tickets are there, so that no KDC holds that thread.
    """
    credentials = await get_tickets(login, host, where, timeout_s)
    return await run_blocking(
        object(), lambda: _start(login, credentials, host, where), f"{where}: Kerberos tickets", timeout_s
    )


def _credentials(login: KerberosLogin) -> gssapi.Credentials:
    """The log-in's ticket, from its cache while more than half of its life is left, else from the KDC."""
    library = _library()
    with _in_words(login.principal or "the keytab's first principal"), _as_file(login.keytab) as keytab:
        name = library.Name(login.principal, library.NameType.kerberos_principal) if login.principal else None
        store = {"client_keytab": f"FILE:{keytab}", "ccache": login.cache}
        found: gssapi.Credentials = library.Credentials(
            name=name, usage="initiate", mechs=[library.MechType.kerberos], store=store
        )
        return found


def _start(
    login: KerberosLogin, credentials: gssapi.Credentials, host: str, where: str
) -> tuple[gssapi.SecurityContext, bytes]:
    """A log-in that begins, and its first token; the ticket for the broker is kept in the log-in's cache."""
    library = _library()
    with _in_words(where):
        context = library.SecurityContext(
            name=library.Name(f"{login.service}@{host}", library.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=library.MechType.kerberos,
            flags=library.RequirementFlag.mutual_authentication | library.RequirementFlag.integrity,
        )
        return context, context.step() or b""


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path under which krb5 reads the very bytes that were read and compared."""
    file = os.memfd_create("remora-keytab", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as memory:
            memory.write(content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


@contextmanager
def _in_words(where: str) -> Iterator[None]:
    """GSSAPI's errors as errors of the endpoint, with krb5's reason."""
    library = _library()
    try:
        yield
    except library.exceptions.GSSError as exc:
        code = exc.min_code & 0xFFFFFFFF
        reason = WORDS.get(code) or "; ".join(exc.get_all_statuses(exc.min_code, False))
        text = f"{where}: Kerberos: {reason}"
        raise EndpointUnavailable(text, "connect") if code in AWAY else EndpointMisconfigured(text) from None
