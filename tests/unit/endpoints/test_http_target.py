"""http and https push-endpoints and their arguments."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.http.target import Batching, HttpServer, Login, parse_target
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

SECRET = "s3cret"


def target(uri: str, args: str = "") -> Target:
    return Target(uri, args, "events")


@pytest.mark.parametrize(
    ("uri", "server", "host", "path"),
    [
        ("http://one", HttpServer("http", "one", 80), "one", "/"),
        ("HTTP://One", HttpServer("http", "one", 80), "One", "/"),
        ("https://one", HttpServer("https", "one", 443), "one", "/"),
        ("https://one:443/x", HttpServer("https", "one", 443), "one", "/x"),
        ("http://one:443/x", HttpServer("http", "one", 443), "one:443", "/x"),
        ("http://one:8080?a=b", HttpServer("http", "one", 8080), "one:8080", "/?a=b"),
        ("http://one/a%2fb/../c//d?x=%41&y", HttpServer("http", "one", 80), "one", "/a%2fb/../c//d?x=%41&y"),
        ("http://one/a@b", HttpServer("http", "one", 80), "one", "/a@b"),
        ("http://u:p@one/", HttpServer("http", "one", 80), "one", "/"),
        ("http://10.0.0.1:81/", HttpServer("http", "10.0.0.1", 81), "10.0.0.1:81", "/"),
        ("http://[2001:db8:0::1]:8080/", HttpServer("http", "2001:db8::1", 8080), "[2001:db8:0::1]:8080", "/"),
        ("http://a_b.example./x#frag", HttpServer("http", "a_b.example.", 80), "a_b.example.", "/x"),
    ],
)
def test_where(uri: str, server: HttpServer, host: str, path: str) -> None:
    """Host, port and path are read, and the path is as it stands in the URI, byte for byte."""
    found = parse_target(target(uri))

    assert (found.server, found.host, found.path) == (server, host, path)


@pytest.mark.parametrize(
    ("uri", "args", "login"),
    [
        ("http://one", "", None),
        ("http://alice:s3cret@one", "", Login(b"alice", SECRET.encode())),
        ("http://al%40ice:a%2Fb%FF@one", "", Login(b"al@ice", b"a/b\xff")),
        ("http://alice:a@b@one", "", Login(b"alice", b"a@b")),
        ("http://alice@one", "password=s3cret", Login(b"alice", SECRET.encode())),
    ],
)
def test_login(uri: str, args: str, login: Login | None) -> None:
    """User and password are those of the URI, decoded, or of the arguments."""
    assert parse_target(target(uri, args)).login == login


@pytest.mark.parametrize(
    ("uri", "args", "tls"),
    [
        ("http://one", "verify-ssl=false", None),
        ("https://one", "", Tls()),
        ("https://one", "verify-ssl=False&ca-location=/etc/ca.pem", Tls("/etc/ca.pem", verify=False)),
        (
            "https://one",
            "ssl-certificate-location=/c&ssl-key-location=/k&ssl-key-password=s3cret",
            Tls("", True, "/c", "/k", SECRET),
        ),
    ],
)
def test_tls(uri: str, args: str, tls: Tls | None) -> None:
    """TLS follows the scheme, checks certificates unless asked not to, and may show one."""
    assert parse_target(target(uri, args)).tls == tls


def test_arguments() -> None:
    """Batches, ids and keys are read with their defaults."""
    plain = parse_target(target("http://one"))
    full = parse_target(
        target(
            "http://one",
            "remora-batch=ndjson&remora-batch-records=7&remora-batch-bytes=1000&remora-idempotency-key=true"
            "&remora-ce-id=position&remora-credential=hooks",
        )
    )

    assert (plain.batching, plain.idempotency_keys, plain.positions_as_ids, plain.credential) == (
        None,
        False,
        False,
        "",
    )
    assert (full.batching, full.idempotency_keys, full.positions_as_ids) == (Batching("ndjson", 7, 1000), True, True)
    assert full.credential == "hooks"
    assert parse_target(target("http://one", "remora-batch=records")).batching == Batching("records", 100, 256 << 10)


@pytest.mark.parametrize(
    ("uri", "args", "reason"),
    [
        ("kafka://one", "", "not an http"),
        ("http://", "", "names no host"),
        ("http:///path", "", "names no host"),
        (f"http://u:{SECRET}@", "", "names no host"),
        ("http://one:0", "", "port is not a number"),
        ("http://one:70000", "", "port is not a number"),
        (f"http://alice:{SECRET}", "", "port is not a number"),
        ("http://one:", "", "port is not a number"),
        ("http://fe80::1/", "", "needs brackets"),
        ("http://[::1/", "", "expected an IPv6 address"),
        ("http://[x]/", "", "not an IPv6 address"),
        ("http://o ne/", "", "space"),
        (f"http://one/{SECRET}\r\n", "", "control character"),
        ("http://one/\x7f", "", "control character"),
        ("http://bücher.example/", "", "not ASCII"),
        (f"http://{'a' * 64}.example/", "", "more than 63"),
        (f"http://{'a.' * 130}x/", "", "no name or address"),
        ("http://a..b/", "", "empty part"),
        ("http://-a/", "", "no name or address"),
        ("http://alice@one", "", "user without a password"),
        (f"http://:{SECRET}@one", "", "password without a user"),
        ("http://one", "verify-ssl=maybe", "verify-ssl must be true or false"),
        ("http://one", "cloudevents=si", "cloudevents must be true or false"),
        ("http://one", "remora-batch=all", "records, ndjson or cloudevents"),
        ("http://one", "remora-batch=records&remora-batch-records=0", "a number from 1"),
        ("http://one", "remora-batch=records&remora-batch-bytes=x", "a number from 1"),
        ("http://one", "remora-batch=ndjson&cloudevents=true", "exclude each other"),
        ("http://one", "remora-ce-id=entry", "request or position"),
        ("http://one", "remora-credential=../etc/shadow", "remora-credential"),
        ("http://one", "remora-credential=.hidden", "remora-credential"),
        ("http://one", "http-ack-level=all", "http-ack-level"),
        ("http://one", "remora-dead-letter-topic=dlq", "take no dead letters"),
        ("https://one", "ssl-key-location=/k", "belong together"),
    ],
)
def test_refused(uri: str, args: str, reason: str) -> None:
    """What cannot work is refused with the reason, which repeats nothing of the URI."""
    with pytest.raises(EndpointMisconfigured, match=reason) as caught:
        parse_target(target(uri, args))

    assert SECRET not in str(caught.value)


def test_all_reasons() -> None:
    """All that is wrong with a target is told at once, in the order of its parts and each thing once."""
    args = (
        "verify-ssl=perhaps&cloudevents=si&remora-batch=all&remora-batch-records=0&remora-ce-id=entry"
        "&remora-dead-letter-topic=dlq&remora-credential=.hidden&http-ack-level=all"
    )

    with pytest.raises(EndpointMisconfigured) as caught:
        parse_target(target("https://alice@one:0/", args))

    assert str(caught.value).split("; ") == [
        "a user without a password",
        "verify-ssl must be true or false",
        "remora-ce-id must be request or position",
        "remora-dead-letter-topic: http endpoints take no dead letters",
        "the store keeps them",
        "the endpoint's port is not a number from 1 to 65535",
        "remora-credential: letters, digits, '.', '_' and '-', and no '.' in front",
        "cloudevents must be true or false",
        "remora-batch must be records, ndjson or cloudevents",
        "remora-batch-records must be a number from 1 to 10000",
        "http-ack-level must be any, non-error, or a status from 100 to 599",
    ]


@pytest.mark.parametrize(
    ("uri", "args", "remarks"),
    [
        ("http://one", "", ()),
        ("http://u:p@one", "", ("the password travels unencrypted, because the endpoint is not https",)),
        ("https://u:p@one", "", ()),
        ("http://one#x", "", ("the endpoint's #fragment is not sent",)),
        ("http://one", "ca-location=/c", ("ca-location has no effect without https",)),
        ("https://one", "verify-ssl=0", ("verify-ssl=false: the receiver's certificate is not checked",)),
        (
            "http://one",
            "http-ack-level=204",
            ("http-ack-level has no effect, as in radosgw: only an answer of 200 to 299 is an acknowledgement",),
        ),
        ("http://one", "kafka-ack-level=broker", ("kafka-ack-level has no effect at http endpoints",)),
        ("http://one", "sasl-kerberos-keytab=/k", ("sasl-kerberos-keytab has no effect at http endpoints",)),
        ("http://one", "amqp-exchange=x", ("amqp-exchange has no effect at http endpoints",)),
        ("http://one", "remora-ce-id=position", ("remora-ce-id has no effect without cloudevents=true",)),
        (
            "http://one",
            "remora-batch-records=5",
            ("remora-batch-records and remora-batch-bytes have no effect without remora-batch",),
        ),
    ],
)
def test_remarks(uri: str, args: str, remarks: tuple[str, ...]) -> None:
    """What works otherwise than asked is said."""
    assert parse_target(target(uri, args)).remarks == remarks


@given(st.text(max_size=60), st.text(max_size=40))
def test_any_text(rest: str, args: str) -> None:
    """Whatever a topic says is read or refused, and what is read fits a request's first lines."""
    with contextlib.suppress(EndpointMisconfigured):
        found = parse_target(target(f"http://{rest}", args))

        assert all("!" <= each <= "~" for each in found.path + found.host)
        assert found.path.startswith("/")
        assert 1 <= found.server.port <= 65535


def test_secrets_stay_out_of_texts() -> None:
    """Neither password nor path stands in what is logged of a target."""
    found = parse_target(
        target(
            f"https://u:{SECRET}@one/{SECRET}",
            f"ssl-certificate-location=/c&ssl-key-location=/k&ssl-key-password={SECRET}",
        )
    )

    assert SECRET not in repr(found)
    assert str(found.server) == "https://one"
