"""The certificate authorities of a target, read from this host's files.

Whoever may create a topic names the file. So only what the operator allows is opened, and an answer tells neither
whether another file exists nor what stands in one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remora.model.errors import EndpointMisconfigured

MOST_CA_BYTES = 1 << 20
"""A file of authorities is never larger, nor are those of a directory together; a system's own are a quarter of it."""

PEM_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")

HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]{1,3}")
"""Of a directory OpenSSL reads the files of such names, as `openssl rehash` makes them."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to a destination; without `ca_location` the system's certificate authorities are trusted."""

    ca_location: str = ""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to trust, with the certificates of the file: a replaced one makes another connection.

    `digest` stands for `authorities`; the text itself takes no part in comparisons. Where it is empty the system's
    are trusted.
    """

    verify: bool
    digest: str = ""
    authorities: str = field(default="", repr=False, compare=False)


Fingerprint = tuple[tuple[object, ...], ...]
"""Where files lie, which they are and when they changed."""

RACY_S = 2.0
"""A file that changed so recently is read each time: it may change again without another time of change."""

MOST_CACHED = 256


class TrustCache:
    """Reads the authorities of targets, and a file again only when it changed."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """`allowed` are the directories below which files may lie."""
        self._allowed = allowed
        self._known: dict[Tls, tuple[Fingerprint, Trust]] = {}

    def read(self, tls: Tls) -> Trust:
        """As `read_trust`. The rules of what may be read are applied each time, also where nothing changed."""
        found = _fingerprint(tls.ca_location, self._allowed) if tls.ca_location else None
        known = self._known.get(tls)
        if found and known and known[0] == found:
            return known[1]
        trust = read_trust(tls, self._allowed)
        if found:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[tls] = found, trust
        return trust


def _fingerprint(path: str, allowed: Sequence[str]) -> Fingerprint | None:
    """Of a file, or of those of a directory that OpenSSL would read; None where it says nothing."""
    try:
        places = [os.path.realpath(each) for each in allowed]
        real = _real(path, places)
        files = [real] if not os.path.isdir(real) else [_real(each, places) for each in _hashed_files(real)]
        found = [(each, os.stat(each)) for each in files]
    except (OSError, ValueError):
        return None  # reading it says what is wrong
    if any(stats.st_ctime > time.time() - RACY_S for _, stats in found):
        return None
    fields = ((each, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for each, s in found)
    return ((real, *places), *fields)


def read_trust(tls: Tls, allowed: Sequence[str]) -> Trust:
    """Read the authorities, which must lie below one of these directories; blocks on the file system.

    Raises EndpointMisconfigured with why it cannot.
    """
    if not tls.ca_location:
        return Trust(tls.verify)
    what = f"ca-location {tls.ca_location}"
    if not _is_below(os.path.normpath(tls.ca_location), allowed):  # decided by the names alone: no file is looked at
        raise EndpointMisconfigured(f"{what}: not below a directory of kafka.ca_directories")
    try:
        content = _read(tls.ca_location, [os.path.realpath(each) for each in allowed])
    except (OSError, ValueError):
        # One text for all of it: another one for each would tell which files there are.
        raise EndpointMisconfigured(f"{what}: missing or not readable") from None
    if len(content) > MOST_CA_BYTES:
        raise EndpointMisconfigured(f"{what}: larger than {MOST_CA_BYTES >> 20} MiB")
    authorities = b"\n".join(PEM_BLOCK.findall(content))  # what stands between the blocks may be in any encoding
    if not authorities:
        raise EndpointMisconfigured(f"{what}: no certificate authority in PEM form")
    return Trust(tls.verify, hashlib.sha256(authorities).hexdigest(), authorities.decode("ascii"))


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return path.startswith("/") and any(
        os.path.commonpath((path, each)) == each for each in map(os.path.normpath, directories)
    )


def _read(path: str, allowed: Sequence[str]) -> bytes:
    """A file, or the files of a directory that OpenSSL would read; of what is too large the beginning."""
    real = _real(path, allowed)
    if not os.path.isdir(real):
        return _read_file(real)
    content = b""
    for each in _hashed_files(real):
        content += _read_file(_real(each, allowed)) + b"\n"
        if len(content) > MOST_CA_BYTES:
            break
    return content


def _real(path: str, allowed: Sequence[str]) -> str:
    real = os.path.realpath(path, strict=True)
    if not _is_below(real, allowed):
        raise PermissionError
    return real


def _hashed_files(directory: str) -> Iterator[str]:
    for name in sorted(os.listdir(directory)):
        if HASHED_NAME.fullmatch(name):
            yield os.path.join(directory, name)


def _read_file(real: str) -> bytes:
    # Neither a pipe nor a device holds this up: each opens at once, and is not read.
    with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PermissionError
        return file.read(MOST_CA_BYTES + 1)


def build_context(trust: Trust) -> ssl.SSLContext:
    """A client's TLS context; blocks while it loads the authorities. Raises EndpointMisconfigured.

    That of a file is made once. The system's authorities are loaded each time, since they may have changed.
    """
    return _build_named(trust) if trust.digest else _build(trust)


@functools.lru_cache(maxsize=MOST_CACHED)
def _build_named(trust: Trust) -> ssl.SSLContext:
    return _build(trust)


def _build(trust: Trust) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=trust.authorities or None)
    except (ssl.SSLError, ValueError):
        raise EndpointMisconfigured("ca-location holds no certificate authority in PEM form") from None
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
