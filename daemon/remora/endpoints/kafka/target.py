"""A topic's endpoint URI and arguments, as radosgw's topics carry them, read into values. Pure.

No message made here repeats any part of the URI or of an argument that could hold a secret: a forgotten '@'
turns a password into a port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from remora.codec.token_grant import MECHANISM as BEARER_MECHANISM
from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.endpoints.arguments import (
    BEARER,
    BROKERS,
    CA_LOCATION,
    CLIENT_CERTIFICATE,
    CLIENT_ID,
    CLIENT_SECRET,
    FORMAT,
    KAFKA_LEVEL,
    KEYTAB,
    MECHANISM,
    PASSWORD,
    PRINCIPAL,
    SCOPE,
    SERVICE,
    TOKEN_URL,
    USE_SSL,
    USER,
    Reasons,
    broker_tls,
    remarks_on_others,
)
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target
from remora.policy.delivery.tokens import parse_place

DEFAULT_PORT = 9092

MOST_BROKERS = 32
"""Brokers of one target, all of which are tried at once; a few are enough, as Kafka names the others."""

KERBEROS = "GSSAPI"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", KERBEROS, BEARER_MECHANISM)

KERBEROS_SERVICE, KERBEROS_PRINCIPAL, KERBEROS_KEYTAB = SERVICE.name, PRINCIPAL.name, KEYTAB.name

OWN_LOGINS = (KERBEROS, BEARER_MECHANISM)
"""Those with neither user nor password."""

HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
SERVICE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Broker:
    """Where to ask first; Kafka itself then names the brokers of the cluster."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """A user, its password and how the two are shown to the broker."""

    user: str
    password: str = field(repr=False)
    mechanism: str = "PLAIN"


@dataclass(frozen=True, slots=True)
class Kerberos:
    """A log-in with Kerberos, as the topic asks for it; what is empty is the operator's to say.

    `keytab` is a path on this host; where there is one, an empty `principal` stands for the keytab's first.
    """

    service: str = ""
    principal: str = ""
    keytab: str = ""


@dataclass(frozen=True, slots=True)
class Bearer:
    """A log-in with a token, as the topic asks for it: which URL grants it, to which client, and for what.

    The URL's certificate is checked by `ca_location`, without one by the system's authorities.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    ca_location: str = ""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """All that makes a connection, and nothing else: topics share connections exactly when this is equal."""

    brokers: tuple[Broker, ...]
    login: SaslLogin | None = None
    tls: Tls | None = None
    kerberos: Kerberos | None = None
    bearer: Bearer | None = None

    def __str__(self) -> str:
        return ",".join(map(str, self.brokers))


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """What a target means, and in `remarks` where it works otherwise than it was asked for.

    `letters` is the Kafka topic that also gets the dead letters; empty where none does. Records have the attributes of
    `cloudevents` in their headers where the target asks for them.
    """

    cluster: KafkaCluster
    topic: str
    remarks: tuple[str, ...] = ()
    letters: str = ""
    cloudevents: bool = False


def parse_target(target: Target) -> KafkaTarget:
    """Read a topic's endpoint and its arguments. Raises EndpointMisconfigured with all that is wrong with them."""
    if target.scheme != "kafka":
        raise EndpointMisconfigured("the endpoint is not a kafka:// URI")
    reasons = Reasons()
    if not _is_topic(target.topic):
        reasons.add(f"Kafka allows no topic of the name {target.topic!r}")
    args = parse_args(target.args)
    user_info, hosts, rest = _split_uri(target.uri)
    brokers = _brokers(hosts, args, reasons)
    mechanism = reasons.read("", _mechanism, args)
    login = None if mechanism in OWN_LOGINS else reasons.read(None, _login, user_info, args, mechanism)
    kerberos = reasons.read(None, _kerberos, args) if mechanism == KERBEROS else None
    bearer = reasons.read(None, _bearer, args) if mechanism == BEARER_MECHANISM else None
    tls = reasons.read(None, lambda: broker_tls(args, USE_SSL.read(args)))
    cluster = KafkaCluster(brokers, login, tls, kerberos, bearer)
    letters = reasons.read("", _letters, target.topic, args)
    remarks = reasons.read(tuple[str, ...](), lambda: tuple(_remarks(cluster, args, user_info, rest)))
    cloudevents = bool(reasons.read("", FORMAT.read, args))
    reasons.refuse()
    return KafkaTarget(cluster, target.topic, remarks, letters, cloudevents)


def _is_topic(name: str) -> bool:
    return bool(TOPIC_NAME.fullmatch(name)) and name not in (".", "..")


def _letters(topic: str, args: Mapping[str, str]) -> str:
    name = args.get(DEAD_LETTER_TOPIC, "")
    if name and not _is_topic(name):
        raise EndpointMisconfigured(f"{DEAD_LETTER_TOPIC}: Kafka allows no topic of this name")
    if name == topic:
        raise EndpointMisconfigured(f"{DEAD_LETTER_TOPIC}: events and dead letters must not share a topic")
    return name


def _split_uri(uri: str) -> tuple[str, str, str]:
    """User part, host part and whatever follows; a '/' in a badly quoted password still belongs to the password."""
    after = uri.partition("://")[2]
    user_info, _, hosts = after.rpartition("@")
    authority = re.match(r"[^/?#]*", hosts)
    assert authority is not None
    return user_info, authority[0], hosts[authority.end() :]


def _brokers(hosts: str, args: Mapping[str, str], reasons: Reasons) -> tuple[Broker, ...]:
    """The brokers of the URI and of the arguments, each once."""
    named = [
        (part.strip(), f"broker {number} of {where}")
        for text, where in ((hosts, "the endpoint"), (BROKERS.read(args), "kafka-brokers"))
        for number, part in enumerate(text.split(","), 1)
        if part.strip()
    ]
    if not named:
        reasons.add("the endpoint names no broker")
    if len(named) > MOST_BROKERS:
        reasons.add(f"{len(named)} brokers are named; {MOST_BROKERS} are the most, and a few are enough")
        return ()
    found = [reasons.read(None, _broker, text, which) for text, which in named]
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _broker(text: str, which: str) -> Broker:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise EndpointMisconfigured(f"{which}: expected an IPv6 address as [address]:port")
        return Broker(_ipv6(host, which), _port(port[1:] if port else None, which))
    host, colon, port = text.partition(":")
    if ":" in port:
        raise EndpointMisconfigured(f"{which}: more than one ':'; an IPv6 address needs brackets, [address]:port")
    if not HOST_NAME.fullmatch(host):
        raise EndpointMisconfigured(f"{which} is not a host name or address")
    return Broker(host.lower(), _port(port if colon else None, which))


def _ipv6(text: str, which: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise EndpointMisconfigured(f"{which} is not an IPv6 address") from None


def _port(text: str | None, which: str) -> int:
    if text is None:
        return DEFAULT_PORT
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise EndpointMisconfigured(f"{which}: the port is not a number from 1 to 65535")
    return int(text)


def _mechanism(args: Mapping[str, str]) -> str:
    mechanism = MECHANISM.read(args).upper()
    if mechanism not in MECHANISMS:
        raise EndpointMisconfigured(f"mechanism: only {', '.join(MECHANISMS)} can be used")
    return mechanism


def _login(user_info: str, args: Mapping[str, str], mechanism: str) -> SaslLogin | None:
    """The arguments win over the URI, as in radosgw."""
    user, _, password = user_info.partition(":")
    user = USER.read(args) or unquote(user)
    password = PASSWORD.read(args) or unquote(password)
    if bool(user) != bool(password):
        raise EndpointMisconfigured(f"a {'user' if user else 'password'} without a {'password' if user else 'user'}")
    if "\0" in user or "\0" in password:
        raise EndpointMisconfigured("user and password must not contain a zero byte")
    return SaslLogin(user, password, mechanism) if user else None


def _kerberos(args: Mapping[str, str]) -> Kerberos:
    service, principal, keytab = (each.read(args) for each in (SERVICE, PRINCIPAL, KEYTAB))
    if any(not each.isprintable() for each in (service, principal, keytab)):
        raise EndpointMisconfigured("the sasl-kerberos arguments must not contain control characters")
    if service and not SERVICE_NAME.fullmatch(service):
        raise EndpointMisconfigured(f"{KERBEROS_SERVICE} is the first part of the brokers' principal, as kafka")
    if principal and not keytab:
        raise EndpointMisconfigured(f"{KERBEROS_PRINCIPAL} without {KERBEROS_KEYTAB}")
    return Kerberos(service, principal, keytab)


def _bearer(args: Mapping[str, str]) -> Bearer:
    url, client_id, secret, scope = (each.read(args) for each in (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE))
    for name, value in ((TOKEN_URL.name, url), (CLIENT_ID.name, client_id), (CLIENT_SECRET.name, secret)):
        if not value:
            raise EndpointMisconfigured(f"mechanism={BEARER_MECHANISM} needs {name}")
    if any(not each.isprintable() for each in (client_id, secret, scope)):
        raise EndpointMisconfigured("the sasl-oauthbearer arguments must not contain control characters")
    try:
        parse_place(url)
    except ValueError as exc:
        raise EndpointMisconfigured(f"{TOKEN_URL.name}: {exc}") from None
    return Bearer(url, client_id, secret, scope, CA_LOCATION.read(args))


def _remarks(cluster: KafkaCluster, args: Mapping[str, str], user_info: str, rest: str) -> Iterator[str]:
    if KAFKA_LEVEL.read(args) == "none":
        yield "kafka-ack-level=none: delivered with acks=all, which is stronger than asked"
    if rest.strip("/"):
        yield "what follows the brokers in the endpoint's URI is ignored"
    yield from _login_remarks(cluster, args, user_info)
    yield from _tls_remarks(cluster, args)
    yield from remarks_on_others(args, "kafka")


def _login_remarks(cluster: KafkaCluster, args: Mapping[str, str], user_info: str) -> Iterator[str]:
    user, _, password = user_info.partition(":")
    if cluster.login and ((user and args.get("user-name")) or (password and args.get("password"))):
        yield "user-name and password of the arguments are used, not those of the URI"
    if cluster.login and not cluster.tls:
        yield "the password travels unencrypted, because use-ssl is not set"
    if cluster.bearer and not cluster.tls:
        yield "the token travels to the brokers unencrypted, because use-ssl is not set"
    own = KERBEROS if cluster.kerberos else BEARER_MECHANISM if cluster.bearer else ""
    if own and (user_info or args.get("user-name") or args.get("password")):
        yield f"user-name and password have no effect with mechanism={own}"
    if not cluster.kerberos and any(args.get(name) for name in (KERBEROS_SERVICE, KERBEROS_PRINCIPAL, KERBEROS_KEYTAB)):
        yield f"the sasl-kerberos arguments have no effect without mechanism={KERBEROS}"
    if not cluster.bearer and any(args.get(each.name) for each in BEARER):
        yield f"the sasl-oauthbearer arguments have no effect without mechanism={BEARER_MECHANISM}"
    if not cluster.login and not own and args.get("mechanism"):
        yield "mechanism has no effect without user-name and password"


def _tls_remarks(cluster: KafkaCluster, args: Mapping[str, str]) -> Iterator[str]:
    tls = cluster.tls
    if not tls and not cluster.bearer and args.get("ca-location"):
        yield "ca-location has no effect without use-ssl"
    if not tls and any(args.get(name) for name in CLIENT_CERTIFICATE):
        yield "the client certificate has no effect without use-ssl"
    if tls and args.get("ssl-key-password") and not tls.key_location:
        yield "ssl-key-password has no effect without ssl-key-location"
    if tls and not tls.verify:
        yield "verify-ssl=false: the broker's certificate is not checked"
