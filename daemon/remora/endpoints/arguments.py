"""Arguments that endpoints of several kinds take, as radosgw's topics carry them, read into values. Pure.

No message made here repeats an argument's value, which could be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping

from remora.endpoints.tls import Tls
from remora.model.errors import EndpointMisconfigured

CLIENT_CERTIFICATE = ("ssl-certificate-location", "ssl-key-location", "ssl-key-password")
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
