"""Arguments that endpoints of several kinds take, as radosgw's topics carry them, read into values. Pure.

No message made here repeats an argument's value, which could be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured

CLIENT_CERTIFICATE = ("ssl-certificate-location", "ssl-key-location", "ssl-key-password")
OF_KIND = {
    "kafka": (
        "kafka-ack-level", "kafka-brokers", "mechanism", "sasl-kerberos-keytab", "sasl-kerberos-principal",
        "sasl-kerberos-service-name", "use-ssl",
    ),
    "http": (
        "cloudevents", "http-ack-level", "remora-batch", "remora-batch-bytes", "remora-batch-records", "remora-ce-id",
        "remora-credential", "remora-idempotency-key",
    ),
    "amqp": ("amqp-ack-level", "amqp-exchange", "amqp-version"),
}  # fmt: skip
"""The arguments that mean something at one kind of endpoint only."""

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def boolean(args: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An argument that is true or false; the default where it is missing or empty. Raises EndpointMisconfigured."""
    text = args.get(name, "")
    if not text:
        return default
    value = BOOLEANS.get(text.lower())
    if value is None:
        raise EndpointMisconfigured(f"{name} must be true or false")
    return value


def remarks_on_others(args: Mapping[str, str], kind: str) -> Iterator[str]:
    """A remark on each argument that endpoints of this kind do not know, while those of another kind do."""
    for other, names in OF_KIND.items():
        for name in names:
            if other != kind and args.get(name):
                yield f"{name} has no effect at {kind} endpoints"


def broker_tls(args: Mapping[str, str]) -> Tls:
    """TLS to a broker, with a client certificate where one is named. Raises EndpointMisconfigured."""
    certificate, key, password = (args.get(name, "") for name in CLIENT_CERTIFICATE)
    if bool(certificate) != bool(key):
        given, missing = CLIENT_CERTIFICATE[:2] if certificate else CLIENT_CERTIFICATE[1::-1]
        raise EndpointMisconfigured(f"{given} without {missing}")
    if "\0" in password:
        raise EndpointMisconfigured("ssl-key-password must not contain a zero byte")
    verify = boolean(args, "verify-ssl", default=True)
    return Tls(args.get("ca-location", ""), verify, certificate, key, password if key else "")
