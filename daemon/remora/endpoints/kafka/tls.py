"""The certificate authorities of a target, read from this host's files."""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from remora.endpoints.kafka.target import Tls
from remora.model.errors import EndpointMisconfigured

MOST_CA_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to trust, with the contents of the file: a replaced one makes another connection.

    `digest` stands for the contents; the text itself takes no part in comparisons.
    """

    verify: bool
    digest: str = ""
    authorities: str = field(default="", repr=False, compare=False)
    folder: str = ""


def read_trust(tls: Tls | None) -> Trust | None:
    """Read the authorities; blocks on the file system. Raises EndpointMisconfigured with why it cannot."""
    if tls is None:
        return None
    if not tls.ca_location:
        return Trust(tls.verify)
    path = Path(tls.ca_location)
    try:
        if path.is_dir():
            seen = [(entry.name, entry.stat().st_mtime_ns) for entry in sorted(os.scandir(path), key=lambda e: e.name)]
            return Trust(tls.verify, hashlib.sha256(repr(seen).encode()).hexdigest(), folder=str(path))
        with path.open("rb") as file:
            content = file.read(MOST_CA_BYTES)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a path"
        raise EndpointMisconfigured(f"ca-location {tls.ca_location}: {reason}") from exc
    # latin-1 never fails; what is not PEM in it is refused when the context is built.
    return Trust(tls.verify, hashlib.sha256(content).hexdigest(), content.decode("latin-1"))


def build_context(trust: Trust) -> ssl.SSLContext:
    """A client's TLS context; blocks while it loads the authorities. Raises EndpointMisconfigured."""
    try:
        context = ssl.create_default_context(cadata=trust.authorities or None, capath=trust.folder or None)
    except (ssl.SSLError, ValueError) as exc:
        raise EndpointMisconfigured("ca-location holds no certificate authority in PEM form") from exc
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
