"""A topic's AMQP endpoint and its arguments, as radosgw's topics carry them, read into values. Pure.

No message made here repeats any part of the URI or of an argument that could hold a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.endpoints.amqp.frames import MOST_SHORT_BYTES
from remora.endpoints.arguments import (
    AMQP_LEVEL,
    CLIENT_CERTIFICATE,
    EXCHANGE,
    FORMAT,
    PASSWORD,
    USER,
    VERSION,
    Reasons,
    broker_tls,
    read_host_port,
    remarks_on_others,
)
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class AmqpServer:
    """All that makes a connection, and nothing else: topics share connections exactly when this is equal."""

    host: str
    port: int
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: Tls | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AmqpTarget:
    """What a target means, and in `remarks` where it works otherwise than it was asked for.

    `routable` tells that a message which reaches no queue is not delivered. `letters` is the routing key with which
    dead letters go to the same exchange; empty where none do. Messages have the attributes of `cloudevents` in their
    headers where the target asks for them.
    """

    server: AmqpServer
    exchange: str
    routing_key: str
    routable: bool = False
    letters: str = ""
    remarks: tuple[str, ...] = ()
    cloudevents: bool = False


def parse_target(target: Target) -> AmqpTarget:
    """Read a topic's endpoint and its arguments. Raises EndpointMisconfigured with all that is wrong with them."""
    if target.scheme not in PORTS:
        raise EndpointMisconfigured("the endpoint is not an amqp:// or amqps:// URI")
    reasons = Reasons()
    args = parse_args(target.args)
    reasons.read("", VERSION.read, args)
    level = reasons.read("", AMQP_LEVEL.read, args)
    exchange = EXCHANGE.read(args)
    if not exchange:
        reasons.add("amqp-exchange is missing")
    letters = args.get(DEAD_LETTER_TOPIC, "")
    for name, text in (("amqp-exchange", exchange), ("the routing key", target.topic), (DEAD_LETTER_TOPIC, letters)):
        reasons.read(None, _check_short, name, text)
    if not target.topic:
        reasons.add("the routing key, which is the topic's name, is empty")
    elif letters == target.topic:
        reasons.add(f"{DEAD_LETTER_TOPIC}: events and dead letters must not share a routing key")
    server = _server(target, args, reasons)
    remarks = tuple(_remarks(server, args, level))
    cloudevents = bool(reasons.read("", FORMAT.read, args))
    reasons.refuse()
    return AmqpTarget(server, exchange, target.topic, level == "routable", letters, remarks, cloudevents)


def _check_short(name: str, text: str) -> None:
    try:
        long = len(text.encode()) > MOST_SHORT_BYTES
    except UnicodeEncodeError:
        raise EndpointMisconfigured(f"{name} is not UTF-8") from None
    if long:
        raise EndpointMisconfigured(f"{name} is longer than {MOST_SHORT_BYTES} bytes, the most that AMQP allows")
    if "\0" in text:
        raise EndpointMisconfigured(f"{name} must not contain a zero byte")


def _server(target: Target, args: Mapping[str, str], reasons: Reasons) -> AmqpServer:
    tls = reasons.read(None, broker_tls, args, target.scheme == "amqps")
    rest = target.uri.partition("://")[2]
    if not rest.isascii() or any(each <= " " or each == "\x7f" for each in rest):
        reasons.add("the endpoint holds a space, or something else than printable ASCII")
        return AmqpServer("", 0, tls=tls)
    authority, slash, path = rest.partition("/")
    user_info, at, place = authority.rpartition("@")
    user, password = reasons.read(("", ""), _login, user_info if at else None, args)
    host, port = reasons.read(("", 0), read_host_port, place, PORTS[target.scheme])
    vhost = unquote(path) if slash else "/"
    if "/" in path:
        reasons.add("a virtual host's name ends at the next '/': write %2F for one that belongs to it")
    reasons.read(None, _check_short, "the virtual host's name", vhost)
    return AmqpServer(host, port, vhost, user, password, tls)


def _login(user_info: str | None, args: Mapping[str, str]) -> tuple[str, str]:
    """The arguments win over the URI; without either it is the user that every broker has, as in radosgw."""
    user, _, password = (user_info or "").partition(":")
    user, password = USER.read(args) or unquote(user), PASSWORD.read(args) or unquote(password)
    if not user and not password:
        return "guest", "guest"
    if not (user and password):
        raise EndpointMisconfigured(f"a {'user' if user else 'password'} without a {'password' if user else 'user'}")
    if "\0" in user or "\0" in password:
        raise EndpointMisconfigured("user and password must not contain a zero byte")
    return user, password


def _remarks(server: AmqpServer, args: Mapping[str, str], level: str) -> Iterator[str]:
    if level == "none":
        yield "amqp-ack-level=none: delivered with publisher confirms, which is stronger than asked"
    if level == "routable":
        yield "amqp-ack-level=routable: a message that reaches no queue stays here, which is stricter than radosgw"
    if not server.vhost:
        yield "the virtual host's name is empty, as the endpoint ends in '/'; without the '/' it would be '/'"
    if server.tls is None and server.user != "guest":
        yield "the password travels unencrypted, because the endpoint is amqp and not amqps"
    if server.tls is None and any(args.get(name) for name in ("ca-location", *CLIENT_CERTIFICATE)):
        yield "certificates have no effect without amqps"
    if server.tls and not server.tls.verify:
        yield "verify-ssl=false: the broker's certificate is not checked"
    yield from remarks_on_others(args, "amqp")
