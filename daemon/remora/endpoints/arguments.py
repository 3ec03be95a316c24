"""What a topic says of its endpoint: a target's host and port, and its arguments. Pure.

The arguments are one table, from which help, files of topics, refusals and docs come: a kind of endpoint has those of
its own and those that all kinds take. No message made here repeats any part of a target or an argument: each could be a
secret, and a forgotten '@' turns a password into a port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, ParamSpec, Protocol, TypeVar

from remora.codec.topic import DEAD_LETTER_TOPIC, DELIVERY, KEYS, SLO, SPILL, TRAFFIC_CLASS
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured

P = ParamSpec("P")
T = TypeVar("T")

HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def read_host_port(text: str, default_port: int) -> tuple[str, int]:
    """A host in lower case and a port, as `host`, `host:port` or `[address]:port`. Raises EndpointMisconfigured."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise EndpointMisconfigured("expected an IPv6 address as [address]:port")
        try:
            return str(ipaddress.IPv6Address(host)), _port(port[1:] if port else None, default_port)
        except ipaddress.AddressValueError:
            raise EndpointMisconfigured("what stands in brackets is not an IPv6 address") from None
    host, colon, port = text.partition(":")
    if ":" in port:
        raise EndpointMisconfigured("more than one ':'; an IPv6 address needs brackets, [address]:port")
    if not host:
        raise EndpointMisconfigured("the endpoint names no host")
    if not HOST_NAME.fullmatch(host):
        raise EndpointMisconfigured("the endpoint's host is not a host name or address")
    return host.lower(), _port(port if colon else None, default_port)


def _port(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise EndpointMisconfigured("the port is not a number from 1 to 65535")
    return int(text)


class Reasons:
    """Gathers the reasons while the parts of a target are read."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def read(self, otherwise: T, reading: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a part of the target means; `otherwise` where it is wrong, with the reason kept."""
        try:
            return reading(*args, **kwargs)
        except EndpointMisconfigured as exc:
            self.add(str(exc))
            return otherwise

    def add(self, reason: str) -> None:
        """One more."""
        self._found[reason] = None

    def refuse(self) -> None:
        """Raise EndpointMisconfigured with all of them, each once; nothing where there are none."""
        if self._found:
            raise EndpointMisconfigured("; ".join(self._found))


T_co = TypeVar("T_co", covariant=True)

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Rule(Protocol[T_co]):
    """What an argument may say."""

    def read(self, name: str, text: str) -> T_co:
        """What the text means. Raises EndpointMisconfigured."""
        ...


@dataclass(frozen=True, slots=True)
class Truth:
    """True or false."""

    def __str__(self) -> str:
        return "`true` or `false`"

    def read(self, name: str, text: str) -> bool:
        value = BOOLEANS.get(text.lower())
        if value is None:
            raise EndpointMisconfigured(f"{name} must be true or false")
        return value


@dataclass(frozen=True, slots=True)
class Words:
    """One of some words."""

    allowed: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"`{each}`" for each in self.allowed)

    def read(self, name: str, text: str) -> str:
        if text and text not in self.allowed:
            *first, last = self.allowed
            allowed = f"{', '.join(first)} or {last}" if first else last
            raise EndpointMisconfigured(f"{name} must be {allowed}")
        return text


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number from 1 on."""

    most: int

    def __str__(self) -> str:
        return f"1 to {self.most}"

    def read(self, name: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= self.most:
            raise EndpointMisconfigured(f"{name} must be a number from 1 to {self.most}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text, or one of a form; `why` goes on from the argument's name."""

    form: str = ""
    why: str = ""

    def __str__(self) -> str:
        return self.why.removeprefix(" must be ").removeprefix(": ") or "text"

    def read(self, name: str, text: str) -> str:
        if text and self.form and not re.fullmatch(self.form, text):
            raise EndpointMisconfigured(f"{name}{self.why}")
        return text


@dataclass(frozen=True, slots=True)
class Argument(Generic[T_co]):
    """One argument. Without a kind all endpoints take it; `default` is what a topic means that does not have it.

    A secret is set `only_from` a file that this option names, and never shown; all others are given as they are. A
    topic of radosgw's may have any of them.
    """

    name: str
    kind: str
    rule: Rule[T_co]
    about: str
    default: str = ""
    only_from: str = ""

    def read(self, args: Mapping[str, str]) -> T_co:
        """What a topic says, or its default where it is missing or empty. Raises EndpointMisconfigured."""
        return self.rule.read(self.name, args.get(self.name) or self.default)


TEXT = Text()

CA_LOCATION = Argument("ca-location", "", TEXT, "file or directory with the authorities to trust")
CERTIFICATE = Argument("ssl-certificate-location", "", TEXT, "file in PEM with the client's certificate")
KEY = Argument("ssl-key-location", "", TEXT, "file in PEM with the client's private key")
KEY_PASSWORD = Argument(
    "ssl-key-password", "", TEXT, "password of the client's private key", only_from="ssl-key-password-file"
)
VERIFY = Argument("verify-ssl", "", Truth(), "whether the server's certificate is checked", "true")
USER = Argument("user-name", "", TEXT, "user to log in as; wins over the endpoint's URI")
PASSWORD = Argument("password", "", TEXT, "password of the user", only_from="password-file")

FORMAT = Argument(
    "remora-format",
    "",
    Words(("cloudevents",)),
    "attributes of CloudEvents in headers; at kafka and amqp",
)

COMMON = (
    CA_LOCATION, CERTIFICATE, KEY, KEY_PASSWORD, VERIFY, USER, PASSWORD,
    Argument(DEAD_LETTER_TOPIC, "", TEXT, "where dead letters go in addition to the store"),
    Argument(DELIVERY, "", TEXT, "at-least-once or exactly-once"),
    Argument(KEYS, "", TEXT, "how senders write object keys: encoded or literal", "encoded"),
    FORMAT,
    Argument(SLO, "", TEXT, "service level, such as 99% < 5s over 28d"),
    Argument(TRAFFIC_CLASS, "", TEXT, "a lower traffic class"),
    Argument(SPILL, "", TEXT, "on or off: whether entries may be moved beside a queue on RADOS that fills"),
)  # fmt: skip
"""Those that all kinds take; what `codec.topic` reads of them is checked there."""

KAFKA_LEVEL = Argument("kafka-ack-level", "kafka", Words(("none", "broker")), "what radosgw waits for", "broker")
BROKERS = Argument("kafka-brokers", "kafka", TEXT, "brokers beside those of the URI")
MECHANISM = Argument("mechanism", "kafka", TEXT, "how remora logs in to the broker", "PLAIN")
KEYTAB = Argument("sasl-kerberos-keytab", "kafka", TEXT, "file with the keys of a Kerberos principal")
PRINCIPAL = Argument("sasl-kerberos-principal", "kafka", TEXT, "principal of the keytab to log in as")
SERVICE = Argument("sasl-kerberos-service-name", "kafka", TEXT, "first part of the brokers' principal")
TOKEN_URL = Argument("sasl-oauthbearer-token-endpoint-url", "kafka", TEXT, "where tokens are asked for, by https")
CLIENT_ID = Argument("sasl-oauthbearer-client-id", "kafka", TEXT, "as which client tokens are asked for")
CLIENT_SECRET = Argument(
    "sasl-oauthbearer-client-secret", "kafka", TEXT, "secret of that client",
    only_from="sasl-oauthbearer-client-secret-file",
)  # fmt: skip
SCOPE = Argument("sasl-oauthbearer-scope", "kafka", TEXT, "for what tokens are to be good")
BEARER = (CLIENT_ID, CLIENT_SECRET, SCOPE, TOKEN_URL)
USE_SSL = Argument("use-ssl", "kafka", Truth(), "whether connections use TLS", "false")
KAFKA = (KAFKA_LEVEL, BROKERS, MECHANISM, KEYTAB, PRINCIPAL, SERVICE, *BEARER, USE_SSL)

MOST_BATCH_RECORDS, MOST_BATCH_BYTES = 10_000, 16 << 20
CLOUDEVENTS = Argument("cloudevents", "http", Truth(), "whether requests have CloudEvents' headers", "false")
HTTP_LEVEL = Argument(
    "http-ack-level", "http",
    Text("any|non-error|[1-5][0-9][0-9]", " must be any, non-error, or a status from 100 to 599"),
    "without effect, as in radosgw",
)  # fmt: skip
BATCH = Argument(
    "remora-batch", "http", Words(("records", "ndjson", "cloudevents")), "form of requests with several records"
)
BATCH_BYTES = Argument(
    "remora-batch-bytes", "http", Number(MOST_BATCH_BYTES), "most bytes of a request", str(256 << 10)
)
BATCH_RECORDS = Argument("remora-batch-records", "http", Number(MOST_BATCH_RECORDS), "most records of a request", "100")
CE_ID = Argument("remora-ce-id", "http", Words(("request", "position")), "what CloudEvents' id is made of", "request")
CREDENTIAL = Argument(
    "remora-credential", "http",
    Text("[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", ": letters, digits, '.', '_' and '-', and no '.' in front"),
    "name of a credential of this host",
)  # fmt: skip
IDEMPOTENCY = Argument("remora-idempotency-key", "http", Truth(), "whether requests have an Idempotency-Key", "false")
HTTP = (CLOUDEVENTS, HTTP_LEVEL, BATCH, BATCH_BYTES, BATCH_RECORDS, CE_ID, CREDENTIAL, IDEMPOTENCY)

AMQP_LEVEL = Argument(
    "amqp-ack-level", "amqp", Words(("none", "broker", "routable")), "what counts as delivered", "broker"
)
EXCHANGE = Argument("amqp-exchange", "amqp", TEXT, "the exchange, which must exist")
VERSION = Argument("amqp-version", "amqp", Words(("0-9-1",)), "version of the protocol", "0-9-1")
AMQP = (AMQP_LEVEL, EXCHANGE, VERSION)

NATS_STREAM = Argument(
    "nats-stream", "nats",
    Text(r"[!-)+-\-0-=?-\[\]-~]+", " must be the name of a stream"),
    "the stream, which must exist",
)  # fmt: skip
NATS_SUBJECT = Argument(
    "nats-subject",
    "nats",
    TEXT,
    "tokens of the subject, with `{topic}`, `{bucket}` and `{key}`",
    "{topic}.{bucket}.{key}",
)
NATS_CREDENTIALS = Argument("nats-credentials", "nats", TEXT, "file with a user's credentials, or with an nkey's seed")
NATS = (NATS_CREDENTIALS, NATS_STREAM, NATS_SUBJECT)

OF_KIND: Mapping[str, tuple[Argument[object], ...]] = MappingProxyType({
    "kafka": KAFKA, "http": HTTP, "amqp": AMQP, "nats": NATS,
})  # fmt: skip
"""The arguments that mean something at one kind of endpoint only."""

CLIENT_CERTIFICATE = (CERTIFICATE.name, KEY.name, KEY_PASSWORD.name)


def remarks_on_others(args: Mapping[str, str], kind: str) -> Iterator[str]:
    """A remark on each argument that endpoints of this kind do not know, while those of another kind do."""
    for other, arguments in OF_KIND.items():
        for each in arguments:
            if other != kind and args.get(each.name):
                yield f"{each.name} has no effect at {kind} endpoints"


def broker_tls(args: Mapping[str, str], is_used: bool) -> Tls | None:
    """TLS to a broker, with a client certificate where one is named; None where the target's scheme or arguments say
    that it is not used. Raises EndpointMisconfigured."""
    if not is_used:
        VERIFY.read(args)
        return None
    certificate, key, password = (args.get(name, "") for name in CLIENT_CERTIFICATE)
    if bool(certificate) != bool(key):
        given, missing = CLIENT_CERTIFICATE[:2] if certificate else CLIENT_CERTIFICATE[1::-1]
        raise EndpointMisconfigured(f"{given} without {missing}")
    if "\0" in password:
        raise EndpointMisconfigured("ssl-key-password must not contain a zero byte")
    return Tls(CA_LOCATION.read(args), VERIFY.read(args), certificate, key, password if key else "")
