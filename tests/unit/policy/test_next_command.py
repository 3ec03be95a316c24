"""The command that fits the reason of a failure."""

from __future__ import annotations

import re

import pytest

from remora.endpoints.amqp.errors import CHANNEL, CONNECTION
from remora.endpoints.kafka.errors import CONFIGURATION
from remora.model.shard import Origin
from remora.policy.status.next_command import TABLE, TopicSubject, next_command

KAFKA = TopicSubject(topic="orders", endpoint="kafka://b:9093", there="events")
SEVERAL = TopicSubject(topic="orders", endpoint="kafka://a,b:9093", there="events")
HTTP = TopicSubject(topic="hooks", endpoint="https://h.example:8443", there="hooks")
AMQP = TopicSubject(topic="mail", endpoint="amqps://r", there="events")
NATS = TopicSubject(topic="stream", endpoint="nats://n:4222", there="stream")
CREATE = "kafka-topics.sh --bootstrap-server b:9093 --create --topic events --partitions 12"
ACLS = "kafka-acls.sh --bootstrap-server b:9093 --add --allow-principal User:USER"
TWO = "--operation Write --operation Describe"
PREFIX = "--resource-pattern-type prefixed"


@pytest.mark.parametrize(
    ("reason", "of", "command"),
    [
        ("topic events at b:9093: there is no such topic in Kafka", KAFKA, CREATE),
        ("there is no such topic in Kafka", SEVERAL, CREATE.replace("b:9093", "a:9092,b:9093")),
        ("b:9093: the broker refused user and password (X)", KAFKA, "remora topic set orders --password-file FILE"),
        ("a password without a user", KAFKA, "remora topic set orders --password-file FILE"),
        ("the broker does not offer this mechanism", KAFKA, "remora topic set orders --arg mechanism=MECHANISM"),
        ("the broker does not know this mechanism", KAFKA, "remora topic set orders --arg mechanism=MECHANISM"),
        ("this port of the broker asks for no user", KAFKA, "remora topic set orders --arg mechanism=MECHANISM"),
        ("the user may not write to this topic", KAFKA, f"{ACLS} {TWO} --topic events"),
        ("may not use transactional ids that", KAFKA, f"{ACLS} {TWO} --transactional-id remora. {PREFIX}"),
        ("may not use consumer groups that", KAFKA, f"{ACLS} --operation Read --group remora. {PREFIX}"),
        ("Kafka allows no topic of this name", KAFKA, "remora topic set orders --kafka-topic NAME"),
        (
            "too few replicas are in sync",
            KAFKA,
            "kafka-topics.sh --bootstrap-server b:9093 --describe --topic events",
        ),
        (
            "not delivered within 10 s",
            KAFKA,
            "kafka-topics.sh --bootstrap-server b:9093 --describe --under-replicated-partitions",
        ),
        ("the broker's release is too old", KAFKA, "kafka-broker-api-versions.sh --bootstrap-server b:9093"),
        ("b:9093: Connection refused", KAFKA, "remora topic test orders"),
        ("b:9093: no answer in time", KAFKA, "remora topic test orders"),
        ("h.example: Name or service not known", HTTP, "remora topic test hooks"),
        ("h.example:8443: Connection refused", HTTP, "curl -i https://h.example:8443/"),
        ("h.example:8443: it answers with 404", HTTP, "curl -i https://h.example:8443/"),
        ("h.example:8443: it refuses everything with 400", HTTP, "curl -i https://h.example:8443/"),
        (
            "h.example:8443: its certificate is not trusted (expired)",
            HTTP,
            "openssl s_client -connect h.example:8443 -servername h.example -showcerts </dev/null",
        ),
        (
            "the endpoint is amqps, but this port speaks no TLS",
            AMQP,
            "openssl s_client -connect r:5671 -servername r -showcerts </dev/null",
        ),
        ("ca-location /x: missing or not readable", KAFKA, "remora topic set orders --arg ca-location=FILE"),
        ("ssl-key-password is wrong", KAFKA, "remora topic set orders --ssl-key-password-file FILE"),
        (
            "it asks for a client certificate",
            KAFKA,
            "remora topic set orders --arg ssl-certificate-location=FILE --arg ssl-key-location=FILE",
        ),
        ("remora-credential x: missing or not readable", HTTP, "remora check-config"),
        ("Kerberos: the KDC refuses the keytab's key", KAFKA, "klist -kte KEYTAB"),
        ("Kerberos: Server kafka/b not found in Kerberos database", KAFKA, "kvno SERVICE/HOST"),
        ("Kerberos: Cannot contact any KDC", KAFKA, "kinit -V -kt KEYTAB PRINCIPAL"),
        (
            "mechanism=OAUTHBEARER needs sasl-oauthbearer-client-secret",
            KAFKA,
            "remora topic set orders --sasl-oauthbearer-client-secret-file FILE",
        ),
        ("kafka.token_endpoints does not name this URL", KAFKA, "remora check-config"),
        ("https://sso/t: it refuses the client or its scope (401)", KAFKA, "remora topic test orders"),
        ("b:9092: the broker refuses the token (invalid_token)", KAFKA, "remora topic test orders"),
        ("the Python package gssapi is not installed", KAFKA, "pip install 'gssapi>=1.8'"),
        ("the endpoint is denied by destinations.deny (127.0.0.0/8)", KAFKA, "remora check-config"),
        ("the endpoint names no broker", KAFKA, "remora topic set orders --endpoint URI"),
        (
            "exchange events at r: there is no such exchange (reply 404)",
            AMQP,
            "rabbitmqadmin declare exchange name=events type=topic durable=true",
        ),
        ("the user may not write to this exchange", AMQP, "rabbitmqctl list_permissions"),
        ("there is no such virtual host", AMQP, "rabbitmqctl list_vhosts"),
        ("the broker blocks publishers: low on memory", AMQP, "rabbitmqctl status"),
        ("stream S at n:4222: there is no such stream (error 10059)", NATS,
         "nats stream add STREAM --subjects 'stream.>' --storage file"),
        ("stream S at n:4222: the stream did not store the message; it may be full", NATS, "nats stream info"),
        ("stream S at n:4222: the user may not publish to the subjects of this topic", NATS, "nats auth user info"),
        ("stream S at n:4222: JetStream is not enabled on this server", NATS, "nats account info"),
        ("its part of the store is damaged", KAFKA, "remora store check"),
        ("there is no space left", KAFKA, "df -h"),
        ("the lock of orders.7 was not renewed in time", KAFKA, "remora status"),
    ],
)  # fmt: skip
def test_each_reason_has_its_command(reason: str, of: TopicSubject, command: str) -> None:
    """The command mends the cause, or shows what it is."""
    assert next_command(reason, of) == command


def test_each_row_of_the_table_is_tried() -> None:
    """Every pattern is found in a reason of the test above, as the first one."""
    cases = test_each_reason_has_its_command.pytestmark[0].args[1]  # type: ignore[attr-defined]
    first = {next((pattern for pattern, _ in TABLE if re.search(pattern, reason)), None) for reason, _, _ in cases}

    assert {pattern for pattern, _ in TABLE} <= first


@pytest.mark.parametrize("reason", [*CONFIGURATION.values(), *CHANNEL.values(), *CONNECTION.values()])
def test_no_reason_is_answered_by_showing_the_topic(reason: str) -> None:
    """Attributes mend nothing: each reason of a broker has a command that does, or one that shows what answers."""
    assert "topic show" not in next_command(reason, KAFKA)


def test_a_topic_of_a_radosgw_is_changed_through_the_gateway() -> None:
    """Remora changes none of radosgw's topics, and names no command that would be refused."""
    of = TopicSubject(topic="orders", origin=Origin.RADOSGW, endpoint="kafka://b")

    assert next_command("refused user and password", of).startswith("aws sns set-topic-attributes ")


def test_names_are_quoted_for_the_shell() -> None:
    """A command can be typed as it stands, whatever the topic is called."""
    of = TopicSubject(topic="a b;$(c)", endpoint="kafka://b:1", there="a b")

    assert next_command("no answer", of) == "remora topic test 'a b;$(c)'"
    assert "--topic 'a b'" in next_command("no such topic in Kafka", of)
