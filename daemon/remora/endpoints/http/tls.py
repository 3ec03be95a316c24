"""What a connection shows and trusts in TLS: authorities as the Kafka endpoint reads them, and a client's certificate.

Whoever may create a topic names these files. With another tenant's certificate he would speak as that tenant, so they
are read only below `credentials.client_files`, and one text stands for every reason why they cannot be.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from dataclasses import dataclass, field

from remora.endpoints.http.target import ClientFiles, Tls
from remora.endpoints.kafka.target import Tls as Authorities
from remora.endpoints.kafka.tls import Trust, TrustCache
from remora.model.errors import EndpointMisconfigured

MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """All that makes TLS connections alike; `digest` stands for the client's certificate and key."""

    trust: Trust
    digest: str = ""
    chain: bytes = field(default=b"", repr=False, compare=False)
    password: str = field(default="", repr=False, compare=False)


def read_identity(tls: Tls, trusts: TrustCache, client_files: str) -> Identity:
    """Read the files of a target; blocks on the file system. Raises EndpointMisconfigured."""
    trust = trusts.read(Authorities(tls.ca_location, tls.verify))
    if tls.client is None:
        return Identity(trust)
    chain = _read_pair(tls.client, client_files)
    digest = hashlib.sha256(chain + b"\0" + tls.client.password.encode()).hexdigest()
    return Identity(trust, digest, chain, tls.client.password)


def _read_pair(files: ClientFiles, client_files: str) -> bytes:
    """Certificate and key in PEM, one behind the other."""
    if not client_files:
        raise EndpointMisconfigured("ssl-certificate-location: credentials.client_files is not set")
    try:
        return b"\n".join(_read(each, client_files) for each in (files.certificate, files.key))
    except (OSError, ValueError):
        # One text for all of it: another one for each would tell which files there are.
        raise EndpointMisconfigured(
            "ssl-certificate-location, ssl-key-location: missing, not readable, or not below credentials.client_files"
        ) from None


def _read(path: str, client_files: str) -> bytes:
    allowed = os.path.realpath(client_files)
    real = os.path.realpath(path, strict=True)
    if not path.startswith("/") or os.path.commonpath((real, allowed)) != allowed:
        raise PermissionError
    with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PermissionError
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise PermissionError
    return content


def client_context(identity: Identity) -> ssl.SSLContext:
    """A TLS context of this identity; blocks while it loads authorities. Raises EndpointMisconfigured."""
    try:
        context = ssl.create_default_context(cadata=identity.trust.authorities or None)
    except (ssl.SSLError, ValueError):
        raise EndpointMisconfigured("ca-location holds no certificate authority in PEM form") from None
    if not identity.trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if identity.digest:
        _load_pair(context, identity)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_pair(context: ssl.SSLContext, identity: Identity) -> None:
    """Load the very bytes that the digest is of: a file may be another one by now, and ssl takes paths only."""
    place = os.memfd_create("remora-client", os.MFD_CLOEXEC)
    try:
        with open(place, "wb", closefd=False) as file:
            file.write(identity.chain)
        # Always with a password: with none, OpenSSL asks the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{place}", password=lambda: identity.password)
    except (ssl.SSLError, ValueError, OSError):
        raise EndpointMisconfigured(
            "ssl-certificate-location, ssl-key-location: no certificate with its key in PEM form, or another password"
        ) from None
    finally:
        os.close(place)
