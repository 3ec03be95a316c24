"""The certificate authorities of a target and its client certificate, read from this host's files.

S3 users who create topics name the files. So only what the operator allows is opened, and an answer tells neither
whether another file exists nor what stands in one. Who names another tenant's key speaks as that tenant: so client
certificates have directories of their own, and there are none unless the operator says so.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from remora.codec.certificate_subject import subject_of
from remora.codec.topic import CERTIFICATE
from remora.model.errors import CodecError, EndpointMisconfigured

MOST_CA_BYTES = 1 << 20
"""A file of authorities is never larger, nor are those of a directory together; a system's own are a quarter of it."""

MOST_CLIENT_BYTES = 1 << 18
"""Of a client certificate with the authorities that signed it, and of its key."""

PEM_KEY = re.compile(rb"-----BEGIN ([A-Z ]{0,24})PRIVATE KEY-----[^-].+?-----END \1PRIVATE KEY-----", re.DOTALL)

PEM_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")

HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]{1,3}")
"""Of a directory OpenSSL reads the files of such names, as `openssl rehash` makes them."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to a destination; without `ca_location` the system's certificate authorities are trusted.

    With a `certificate_location` there is a `key_location`, and the client shows who it is.
    """

    ca_location: str = ""
    verify: bool = True
    certificate_location: str = ""
    key_location: str = ""
    key_password: str = field(default="", repr=False)

    @property
    def what(self) -> str:
        """The files, for a reason why they do not answer."""
        return ", ".join(filter(None, (self.ca_location, self.certificate_location, self.key_location)))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The directories below which a target's files may lie."""

    authorities: Sequence[str] = ()
    clients: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Who we are: certificates and private key, both in PEM. `digest` stands for all of it in comparisons."""

    digest: str = field(repr=False)
    certificate: bytes = field(repr=False, compare=False)
    key: bytes = field(repr=False, compare=False)
    password: str = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to trust, and as whom to come, with the contents of the files: a replaced one makes another connection.

    `digest` stands for `authorities`; the text itself takes no part in comparisons. Where it is empty the system's
    are trusted.
    """

    verify: bool
    digest: str = ""
    authorities: str = field(default="", repr=False, compare=False)
    client: ClientCertificate | None = None


CLIENT_ALERTS = frozenset({
    "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_ACCESS_DENIED", "TLSV1_ALERT_UNKNOWN_CA",
})  # fmt: skip
"""What servers say of a client's certificate, or of its absence; with TLS 1.3 only after the handshake."""

Fingerprint = tuple[tuple[object, ...], ...]
"""Where files lie, which they are and when they changed."""

RACY_S = 2.0
"""A file that changed so recently is read each time: it may change again without another time of change."""

MOST_CACHED = 256


class TrustCache:
    """Reads the files of targets, and a file again only when it changed."""

    def __init__(self, allowed: TlsFiles) -> None:
        self._allowed = allowed
        self._known: dict[Tls, tuple[Fingerprint, Trust]] = {}

    def read(self, tls: Tls) -> Trust:
        """As `read_trust`. The rules of what may be read are applied each time, also where nothing changed."""
        found = _fingerprints(tls, self._allowed)
        known = self._known.get(tls)
        if found and known and known[0] == found:
            return known[1]
        trust = read_trust(tls, self._allowed)
        if found:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[tls] = found, trust
        return trust


def _fingerprints(tls: Tls, allowed: TlsFiles) -> Fingerprint | None:
    """Of all files of a target; None where one of them says nothing."""
    clients = allowed.clients
    places = (
        (tls.ca_location, allowed.authorities), (tls.certificate_location, clients), (tls.key_location, clients)
    )  # fmt: skip
    found: Fingerprint = ()
    for path, directories in places:
        if path:
            each = _fingerprint(path, directories)
            if each is None:
                return None
            found += each
    return found


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


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Which files an argument may name; `option` is the operator's that says so."""

    argument: str
    option: str
    directories: Sequence[str]
    most_bytes: int
    read: Callable[[str, Sequence[str]], bytes]

    def content(self, path: str) -> bytes:
        """What the file holds. Raises EndpointMisconfigured with why it cannot be read."""
        what = f"{self.argument} {path}"
        if not _is_below(os.path.normpath(path), self.directories):  # by the names alone: no file is looked at
            raise EndpointMisconfigured(f"{what}: not below a directory of {self.option}")
        try:
            content = self.read(path, [os.path.realpath(each) for each in self.directories])
        except (OSError, ValueError):
            # One text for all of it: another one for each would tell which files there are.
            raise EndpointMisconfigured(f"{what}: missing or not readable") from None
        if len(content) > self.most_bytes:
            most = f"{self.most_bytes >> 10} KiB" if self.most_bytes < 1 << 20 else f"{self.most_bytes >> 20} MiB"
            raise EndpointMisconfigured(f"{what}: larger than {most}")
        return content


def read_trust(tls: Tls, allowed: TlsFiles) -> Trust:
    """Read the files of a target, which must lie below the allowed directories; blocks on the file system.

    Raises EndpointMisconfigured with why it cannot.
    """
    client = _read_client(tls, allowed.clients) if tls.certificate_location else None
    if not tls.ca_location:
        return Trust(tls.verify, client=client)
    files = _Allowed("ca-location", "kafka.ca_directories", allowed.authorities, MOST_CA_BYTES, _read)
    content = files.content(tls.ca_location)
    authorities = b"\n".join(PEM_BLOCK.findall(content))  # what stands between the blocks may be in any encoding
    if not authorities:
        raise EndpointMisconfigured(f"ca-location {tls.ca_location}: no certificate authority in PEM form")
    return Trust(tls.verify, hashlib.sha256(authorities).hexdigest(), authorities.decode("ascii"), client)


def read_client_file(argument: str, path: str, directories: Sequence[str]) -> bytes:
    """A file by which a client shows who it is; `argument` named it. Blocks; raises EndpointMisconfigured."""
    return _Allowed(
        argument,
        "kafka.client_files",
        directories,
        MOST_CLIENT_BYTES,
        lambda one, allowed: _read_file(_real(one, allowed)),
    ).content(path)


def certificate_subject(path: str, directories: Sequence[str]) -> str:
    """The subject of the client certificate in a file. Blocks; raises EndpointMisconfigured, and CodecError for one
    that is damaged."""
    first = _read_certificates(path, directories)[0].decode("ascii")
    try:
        return subject_of(ssl.PEM_cert_to_DER_cert(first))
    except ValueError:
        raise CodecError("certificate", 0, "is no base64") from None


def _read_certificates(path: str, directories: Sequence[str]) -> list[bytes]:
    certificates: list[bytes] = PEM_BLOCK.findall(read_client_file(CERTIFICATE, path, directories))
    if not certificates:
        raise EndpointMisconfigured(f"{CERTIFICATE} {path}: no certificate in PEM form")
    return certificates


def _read_client(tls: Tls, directories: Sequence[str]) -> ClientCertificate:
    certificates = _read_certificates(tls.certificate_location, directories)
    key = PEM_KEY.search(read_client_file("ssl-key-location", tls.key_location, directories))
    if not key:
        raise EndpointMisconfigured(f"ssl-key-location {tls.key_location}: no private key in PEM form")
    certificate = b"\n".join(certificates)
    parts = (certificate, key[0], tls.key_password.encode())
    digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in parts)).hexdigest()
    return ClientCertificate(digest, certificate, key[0], tls.key_password)


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


def build_context(trust: Trust, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """A client's TLS context, which offers these protocols (ALPN). Raises EndpointMisconfigured.

    Blocks while it loads authorities and key. That of a file of authorities is made once. The system's are loaded each
    time, since they may have changed.
    """
    return _build_named(trust, protocols) if trust.digest else _build(trust, protocols)


@functools.lru_cache(maxsize=MOST_CACHED)
def _build_named(trust: Trust, protocols: tuple[str, ...]) -> ssl.SSLContext:
    return _build(trust, protocols)


def _build(trust: Trust, protocols: tuple[str, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=trust.authorities or None)
    except (ssl.SSLError, ValueError):
        raise EndpointMisconfigured("ca-location holds no certificate authority in PEM form") from None
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if trust.client:
        _load_client(context, trust.client)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def _load_client(context: ssl.SSLContext, client: ClientCertificate) -> None:
    """Load the very bytes that were read, from a file in memory: `load_cert_chain` takes paths only.

    A password is always given: OpenSSL would ask the terminal for that of an encrypted key, and wait.
    """

    def password() -> str:
        if not client.password:
            raise EndpointMisconfigured("ssl-key-location: the private key is encrypted, and ssl-key-password is empty")
        return client.password

    file = os.memfd_create("remora-client-certificate", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as memory:
            memory.write(client.certificate + b"\n" + client.key + b"\n")
        context.load_cert_chain(f"/proc/self/fd/{file}", password=password)
    except (ssl.SSLError, ValueError) as exc:
        if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
            raise EndpointMisconfigured("ssl-key-location: the key does not belong to the certificate") from None
        why = "ssl-key-password is wrong, or the certificate or the key is damaged"
        raise EndpointMisconfigured(f"ssl-key-location: {why}") from None
    finally:
        os.close(file)


def refused_client(exc: BaseException | None, *, shown: bool) -> str:
    """What the other side has against the certificate that we have `shown`, or not; empty where it says nothing."""
    if not isinstance(exc, ssl.SSLError) or exc.reason not in CLIENT_ALERTS:
        return ""
    said = exc.reason.partition("_ALERT_")[2].replace("_", " ").lower()
    return f"it does not accept the client certificate: {said}" if shown else "it asks for a client certificate"
