"""AMQP endpoints and arguments as radosgw's topics carry them, and what brokers' reply codes mean."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.config import AmqpSettings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.amqp.errors import CHANNEL, CONNECTION, TRANSIENT, too_large, why_closed
from remora.endpoints.amqp.target import AmqpServer, parse_target
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.topic import Target

SECRET = "s3cret"
ARGS = "amqp-exchange=x"


def target(uri: str, args: str = ARGS, topic: str = "events") -> Target:
    return Target(uri, args, topic)


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("amqp://one", AmqpServer("one", 5672)),
        ("amqps://one", AmqpServer("one", 5671, tls=Tls())),
        ("AMQP://One:1", AmqpServer("one", 1)),
        ("amqp://one/%2F", AmqpServer("one", 5672, "/")),
        ("amqp://one/", AmqpServer("one", 5672, "")),
        ("amqp://one/a%2Fb%20c", AmqpServer("one", 5672, "a/b c")),
        ("amqp://[2001:db8:0::1]:7/v", AmqpServer("2001:db8::1", 7, "v")),
        ("amqp://[::1]", AmqpServer("::1", 5672)),
        (f"amqp://alice:{SECRET}@one", AmqpServer("one", 5672, "/", "alice", SECRET)),
        ("amqp://al%40ice:a%2Fb%25@one:8/v", AmqpServer("one", 8, "v", "al@ice", "a/b%")),
    ],
)
def test_uris(uri: str, server: AmqpServer) -> None:
    """A URI is read as rabbitmq-c does: ports, guest, the virtual host, percent signs, IPv6 in brackets."""
    assert parse_target(target(uri)).server == server


CREDENTIALS = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)


@given(CREDENTIALS, CREDENTIALS, st.text(min_size=1, max_size=30).filter(lambda text: "\0" not in text))
def test_quoted(user: str, password: str, vhost: str) -> None:
    """User, password and virtual host come back as they were before they were percent-encoded."""
    uri = f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@one/{quote(vhost, safe='')}"

    server = parse_target(target(uri)).server

    assert (server.user, server.password, server.vhost) == (user, password, vhost)
    assert password not in f"{server}" or password in "one:5672"


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text(rest: str, exchange: str) -> None:
    """Any URI and exchange is a target or a configuration error, and nothing else."""
    try:
        found = parse_target(target(f"amqp://{rest}", f"amqp-exchange={exchange}"))
    except EndpointMisconfigured:
        return
    assert found.server.host


def test_the_message() -> None:
    """The routing key is the topic's name, the exchange the argument's; routable and letters are read."""
    plain = parse_target(target("amqp://one"))
    asked = parse_target(target("amqp://one", "amqp-exchange=x&amqp-ack-level=routable&remora-dead-letter-topic=dead"))

    assert (plain.exchange, plain.routing_key, plain.routable, plain.letters) == ("x", "events", False, "")
    assert (asked.routable, asked.letters) == (True, "dead")


@pytest.mark.parametrize(
    ("uri", "args", "topic", "reason"),
    [
        ("http://one", ARGS, "t", "not an amqp:// or amqps:// URI"),
        ("amqp://", ARGS, "t", "names no host"),
        ("amqp:///v", ARGS, "t", "names no host"),
        ("amqp://one:", ARGS, "t", "port is not a number"),
        ("amqp://one:0", ARGS, "t", "port is not a number"),
        ("amqp://one:70000", ARGS, "t", "port is not a number"),
        ("amqp://one two", ARGS, "t", "a space"),
        ("amqp://ön", ARGS, "t", "printable ASCII"),
        ("amqp://one\r\n", ARGS, "t", "a space"),
        ("amqp://-one", ARGS, "t", "not a host name"),
        (f"amqp://{'o' * 254}", ARGS, "t", "not a host name"),
        ("amqp://::1", ARGS, "t", "needs brackets"),
        ("amqp://[::1", ARGS, "t", "expected an IPv6 address"),
        ("amqp://[nonsense]", ARGS, "t", "not an IPv6 address"),
        ("amqp://one/a/b", ARGS, "t", "write %2F"),
        (f"amqp://one/{'v' * 256}", ARGS, "t", "virtual host's name is longer than 255"),
        ("amqp://alice@one", ARGS, "t", "a user without a password"),
        (f"amqp://:{SECRET}@one", ARGS, "t", "a password without a user"),
        (f"amqp://alice:{SECRET}%00@one", ARGS, "t", "zero byte"),
        (f"amqp://alice:{SECRET}", ARGS, "t", "port is not a number"),
        ("amqp://one", "", "t", "amqp-exchange is missing"),
        ("amqp://one", f"amqp-exchange={'x' * 256}", "t", "amqp-exchange is longer than 255"),
        ("amqp://one", ARGS, "t" * 256, "routing key is longer than 255"),
        ("amqp://one", ARGS, "ä" * 128, "routing key is longer than 255"),
        ("amqp://one", ARGS, "", "routing key, which is the topic's name, is empty"),
        ("amqp://one", f"{ARGS}&amqp-ack-level=leader", "t", "must be none, broker or routable"),
        ("amqp://one", f"{ARGS}&amqp-version=1-0", "t", "must be 0-9-1"),
        ("amqp://one", f"{ARGS}&verify-ssl=perhaps", "t", "verify-ssl must be true or false"),
        ("amqp://one", f"{ARGS}&remora-dead-letter-topic=t", "t", "must not share a routing key"),
        ("amqps://one", f"{ARGS}&ssl-key-location=/k", "t", "ssl-key-location without ssl-certificate-location"),
    ],
)
def test_refused(uri: str, args: str, topic: str, reason: str) -> None:
    """What cannot be meant is refused with the reason, and without any secret."""
    with pytest.raises(EndpointMisconfigured, match=reason) as caught:
        parse_target(target(uri, args, topic))

    assert SECRET not in str(caught.value)


def test_all_reasons() -> None:
    """All that is wrong with a target is told at once, in the order of its parts and each thing once."""
    args = "amqp-version=1-0&amqp-ack-level=leader&verify-ssl=perhaps&remora-dead-letter-topic=t"

    with pytest.raises(EndpointMisconfigured) as caught:
        parse_target(target("amqps://alice@one:0/a/b", args, "t"))

    assert str(caught.value).split("; ") == [
        "amqp-version must be 0-9-1",
        "amqp-ack-level must be none, broker or routable",
        "amqp-exchange is missing",
        "remora-dead-letter-topic: events and dead letters must not share a routing key",
        "verify-ssl must be true or false",
        "a user without a password",
        "the port is not a number from 1 to 65535",
        "a virtual host's name ends at the next '/': write %2F for one that belongs to it",
    ]


@pytest.mark.parametrize(
    ("uri", "args", "remark"),
    [
        ("amqp://one", "amqp-ack-level=none", "stronger than asked"),
        ("amqp://one", "amqp-ack-level=routable", "stricter than radosgw"),
        ("amqp://one/", "", "virtual host's name is empty"),
        (f"amqp://alice:{SECRET}@one", "", "unencrypted"),
        ("amqp://one", "ca-location=/x", "no effect without amqps"),
        ("amqps://one", "verify-ssl=false", "not checked"),
        ("amqp://one", "remora-batch=records", "remora-batch has no effect at amqp endpoints"),
        ("amqp://one", "cloudevents=true", "cloudevents has no effect at amqp endpoints"),
        ("amqp://one", "kafka-ack-level=broker", "kafka-ack-level has no effect at amqp endpoints"),
    ],
)
def test_remarks(uri: str, args: str, remark: str) -> None:
    """What works otherwise than asked is remarked, without any secret."""
    (found,) = AmqpEndpoint(AmqpSettings()).check(target(uri, f"{ARGS}&{args}"))

    assert remark in found
    assert SECRET not in found


def test_no_remarks() -> None:
    """A topic as radosgw stores it, with every request parameter among its arguments, is nothing to remark on."""
    args = "persistent=true&Version=2010-03-31&Action=CreateTopic&amqp-ack-level=broker&verify-ssl="

    assert AmqpEndpoint(AmqpSettings()).check(target("amqp://one", f"{ARGS}&{args}")) == []


@pytest.mark.parametrize(
    ("uri", "args"),
    [
        ("amqp://one/v", ""),
        ("amqp://one:1", ""),
        (f"amqp://alice:{SECRET}@one", ""),
        (f"amqp://guest:{SECRET}@one", ""),
        ("amqps://one:5672", ""),
        ("amqps://one:5672", "verify-ssl=false"),
        ("amqps://one:5672", "ca-location=/x"),
        ("amqps://one:5672", "ssl-certificate-location=/c&ssl-key-location=/k"),
    ],
)
def test_identity(uri: str, args: str) -> None:
    """Whatever makes a connection tells servers apart; exchange, topic and level do not."""
    given = f"&{args}" if args else ""
    plain, other = parse_target(target("amqp://one")).server, parse_target(target(uri, ARGS + given)).server
    same = parse_target(target(uri, f"amqp-exchange=y{given}", "another")).server

    assert plain != other
    assert other == same


def test_secrets_stay_out_of_repr() -> None:
    """No value made of a target shows its password."""
    found = parse_target(target(f"amqp://alice:{SECRET}@one", f"{ARGS}&password={SECRET}"))

    assert SECRET not in f"{found!r} {found.server} {found.server!r}"


# ------------------------------------------------------------------------------------- reply codes


@pytest.mark.parametrize("code", [*CHANNEL, *TRANSIENT, 0, 999])
@pytest.mark.parametrize("channel", [True, False])
def test_reply_codes(code: int, channel: bool) -> None:
    """Codes of the table stop the topic, all others are tried again; the text names topic and code."""
    error = why_closed(code, "exchange x at one:1", channel=channel)

    stops = code in (CHANNEL if channel else CONNECTION)
    assert isinstance(error, EndpointMisconfigured if stops else EndpointUnavailable)
    assert f"exchange x at one:1: {str(error).split(': ', 1)[1]}" == str(error)
    assert f"(reply {code})" in str(error)


@pytest.mark.parametrize(
    ("code", "text", "sizes"),
    [
        (406, "PRECONDITION_FAILED - message size 11 is larger than configured max size 10", (11, 10)),
        (406, "PRECONDITION_FAILED - message size 11 larger than max size 10", (11, 10)),
        (406, "PRECONDITION_FAILED - inequivalent arg 'type'", None),
        (404, "message size 11 is larger than configured max size 10", None),
    ],
)
def test_sizes(code: int, text: str, sizes: tuple[int, int] | None) -> None:
    """The sizes are read from what RabbitMQ says of a message that is too large, and from nothing else."""
    assert too_large(code, text) == sizes
