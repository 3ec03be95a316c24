"""A topic's NATS endpoint, the template of its messages' subjects, and its arguments, read into values. Pure.

No message made here repeats any part of the URI or of an argument that could hold a secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.endpoints.arguments import (
    CLIENT_CERTIFICATE,
    NATS_CREDENTIALS,
    NATS_STREAM,
    NATS_SUBJECT,
    PASSWORD,
    USER,
    Reasons,
    broker_tls,
    read_host_port,
    remarks_on_others,
)
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

PLAIN, OVER_TLS = "nats", "nats+tls"
DEFAULT_PORT = 4222


@dataclass(frozen=True, slots=True)
class NatsServer:
    """All that makes a connection, and nothing else: topics share connections exactly when this is equal.

    A user without a password is a token. `credentials` is a file on this host.
    """

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = ""
    tls: Tls | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NatsTarget:
    """What a target means, and in `remarks` where it works otherwise than it was asked for.

    `letters` is the subject that dead letters go to in addition to the store; empty where none do.
    """

    server: NatsServer
    stream: str
    template: SubjectTemplate
    letters: str = ""
    remarks: tuple[str, ...] = ()


def parse_target(target: Target) -> NatsTarget:
    """Read a topic's endpoint and its arguments. Raises EndpointMisconfigured with all that is wrong with them."""
    if target.scheme not in (PLAIN, OVER_TLS):
        raise EndpointMisconfigured("the endpoint is not a nats:// or nats+tls:// URI")
    reasons = Reasons()
    args = parse_args(target.args)
    stream = reasons.read("", NATS_STREAM.read, args)
    if not args.get(NATS_STREAM.name):
        reasons.add("nats-stream is missing")
    template = reasons.read(SubjectTemplate(()), read_template, NATS_SUBJECT.read(args), target.topic)
    letters = args.get(DEAD_LETTER_TOPIC, "")
    reasons.read(None, _check_letters, letters, template)
    server = _server(target, args, reasons)
    remarks = tuple(_remarks(server, args, template))
    reasons.refuse()
    return NatsTarget(server, stream, template, letters, remarks)


def _check_letters(letters: str, template: SubjectTemplate) -> None:
    if not letters:
        return
    if any(each.startswith("{") for each in letters.split(".")):
        raise EndpointMisconfigured(f"{DEAD_LETTER_TOPIC}: a subject without places")
    try:
        subject = read_template(letters, "").pattern
    except EndpointMisconfigured:
        raise EndpointMisconfigured(
            f"{DEAD_LETTER_TOPIC}: a subject, tokens of letters, digits, '_', '-', '=' and ':' with a '.' between them"
        ) from None
    if covers([template.pattern.decode()], subject):
        raise EndpointMisconfigured(f"{DEAD_LETTER_TOPIC}: events and dead letters must not share a subject")


def _server(target: Target, args: Mapping[str, str], reasons: Reasons) -> NatsServer:
    tls = reasons.read(None, broker_tls, args, target.scheme == OVER_TLS)
    rest = target.uri.partition("://")[2]
    if not rest.isascii() or any(each <= " " or each == "\x7f" for each in rest):
        reasons.add("the endpoint holds a space, or something else than printable ASCII")
        return NatsServer("", 0, tls=tls)
    authority, _, path = rest.partition("/")
    if path:
        reasons.add("the endpoint has a path: NATS knows none, and nats-subject names the subject")
    user_info, at, place = authority.rpartition("@")
    user, password, token = reasons.read(("", "", ""), _login, user_info if at else None, args)
    host, port = reasons.read(("", 0), read_host_port, place, DEFAULT_PORT)
    credentials = NATS_CREDENTIALS.read(args)
    if credentials and (user or token):
        reasons.add("nats-credentials and a user exclude each other")
    return NatsServer(host, port, user, password, token, credentials, tls)


def _login(user_info: str | None, args: Mapping[str, str]) -> tuple[str, str, str]:
    """User, password and token. The arguments win over the URI, in which a user without a password is a token."""
    first, colon, second = (user_info or "").partition(":")
    user, password = USER.read(args), PASSWORD.read(args)
    if not (user or password) and first and not colon:
        return "", "", unquote(first)
    user, password = user or unquote(first), password or unquote(second)
    if bool(user) != bool(password):
        raise EndpointMisconfigured(f"a {'user' if user else 'password'} without a {'password' if user else 'user'}")
    return user, password, ""


def _remarks(server: NatsServer, args: Mapping[str, str], template: SubjectTemplate) -> Iterator[str]:
    if server.tls is None and server.password:
        yield "the password travels unencrypted, because the endpoint is nats and not nats+tls"
    if server.tls is None and server.token:
        yield "the token travels unencrypted, because the endpoint is nats and not nats+tls"
    if server.tls is None and any(args.get(name) for name in ("ca-location", *CLIENT_CERTIFICATE)):
        yield "certificates have no effect without nats+tls"
    if server.tls and not server.tls.verify:
        yield "verify-ssl=false: the server's certificate is not checked"
    if not template.is_one_a_key:
        yield "nats-subject without {bucket} or {key}: copies beyond the stream's duplicate window are not noticed"
    yield from remarks_on_others(args, "nats")


PLACES = ("{topic}", "{bucket}", "{key}")

MOST_TEMPLATE_BYTES = 255

MOST_TOKEN_BYTES = 1024
"""S3's longest keys fit where they are plain; a server takes lines of 4,096 bytes by default, with three tokens."""

_KEPT_BYTES = 900
_TO_ENCODE = re.compile(rb"[^!-~]|[.*>%$]")
_LITERAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_=:-]*")


def token(text: bytes) -> bytes:
    """Any bytes as one token of a subject: other bytes give another token.

    What is not printable ASCII, and what means something in a subject, becomes `%XX`; no bytes at all are `%`. Of one
    that is too long the beginning stays, with a digest of the whole.
    """
    made = _TO_ENCODE.sub(lambda match: b"%%%02X" % match[0][0], text) or b"%"
    if len(made) > MOST_TOKEN_BYTES:
        made = made[:_KEPT_BYTES] + b"%~" + hashlib.sha256(text).hexdigest().encode()
    return made


@dataclass(frozen=True, slots=True)
class SubjectTemplate:
    """The tokens of a template in which the topic's name is filled in."""

    tokens: tuple[bytes, ...]

    @property
    def is_one_a_key(self) -> bool:
        """Whether no two keys have the same subject."""
        return b"{bucket}" in self.tokens and b"{key}" in self.tokens

    @property
    def pattern(self) -> bytes:
        """The subjects that it makes, as NATS writes such: `*` stands for a token."""
        return b".".join(b"*" if each.startswith(b"{") else each for each in self.tokens)

    def subject(self, key: bytes) -> bytes:
        """The subject of an event; `key` is `bucket/object`."""
        bucket, _, name = key.partition(b"/")
        filled = {b"{bucket}": bucket, b"{key}": name}
        return b".".join(token(filled[each]) if each in filled else each for each in self.tokens)


def read_template(text: str, topic: str) -> SubjectTemplate:
    """Read a template. Raises EndpointMisconfigured."""
    tokens: list[bytes] = []
    for each in text.split("."):
        if each == "{topic}":
            tokens.append(token(topic.encode("utf-8", "surrogateescape")))
        elif each in PLACES or _LITERAL.fullmatch(each):
            tokens.append(each.encode())
        else:
            raise EndpointMisconfigured(
                "nats-subject: tokens with a '.' between them, each {topic}, {bucket}, {key}, or letters, digits, '_', "
                "'-', '=' and ':'"
            )
    if len(text) > MOST_TEMPLATE_BYTES:
        raise EndpointMisconfigured(f"nats-subject is longer than {MOST_TEMPLATE_BYTES} bytes")
    return SubjectTemplate(tuple(tokens))


def covers(taken: Sequence[str], pattern: bytes) -> bool:
    """Whether one of the subjects that a stream takes has all that the pattern stands for."""
    return any(_has_all(each.split("."), pattern.decode().split(".")) for each in taken)


def _has_all(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    for at, each in enumerate(wide):
        if each == ">":
            return len(narrow) > at
        if at >= len(narrow) or (each != "*" and each != narrow[at]):
            return False
    return len(wide) == len(narrow)
