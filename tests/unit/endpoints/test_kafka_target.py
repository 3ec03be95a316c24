"""Endpoint URIs and arguments as radosgw's topics carry them."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.kafka.target import Bearer, Broker, Kerberos, SaslLogin, parse_target
from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target

SECRET = "s3cret"
CLIENT = f"&use-ssl=true&ssl-certificate-location=/c&ssl-key-location=/k&ssl-key-password={SECRET}"


def target(uri: str, args: str = "", topic: str = "events") -> Target:
    return Target(uri, args, topic)


HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z][a-z0-9-]{0,8}[a-z])?", fullmatch=True).filter(
    lambda host: not host.endswith("-")
)
PORTS = st.integers(1, 65535)
CREDENTIALS = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text and text.isprintable())


@pytest.mark.parametrize(
    ("uri", "brokers"),
    [
        ("kafka://one", (Broker("one", 9092),)),
        ("kafka://one/", (Broker("one", 9092),)),
        ("KAFKA://One:1", (Broker("one", 1),)),
        ("kafka://one:9093,two,three:65535", (Broker("one", 9093), Broker("two", 9092), Broker("three", 65535))),
        ("kafka://one,one:9092", (Broker("one", 9092),)),
        ("kafka://10.0.0.1:9092", (Broker("10.0.0.1", 9092),)),
        ("kafka://[::1]", (Broker("::1", 9092),)),
        ("kafka://[2001:db8:0::1]:9094,two", (Broker("2001:db8::1", 9094), Broker("two", 9092))),
        ("kafka://user:p@one", (Broker("one", 9092),)),
    ],
)
def test_brokers(uri: str, brokers: tuple[Broker, ...]) -> None:
    """Brokers are read with the default port, in lower case, each once, IPv6 in brackets."""
    assert parse_target(target(uri)).cluster.brokers == brokers


@pytest.mark.parametrize(
    ("uri", "args", "login"),
    [
        ("kafka://one", "", None),
        ("kafka://alice:s3cret@one", "", SaslLogin("alice", SECRET)),
        ("kafka://al%40ice:a%2Fb%25@one", "", SaslLogin("al@ice", "a/b%")),
        ("kafka://alice:a/b?c#d@one:9093", "", SaslLogin("alice", "a/b?c#d")),
        ("kafka://alice:a@b@one", "", SaslLogin("alice", "a@b")),
        ("kafka://alice:a:b@one", "", SaslLogin("alice", "a:b")),
        ("kafka://one", "user-name=alice&password=a/b=c&d", SaslLogin("alice", "a/b=c&d")),
        ("kafka://bob:other@one", "user-name=alice&password=s3cret", SaslLogin("alice", SECRET)),
        ("kafka://alice:s3cret@one", "mechanism=scram-sha-512", SaslLogin("alice", SECRET, "SCRAM-SHA-512")),
    ],
)
def test_login(uri: str, args: str, login: SaslLogin | None) -> None:
    """User and password come from the arguments, else from the URI decoded."""
    assert parse_target(target(uri, args)).cluster.login == login


TOKEN_URL = "sasl-oauthbearer-token-endpoint-url"
BEARER = (
    f"mechanism=OAUTHBEARER&{TOKEN_URL}=https://sso.example.org/token&sasl-oauthbearer-client-id=remora"
    f"&sasl-oauthbearer-scope=kafka&ca-location=/ca.pem&sasl-oauthbearer-client-secret={SECRET}"
)


def test_bearer() -> None:
    """OAUTHBEARER asks for a log-in with a token and for none with a user, and no secret of it is shown."""
    cluster = parse_target(target("kafka://alice:s3cret@one", BEARER)).cluster

    assert cluster.bearer == Bearer("https://sso.example.org/token", "remora", SECRET, "kafka", "/ca.pem")
    assert cluster.login is None
    assert SECRET not in repr(cluster)


def test_a_token_is_asked_for_where_the_operator_says_so() -> None:
    """A topic with a URL that the option does not name is refused before anything is asked, naming the option."""
    with pytest.raises(EndpointMisconfigured, match=rf"{TOKEN_URL}: kafka\.token_endpoints does not name this URL"):
        KafkaEndpoint(KafkaSettings()).check(target("kafka://one", BEARER))


@pytest.mark.parametrize(
    ("args", "kerberos"),
    [
        ("sasl-kerberos-keytab=/k", None),
        ("mechanism=gssapi", Kerberos()),
        ("mechanism=GSSAPI&user-name=alice&password=s3cret", Kerberos()),
        ("mechanism=GSSAPI&sasl-kerberos-service-name=stream", Kerberos("stream")),
        (
            "mechanism=GSSAPI&sasl-kerberos-principal=me/host@REALM&sasl-kerberos-keytab=/k",
            Kerberos("", "me/host@REALM", "/k"),
        ),
    ],
)
def test_kerberos(args: str, kerberos: Kerberos | None) -> None:
    """The mechanism GSSAPI asks for a log-in with Kerberos, and then for none with user and password."""
    cluster = parse_target(target("kafka://alice:s3cret@one", args)).cluster

    assert cluster.kerberos == kerberos
    assert (cluster.login is None) == (kerberos is not None)


@pytest.mark.parametrize(
    ("args", "tls"),
    [
        ("", None),
        ("use-ssl=false&ca-location=/x", None),
        ("use-ssl=true", Tls()),
        ("use-ssl=True&verify-ssl=False&ca-location=/etc/ca.pem", Tls("/etc/ca.pem", verify=False)),
        (
            "use-ssl=true&ssl-certificate-location=/c&ssl-key-location=/k&ssl-key-password=s3cret",
            Tls(certificate_location="/c", key_location="/k", key_password=SECRET),
        ),
        ("use-ssl=true&ssl-key-password=s3cret", Tls()),
    ],
)
def test_tls(args: str, tls: Tls | None) -> None:
    """TLS is used when asked for, and checked unless asked not to."""
    assert parse_target(target("kafka://one", args)).cluster.tls == tls


@pytest.mark.parametrize(
    ("uri", "args", "reason"),
    [
        ("http://one", "", "not a kafka:// URI"),
        ("one:9092", "", "not a kafka:// URI"),
        ("kafka://", "", "names no broker"),
        ("kafka:///topic", "", "names no broker"),
        ("kafka://,", "", "names no broker"),
        ("kafka://one:", "", "port is not a number"),
        ("kafka://one:0", "", "port is not a number"),
        ("kafka://one:65536", "", "port is not a number"),
        ("kafka://one:+80", "", "port is not a number"),
        (f"kafka://alice:{SECRET}", "", "port is not a number"),
        (f"kafka://alice:{SECRET}:x", "", "needs brackets"),
        ("kafka://::1", "", "needs brackets"),
        ("kafka://[::1", "", "expected an IPv6 address"),
        ("kafka://[::1]x", "", "expected an IPv6 address"),
        ("kafka://[nonsense]", "", "not an IPv6 address"),
        ("kafka://one two", "", "not a host name"),
        ("kafka://-one", "", "not a host name"),
        ("kafka://alice@one", "", "user without a password"),
        (f"kafka://:{SECRET}@one", "", "password without a user"),
        (f"kafka://{SECRET}/x@one", "", "user without a password"),
        ("kafka://one", f"password={SECRET}", "password without a user"),
        ("kafka://one", "mechanism=KERBEROS_V4", "only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI"),
        ("kafka://one", "mechanism=GSSAPI&sasl-kerberos-principal=me", "principal without sasl-kerberos-keytab"),
        (
            "kafka://one",
            "mechanism=GSSAPI&sasl-kerberos-service-name=kafka/host",
            "first part of the brokers' principal",
        ),
        ("kafka://one", "mechanism=GSSAPI&sasl-kerberos-keytab=/k%0A", "must not contain control characters"),
        ("kafka://one", f"mechanism={SECRET}", "only PLAIN"),
        ("kafka://one", "use-ssl=yes", "use-ssl must be true or false"),
        ("kafka://one", "use-ssl=false&verify-ssl=perhaps", "verify-ssl must be true or false"),
        ("kafka://one", "mechanism=OAUTHBEARER", "OAUTHBEARER needs sasl-oauthbearer-token-endpoint-url"),
        ("kafka://one", f"mechanism=OAUTHBEARER&{TOKEN_URL}=https://a/b", "needs sasl-oauthbearer-client-id"),
        ("kafka://one", f"{BEARER.replace(SECRET, '')}", "needs sasl-oauthbearer-client-secret"),
        ("kafka://one", f"{BEARER}%0A", "sasl-oauthbearer arguments must not contain control characters"),
        (
            "kafka://one",
            BEARER.replace("https://sso", f"https://u:{SECRET}@sso"),
            f"{TOKEN_URL}: expected https://HOST",
        ),
        ("kafka://one", BEARER.replace("https", "http"), f"{TOKEN_URL}: expected https://HOST"),
        ("kafka://one", "use-ssl=true&ssl-certificate-location=/c", "certificate-location without ssl-key-location"),
        ("kafka://one", "use-ssl=true&ssl-key-location=/k", "ssl-key-location without ssl-certificate-location"),
        ("kafka://one", "kafka-ack-level=routable", "kafka-ack-level must be none or broker"),
        ("kafka://one", "kafka-brokers=two:x", "broker 1 of kafka-brokers"),
        ("kafka://one", "remora-dead-letter-topic=a/b", "remora-dead-letter-topic: Kafka allows no topic"),
        ("kafka://one", "remora-dead-letter-topic=events", "must not share a topic"),
    ],
)
def test_refused(uri: str, args: str, reason: str) -> None:
    """What cannot be meant is refused with the reason, and without any secret."""
    with pytest.raises(EndpointMisconfigured, match=reason) as caught:
        parse_target(target(uri, args))

    assert SECRET not in str(caught.value)


def test_all_reasons() -> None:
    """All that is wrong with a target is told at once, in the order of its parts and each thing once."""
    args = (
        "kafka-brokers=two:x&use-ssl=true&verify-ssl=perhaps&mechanism=X&kafka-ack-level=all"
        "&remora-dead-letter-topic=events"
    )

    with pytest.raises(EndpointMisconfigured) as caught:
        parse_target(target(f"kafka://alice:{SECRET}@-one,two:0", args))

    assert str(caught.value).split("; ") == [
        "broker 1 of the endpoint is not a host name or address",
        "broker 2 of the endpoint: the port is not a number from 1 to 65535",
        "broker 1 of kafka-brokers: the port is not a number from 1 to 65535",
        "mechanism: only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER can be used",
        "verify-ssl must be true or false",
        "remora-dead-letter-topic: events and dead letters must not share a topic",
        "kafka-ack-level must be none or broker",
    ]


def test_dead_letter_topic() -> None:
    """Dead letters go to a Kafka topic only where the target names one."""
    assert parse_target(target("kafka://one")).letters == ""
    assert parse_target(target("kafka://one", "remora-dead-letter-topic=events.dead")).letters == "events.dead"


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "x" * 250, "ä"])
def test_topic_names(topic: str) -> None:
    """A name that Kafka allows no topic to have is refused before anything is connected."""
    with pytest.raises(EndpointMisconfigured, match="allows no topic"):
        parse_target(target("kafka://one", topic=topic))


def test_more_brokers() -> None:
    """The brokers of kafka-brokers follow those of the URI."""
    parsed = parse_target(target("kafka://one", "kafka-brokers=two:9093,three"))

    assert list(map(str, parsed.cluster.brokers)) == ["one:9092", "two:9093", "three:9092"]


@pytest.mark.parametrize(
    ("uri", "args", "remark"),
    [
        ("kafka://one", "kafka-ack-level=none", "stronger than asked"),
        ("kafka://one/path", "", "is ignored"),
        ("kafka://bob:x@one", f"user-name=alice&password={SECRET}&use-ssl=true", "arguments are used"),
        (f"kafka://alice:{SECRET}@one", "", "unencrypted"),
        ("kafka://one", "mechanism=PLAIN", "no effect without user-name"),
        ("kafka://one", f"mechanism=GSSAPI&user-name=alice&password={SECRET}", "no effect with mechanism=GSSAPI"),
        (f"kafka://alice:{SECRET}@one", "mechanism=GSSAPI", "no effect with mechanism=GSSAPI"),
        ("kafka://one", "sasl-kerberos-keytab=/k", "no effect without mechanism=GSSAPI"),
        ("kafka://one", BEARER, "token travels to the brokers unencrypted"),
        (f"kafka://alice:{SECRET}@one", f"{BEARER}&use-ssl=true", "no effect with mechanism=OAUTHBEARER"),
        ("kafka://one", f"{BEARER.partition('&')[2]}&use-ssl=true", "no effect without mechanism=OAUTHBEARER"),
        ("kafka://one", "ca-location=/x", "no effect without use-ssl"),
        ("kafka://one", "use-ssl=true&verify-ssl=false", "not checked"),
        ("kafka://one", "ssl-certificate-location=/c&ssl-key-location=/k", "certificate has no effect without use-ssl"),
        ("kafka://one", "cloudevents=true", "cloudevents has no effect at kafka endpoints"),
        ("kafka://one", "amqp-exchange=x", "amqp-exchange has no effect at kafka endpoints"),
        ("kafka://one", f"use-ssl=true&ssl-key-password={SECRET}", "no effect without ssl-key-location"),
    ],
)
async def test_remarks(uri: str, args: str, remark: str) -> None:
    """What works otherwise than asked is remarked, without any secret."""
    remarks = KafkaEndpoint(KafkaSettings(token_endpoints=("https://sso.example.org/*",))).check(target(uri, args))

    assert len(remarks) == 1
    assert remark in remarks[0]
    assert SECRET not in remarks[0]


async def test_no_remarks() -> None:
    """A topic as radosgw stores it, with every request parameter among its arguments, is nothing to remark on."""
    args = (
        "Attributes.entry.1.key=push-endpoint&Attributes.entry.1.value=kafka://one&push-endpoint=kafka://one"
        "&persistent=true&Version=2010-03-31&Action=CreateTopic&Name=events&kafka-ack-level=broker&OpaqueData="
    )

    assert KafkaEndpoint(KafkaSettings()).check(target("kafka://one", args)) == []


def test_secrets_stay_out_of_repr() -> None:
    """No value made of a target shows its password."""
    parsed = parse_target(target(f"kafka://alice:{SECRET}@one", f"user-name=alice&password={SECRET}{CLIENT}"))

    assert SECRET not in f"{parsed!r} {parsed.cluster!r} {parsed.cluster} {parsed.cluster.login!r}"


@pytest.mark.parametrize(
    "args",
    [
        "kafka-brokers=two",
        "user-name=alice&password=x",
        "use-ssl=true",
        "use-ssl=true&verify-ssl=false",
        "use-ssl=true&ca-location=/x",
        "use-ssl=true&ssl-certificate-location=/c&ssl-key-location=/k",
        CLIENT.removeprefix("&"),
        "user-name=alice&password=x&mechanism=SCRAM-SHA-256",
        "mechanism=GSSAPI",
        "mechanism=GSSAPI&sasl-kerberos-keytab=/k",
        "mechanism=GSSAPI&sasl-kerberos-keytab=/k&sasl-kerberos-principal=me",
        "mechanism=GSSAPI&sasl-kerberos-service-name=stream",
    ],
)
def test_identity(args: str) -> None:
    """Whatever makes a connection tells clusters apart; other arguments do not."""
    plain, other = parse_target(target("kafka://one")), parse_target(target("kafka://one", args))
    same = parse_target(target("kafka://one", f"{args}&kafka-ack-level=none&persistent=true", topic="another"))

    assert other.cluster != plain.cluster
    assert other.cluster == same.cluster
    assert hash(other.cluster) == hash(same.cluster)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=1, max_size=5, unique=True), CREDENTIALS, CREDENTIALS)
def test_round_trip(brokers: list[tuple[str, int]], user: str, password: str) -> None:
    """A URI made of any brokers, user and password is read back as just those."""
    hosts = ",".join(f"{host}:{port}" for host, port in brokers)

    parsed = parse_target(target(f"kafka://{quote(user, safe='')}:{quote(password, safe='')}@{hosts}"))

    assert [(each.host, each.port) for each in parsed.cluster.brokers] == brokers
    assert parsed.cluster.login == SaslLogin(user, password)


@given(st.text(), st.text())
def test_any_text(uri: str, args: str) -> None:
    """Any URI and arguments give a target or one EndpointMisconfigured, never another exception."""
    with contextlib.suppress(EndpointMisconfigured):
        parse_target(target(f"kafka://{uri}", args))
