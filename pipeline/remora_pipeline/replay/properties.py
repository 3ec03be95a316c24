"""Settings of Kafka's own clients, from the files that its tools read, for the client on the driver too."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remora_pipeline.replay.errors import ReplayRefused

_PLAIN_JAAS = re.compile(
    r"(?s)\s*[\w.]+\.(?:PlainLoginModule|ScramLoginModule)\s+required\s.*?"
    r'\busername="((?:[^"\\]|\\.)*)".*?\bpassword="((?:[^"\\]|\\.)*)".*'
)
_ESCAPED = re.compile(r"(?s)\\(u[0-9A-Fa-f]{4}|.)")
_ESCAPED_IN_QUOTES = re.compile(r"(?s)\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_LETTERS = {"f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_IN_QUOTES = _LETTERS | {"a": "\a", "b": "\b", "v": "\v"}
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_SETTING = re.compile(r"(?s)((?:[^\\=:\s]|\\.)+)(?:\s*[=:]|\s)\s*(.*)")
_UNDERSTOOD = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.jaas.config",
        "ssl.truststore.type", "ssl.truststore.location", "ssl.endpoint.identification.algorithm",
    }
)  # fmt: skip


def read(path: Path) -> dict[str, str]:
    """The settings of a properties file, as Java reads one. Raises ReplayRefused with the line of one that is not
    understood."""
    found = {}
    for number, line in _joined(path):
        setting = _SETTING.fullmatch(line)
        key = _plain(setting[1] if setting else line)
        if not setting or key not in _UNDERSTOOD:
            raise ReplayRefused(f"{path}: line {number}: {key} is none of {', '.join(sorted(_UNDERSTOOD))}")
        found[key] = _plain(setting[2]).strip()
    client_options(found)
    return found


def pairs(path: Path) -> dict[str, str]:
    """The settings of a file with one `name=value` a line, whatever their names are, as they stand there. Raises
    ReplayRefused."""
    found = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or _is_comment(line):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise ReplayRefused(f"{path}: line {number}: is no setting such as name=value")
        found[key] = value
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ReplayRefused(f"{path}: cannot be read: {exc}") from exc


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", "!"))


def _joined(path: Path) -> Iterator[tuple[int, str]]:
    """The settings of a properties file, each with the number of its first line; a comment is not continued."""
    lines = enumerate(_lines(path), 1)
    for number, line in lines:
        if not line.strip() or _is_comment(line):
            continue
        whole = line.lstrip()
        while _CONTINUED.search(whole):
            _, more = next(lines, (0, ""))
            whole = whole[:-1] + more.lstrip()
        yield number, whole


def _plain(text: str) -> str:
    """A key or value of a properties file without the backslashes that Java takes out."""
    return _ESCAPED.sub(
        lambda found: chr(int(found[1][1:], 16)) if len(found[1]) > 1 else _LETTERS.get(found[1], found[1]), text
    )


def _unquoted(text: str) -> str:
    """What stands between quotation marks in a login module's settings, as Java reads it."""
    return _ESCAPED_IN_QUOTES.sub(
        lambda found: chr(int(found[1], 8)) if found[1][0] in "01234567" else _IN_QUOTES.get(found[1], found[1]), text
    )


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
        options["sasl_plain_username"], options["sasl_plain_password"] = map(_unquoted, match.groups())
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
