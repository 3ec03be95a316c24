"""The command that mends the cause of a failure, or shows what it is: a table by what the reason says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from remora.model.shard import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSubject:
    """The topic that fails: its name, who made it, its redacted endpoint, and the topic or exchange there."""

    topic: str
    origin: Origin = Origin.REMORA
    endpoint: str = ""
    there: str = ""

    @property
    def hosts(self) -> str:
        """The hosts of the endpoint with their ports, separated by commas."""
        scheme, _, hosts = self.endpoint.partition("://")
        port = DEFAULT_PORTS.get(scheme, "")
        return (
            ",".join(each if re.search(r":\d+$", each) else each + port for each in hosts.split("/")[0].split(","))
            if hosts
            else ""
        )

    @property
    def first_host(self) -> str:
        """The first of them."""
        return self.hosts.split(",")[0]

    @property
    def is_http(self) -> bool:
        """Whether it is a receiver of HTTP."""
        return self.endpoint.startswith("http")


DEFAULT_PORTS = {"kafka": ":9092", "amqp": ":5672", "amqps": ":5671", "http": ":80", "https": ":443"}


def _of_kafka(tool: str, options: str = "") -> Callable[[TopicSubject], str]:
    """A tool of Kafka's about the topic there."""

    def command(of: TopicSubject) -> str:
        return (
            f"{tool} --bootstrap-server {of.hosts} {options.format(topic=shlex.quote(of.there or of.topic))}".rstrip()
        )

    return command


def _set(options: str) -> Callable[[TopicSubject], str]:
    """A change of the topic, by remora or, where a radosgw made it, through the gateway."""

    def command(of: TopicSubject) -> str:
        if of.origin is Origin.RADOSGW:
            return "aws sns set-topic-attributes --topic-arn ARN --attribute-name NAME --attribute-value VALUE"
        return f"remora topic set {shlex.quote(of.topic)} {options}"

    return command


def _test(of: TopicSubject) -> str:
    return f"remora topic test {shlex.quote(of.topic)}"


def _tls(of: TopicSubject) -> str:
    host = of.first_host
    name = host.rpartition(":")[0]
    starts = "" if name.startswith("[") or re.fullmatch(r"[0-9.]+", name) else f" -servername {name}"
    return f"openssl s_client -connect {host}{starts} -showcerts </dev/null"


def _look(of: TopicSubject) -> str:
    """What answers there at all: a receiver of HTTP by its own protocol, else each step of the way."""
    return f"curl -i {of.endpoint}/" if of.is_http else _test(of)


def _fixed(command: str) -> Callable[[TopicSubject], str]:
    return lambda _: command


ACL = "--add --allow-principal User:USER"

TABLE: tuple[tuple[str, Callable[[TopicSubject], str]], ...] = (
    # Kafka
    (r"no such topic in Kafka", _of_kafka("kafka-topics.sh", "--create --topic {topic} --partitions 12")),
    (r"Kafka allows no topic of this name", _set("--kafka-topic NAME")),
    (
        r"may not write to (this|no) topic",
        _of_kafka("kafka-acls.sh", f"{ACL} --operation Write --operation Describe --topic {{topic}}"),
    ),
    (
        r"may not use transactional ids",
        _of_kafka(
            "kafka-acls.sh",
            f"{ACL} --operation Write --operation Describe --transactional-id remora. --resource-pattern-type prefixed",
        ),
    ),
    (
        r"may not use consumer groups",
        _of_kafka("kafka-acls.sh", f"{ACL} --operation Read --group remora. --resource-pattern-type prefixed"),
    ),
    (r"replicas are in sync|partition has no leader", _of_kafka("kafka-topics.sh", "--describe --topic {topic}")),
    (r"not delivered within", _of_kafka("kafka-topics.sh", "--describe --under-replicated-partitions")),
    (r"release is too old", _of_kafka("kafka-broker-api-versions.sh")),
    # AMQP
    (
        r"there is no such exchange",
        lambda of: f"rabbitmqadmin declare exchange name={shlex.quote(of.there or of.topic)} type=topic durable=true",
    ),
    (r"may not write to this exchange", _fixed("rabbitmqctl list_permissions")),
    (r"no such virtual host|virtual host is not a name", _fixed("rabbitmqctl list_vhosts")),
    (r"broker blocks publishers", _fixed("rabbitmqctl status")),
    # NATS
    (
        r"there is no such stream",
        lambda of: f"nats stream add STREAM --subjects {shlex.quote(of.topic + '.>')} --storage file",
    ),
    (r"stream does not take the subjects|stream did not store|stream is sealed", _fixed("nats stream info")),
    (r"the user may not (publish|subscribe|read messages)", _fixed("nats auth user info")),
    (r"JetStream is not enabled", _fixed("nats account info")),
    # Log-ins
    (r"refused user and password|user without a password|password without a user", _set("--password-file FILE")),
    (r"does not (know|offer) this mechanism|offers no log-in|asks for no user", _set("--arg mechanism=MECHANISM")),
    (r"remora-credential .*(missing|not set|not among)", _fixed("remora check-config")),
    (r"Kerberos: .*keytab|keytab.*(missing|not a keytab|principal)", _fixed("klist -kte KEYTAB")),
    (
        r"Kerberos.*(database|refuses the Kerberos ticket)|broker refuses the Kerberos ticket",
        _fixed("kvno SERVICE/HOST"),
    ),
    (r"Kerberos", _fixed("kinit -V -kt KEYTAB PRINCIPAL")),
    (r"gssapi", _fixed("pip install 'gssapi>=1.8'")),
    (r"kafka\.token_endpoints", _fixed("remora check-config")),
    (r"sasl-oauthbearer-client-secret$", _set("--sasl-oauthbearer-client-secret-file FILE")),
    (r"sasl-oauthbearer|(grants no|refuses the) token|refuses the client|access_token|expires_in|JSON object", _test),
    # Files and TLS
    (r"ca-location", _set("--arg ca-location=FILE")),
    (r"ssl-key-password|private key is encrypted", _set("--ssl-key-password-file FILE")),
    (
        r"ssl-(certificate|key)-location|client certificate|does not belong to the certificate",
        _set("--arg ssl-certificate-location=FILE --arg ssl-key-location=FILE"),
    ),
    (r"certificate is not trusted|TLS failed|speaks no TLS|speaks TLS", _tls),
    # Destinations and endpoints
    (r"denied by destinations|destinations\.(allow|deny)", _fixed("remora check-config")),
    (
        r"endpoint (names no|is not)|not a host name|not a number from 1|must be |needs brackets",
        _set("--endpoint URI"),
    ),
    (r"names? has no address|Name or service not known|no address associated|name resolution", _test),
    (r"it answers with|refuses everything|refuses this record", _look),
    # The store
    (r"damaged|malformed", _fixed("remora store check")),
    (r"no space|disk|is full", _fixed("df -h")),
    (r"was not renewed in time|the cluster|OSD", _fixed("remora status")),
)
"""The first whose pattern is found in the reason counts."""


def next_command(reason: str, of: TopicSubject) -> str:
    """What to type next about a topic that fails for this reason."""
    for pattern, command in TABLE:
        if re.search(pattern, reason):
            return command(of)
    return _look(of)
