"""A topic's http(s) push-endpoint and arguments, read into values. Pure.

The URI is taken apart here: URL libraries (`urllib.parse`, yarl) normalise `%2f`, `..` and `//`, while radosgw posts to
the very path that the topic names. No message repeats any part of it: a path is the secret of many a webhook.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.endpoints.arguments import (
    BATCH,
    BATCH_BYTES,
    BATCH_RECORDS,
    CA_LOCATION,
    CE_ID,
    CLIENT_CERTIFICATE,
    CLOUDEVENTS,
    CREDENTIAL,
    HTTP_LEVEL,
    IDEMPOTENCY,
    PASSWORD,
    USER,
    VERIFY,
    Reasons,
    remarks_on_others,
)
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

DEFAULT_PORTS = {"http": 80, "https": 443}

HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Where a receiver listens; targets of one server share fate."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@dataclass(frozen=True, slots=True)
class Login:
    """User and password, which are sent with each request (Basic)."""

    user: bytes
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Batching:
    """Several records in one request; `kind` is what `remora-batch` may say."""

    kind: str
    records: int = int(BATCH_RECORDS.default)
    nbytes: int = int(BATCH_BYTES.default)

    def fitting(self, nbytes: int) -> int:
        """How many records of `nbytes` each go in one request."""
        return max(1, min(self.records, self.nbytes // max(1, nbytes)))


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """What a target means. `path` is the request's target as it stands in the URI; `host` its Host header."""

    server: HttpServer
    host: str
    path: str = field(repr=False)
    login: Login | None = None
    tls: Tls | None = None
    credential: str = ""
    cloudevents: bool = False
    positions_as_ids: bool = False
    idempotency_keys: bool = False
    batching: Batching | None = None
    remarks: tuple[str, ...] = field(default=(), compare=False)


def parse_target(target: Target) -> HttpTarget:
    """Read a topic's endpoint and its arguments. Raises EndpointMisconfigured with all that is wrong with them."""
    scheme = target.scheme
    if scheme not in DEFAULT_PORTS:
        raise EndpointMisconfigured("the endpoint is not an http:// or https:// URI")
    if not re.fullmatch(r"[!-~]+", target.uri):
        raise EndpointMisconfigured("the endpoint holds a space, a control character, or one that is not ASCII")
    reasons = Reasons()
    args = parse_args(target.args)
    user_info, authority, path, fragment = _split(target.uri)
    login, tls = reasons.read(None, _login, user_info, args), reasons.read(None, _tls, scheme, args)
    ids = reasons.read("", CE_ID.read, args)
    if args.get(DEAD_LETTER_TOPIC):
        reasons.add(f"{DEAD_LETTER_TOPIC}: http endpoints take no dead letters; the store keeps them")
    found = HttpTarget(
        server=reasons.read(HttpServer(scheme, "", 0), _server, scheme, authority),
        host=authority if not authority.endswith(f":{DEFAULT_PORTS[scheme]}") else authority.rpartition(":")[0],
        path=path,
        login=login,
        tls=tls,
        credential=reasons.read("", CREDENTIAL.read, args),
        cloudevents=reasons.read(False, CLOUDEVENTS.read, args),
        positions_as_ids=ids == "position",
        idempotency_keys=reasons.read(False, IDEMPOTENCY.read, args),
        batching=_batching(args, reasons),
        remarks=reasons.read((), lambda: tuple(_remarks(scheme, args, login, tls, fragment))),
    )
    if found.cloudevents and found.batching is not None and found.batching.kind != "cloudevents":
        reasons.add(f"remora-batch={found.batching.kind} and cloudevents=true exclude each other")
    reasons.refuse()
    return found


def _split(uri: str) -> tuple[str, str, str, str]:
    """User part, host with port, path with query, and fragment; path and query are exactly as they stand there."""
    rest = uri.partition("://")[2]
    match = re.fullmatch(r"([^/?#]*)([^#]*)(#.*)?", rest)
    assert match is not None  # each part may be empty, and a line's end is no printable character
    user_info, _, authority = match[1].rpartition("@")
    path = match[2]
    return user_info, authority, path if path.startswith("/") else "/" + path, match[3] or ""


def _server(scheme: str, authority: str) -> HttpServer:
    if authority.startswith("["):
        host, bracket, port = authority[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise EndpointMisconfigured("expected an IPv6 address as [address]:port")
        try:
            return HttpServer(scheme, str(ipaddress.IPv6Address(host)), _port(scheme, port[1:] if port else None))
        except ValueError:
            raise EndpointMisconfigured("the endpoint's host is not an IPv6 address") from None
    host, colon, port = authority.partition(":")
    if not host:
        raise EndpointMisconfigured("the endpoint names no host")
    if ":" in port:
        raise EndpointMisconfigured("more than one ':' behind the host; an IPv6 address needs brackets, [address]:port")
    if not HOST_NAME.fullmatch(host):
        raise EndpointMisconfigured(
            "the endpoint's host is no name or address; other alphabets are written in punycode"
        )
    if any(len(label) > 63 or not label for label in host.rstrip(".").split(".")):
        raise EndpointMisconfigured("the endpoint's host has an empty part, or one of more than 63 letters")
    return HttpServer(scheme, host.lower(), _port(scheme, port if colon else None))


def _port(scheme: str, text: str | None) -> int:
    if text is None:
        return DEFAULT_PORTS[scheme]
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise EndpointMisconfigured("the endpoint's port is not a number from 1 to 65535")
    return int(text)


def _login(user_info: str, args: Mapping[str, str]) -> Login | None:
    """The arguments win over the URI."""
    user_text, _, password_text = user_info.partition(":")
    user = USER.read(args).encode() or unquote_to_bytes(user_text)
    password = PASSWORD.read(args).encode() or unquote_to_bytes(password_text)
    if bool(user) != bool(password):
        raise EndpointMisconfigured(f"a {'user' if user else 'password'} without a {'password' if user else 'user'}")
    if b":" in user:
        raise EndpointMisconfigured("a user's name must not contain ':'")
    return Login(user, password) if user else None


def _tls(scheme: str, args: Mapping[str, str]) -> Tls | None:
    verify = VERIFY.read(args)
    if scheme != "https":
        return None
    certificate, key, password = (args.get(name, "") for name in CLIENT_CERTIFICATE)
    if bool(certificate) != bool(key):
        raise EndpointMisconfigured(
            f"{CLIENT_CERTIFICATE[0]} and {CLIENT_CERTIFICATE[1]} belong together: set both or neither"
        )
    return Tls(CA_LOCATION.read(args), verify, certificate, key, password if certificate else "")


def _batching(args: Mapping[str, str], reasons: Reasons) -> Batching | None:
    kind = reasons.read("", BATCH.read, args)
    records = reasons.read(0, BATCH_RECORDS.read, args)
    nbytes = reasons.read(0, BATCH_BYTES.read, args)
    return Batching(kind, records, nbytes) if kind else None


def _remarks(
    scheme: str, args: Mapping[str, str], login: Login | None, tls: Tls | None, fragment: str
) -> Iterator[str]:
    if fragment:
        yield "the endpoint's #fragment is not sent"
    if login is not None and scheme == "http":
        yield "the password travels unencrypted, because the endpoint is not https"
    if tls is None:
        for name in ("ca-location", *CLIENT_CERTIFICATE):
            if args.get(name):
                yield f"{name} has no effect without https"
    elif not tls.verify:
        yield "verify-ssl=false: the receiver's certificate is not checked"
    yield from _without_effect(args)


def _without_effect(args: Mapping[str, str]) -> Iterator[str]:
    if HTTP_LEVEL.read(args):
        yield "http-ack-level has no effect, as in radosgw: only an answer of 200 to 299 is an acknowledgement"
    yield from remarks_on_others(args, "http")
    if args.get("remora-ce-id") and not (CLOUDEVENTS.read(args) or args.get("remora-batch")):
        yield "remora-ce-id has no effect without cloudevents=true"
    if args.get("remora-format"):
        yield "remora-format has no effect at http endpoints: cloudevents=true does the same there"
    if not args.get("remora-batch") and (args.get("remora-batch-records") or args.get("remora-batch-bytes")):
        yield "remora-batch-records and remora-batch-bytes have no effect without remora-batch"
