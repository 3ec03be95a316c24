"""Settings of Kafka's own clients, from the files that its tools read, for the client on the driver too."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remora_pipeline.replay.errors import ReplayRefused

_PLAIN_JAAS = re.compile(
    r'(?s)\s*[\w.]+\.(?:PlainLoginModule|ScramLoginModule)\s+required\s.*?\busername="([^"]*)".*?\bpassword="([^"]*)".*'
)
_UNDERSTOOD = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.jaas.config",
        "ssl.truststore.type", "ssl.truststore.location", "ssl.endpoint.identification.algorithm",
    }
)  # fmt: skip


def read(path: Path) -> dict[str, str]:
    """The settings of a properties file. Raises ReplayRefused with the line of one that is not understood."""
    found = dict(_entries(path, _UNDERSTOOD))
    client_options(found)
    return found


def pairs(path: Path) -> dict[str, str]:
    """The settings of a properties file, whatever their names are. Raises ReplayRefused."""
    return dict(_entries(path, None))


def _entries(path: Path, understood: frozenset[str] | None) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text("utf-8-sig").replace("\\\n", "").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ReplayRefused(f"{path}: cannot be read: {exc}") from exc
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals and understood is None:
            raise ReplayRefused(f"{path}: line {number}: is no setting such as name=value")
        if not equals or (understood is not None and key not in understood):
            raise ReplayRefused(f"{path}: line {number}: {key} is none of {', '.join(sorted(_UNDERSTOOD))}")
        yield key, value


def client_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """The same for the client on the driver. Raises ReplayRefused, without any value, for what it cannot do."""
    protocol = settings.get("security.protocol", "PLAINTEXT")
    options: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = _context(settings)
    if protocol.startswith("SASL"):
        match = _PLAIN_JAAS.fullmatch(settings.get("sasl.jaas.config", ""))
        if not match:
            raise ReplayRefused("sasl.jaas.config: must name username and password of a Plain or Scram login module")
        options["sasl_mechanism"] = settings.get("sasl.mechanism", "")
        options["sasl_plain_username"], options["sasl_plain_password"] = match.groups()
    return options


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    location = settings.get("ssl.truststore.location")
    if location and settings.get("ssl.truststore.type") != "PEM":
        raise ReplayRefused("ssl.truststore.type: must be PEM")
    try:
        context = ssl.create_default_context(cafile=location)
    except (OSError, ValueError) as exc:  # the latter for a name that no file can have
        raise ReplayRefused(f"ssl.truststore.location: {location}: {exc}") from exc
    # An empty algorithm has Kafka's clients not compare names.
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") != ""
    return context
