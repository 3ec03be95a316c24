"""A topic's NATS endpoint and its arguments."""

from __future__ import annotations

import pytest

from remora import endpoint_kinds
from remora.config import Settings
from remora.endpoints.nats.target import NatsServer, parse_target
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

SECRET = "s3cret"


def parsed(uri: str, args: str = "nats-stream=S"):  # type: ignore[no-untyped-def]  # of the endpoint
    return parse_target(Target(uri, args, "t"))


@pytest.mark.parametrize(
    ("uri", "args", "server"),
    [
        ("nats://Host", "", NatsServer("host", 4222)),
        ("nats://[::1]:7/", "", NatsServer("::1", 7)),
        ("nats://u:p%40@h:1", "", NatsServer("h", 1, "u", "p@")),
        ("nats://t%2Fk@h", "", NatsServer("h", 4222, token="t/k")),
        ("nats://a:b@h", "&user-name=u&password=p", NatsServer("h", 4222, "u", "p")),
        ("nats+tls://h", "", NatsServer("h", 4222, tls=Tls())),
        ("nats+tls://h", "&verify-ssl=false", NatsServer("h", 4222, tls=Tls(verify=False))),
        ("nats://h", "&nats-credentials=/k/u.creds", NatsServer("h", 4222, credentials="/k/u.creds")),
    ],
)  # fmt: skip
def test_servers(uri: str, args: str, server: NatsServer) -> None:
    """Host, log-in and TLS; a user without a password is a token."""
    found = parsed(uri, "nats-stream=S" + args)

    assert found.server == server
    assert found.stream == "S"
    assert found.template.pattern == b"t.*.*"


@pytest.mark.parametrize(
    ("uri", "args", "why"),
    [
        ("nats://h", "", "nats-stream is missing"),
        ("nats://h", "nats-stream=a.b", "nats-stream must be the name of a stream"),
        ("nats://h/path", "nats-stream=S", "has a path"),
        ("nats://", "nats-stream=S", "names no host"),
        (f"nats://h:{SECRET}", "nats-stream=S", "the port is not a number"),
        (f"nats://:{SECRET}@h", "nats-stream=S", "a password without a user"),
        (f"nats://u:{SECRET}@h", "nats-stream=S&nats-credentials=/k", "exclude each other"),
        ("nats://h", "nats-stream=S&nats-subject={key", "nats-subject: tokens"),
        ("nats://h", "nats-stream=S&remora-dead-letter-topic=t.b.k", "must not share a subject"),
        ("nats://h", "nats-stream=S&remora-dead-letter-topic=x.{key}", "a subject without places"),
        ("nats://h", "nats-stream=S&remora-dead-letter-topic=a..b", "remora-dead-letter-topic: a subject"),
        ("nats+tls://h", "nats-stream=S&ssl-key-location=/k", "ssl-key-location without ssl-certificate-location"),
    ],
)
def test_what_is_refused(uri: str, args: str, why: str) -> None:
    """Whatever cannot work is named, without a secret."""
    with pytest.raises(EndpointMisconfigured) as caught:
        parsed(uri, args)

    assert why in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "args", "remark"),
    [
        (f"nats://u:{SECRET}@h", "", "the password travels unencrypted"),
        (f"nats://{SECRET}@h", "", "the token travels unencrypted"),
        ("nats://h", "&ca-location=/c", "certificates have no effect"),
        ("nats+tls://h", "&verify-ssl=false", "is not checked"),
        ("nats://h", "&nats-subject={bucket}", "copies beyond the stream's duplicate window are not noticed"),
        ("nats://h", "&amqp-exchange=e", "amqp-exchange has no effect at nats endpoints"),
    ],
)
def test_what_is_remarked_on(uri: str, args: str, remark: str) -> None:
    """What works otherwise than asked."""
    [said] = parsed(uri, "nats-stream=S" + args).remarks

    assert remark in said
    assert SECRET not in said


def test_there_is_no_exactly_once() -> None:
    """A stream drops copies for a while, and remora promises no more than that."""
    target = Target("nats://h", "nats-stream=S&remora-delivery=exactly-once", "t")

    with pytest.raises(EndpointMisconfigured, match="nats:// endpoints deliver at-least-once only"):
        endpoint_kinds.check_target(target, Settings())
