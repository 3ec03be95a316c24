"""Tokens and certificate as their files have them now."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from remora.config.ingest import IngestSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.servers import tokens
from remora.servers.tokens import Tokens


class Credentials:
    """What senders show and are shown; read again when asked to, and when a file has changed."""

    def __init__(
        self,
        settings: IngestSettings,
        telemetry: Telemetry,
        on_tokens: Callable[[Tokens | None], None] = lambda _: None,
    ) -> None:
        """`on_tokens` is told the tokens whenever they are read. Raises ConfigError for files that cannot be used."""
        self._settings = settings
        self._telemetry = telemetry
        self._on_tokens = on_tokens
        self._files = tuple(filter(None, (settings.tokens, settings.tls_certificate, settings.tls_key)))
        self._seen = self._look()
        self.tokens: Tokens | None = tokens.load(settings.tokens) if settings.tokens else None
        self.tls: ssl.SSLContext | None = _tls_context(settings)
        on_tokens(self.tokens)

    def refresh(self) -> None:
        """Read them again if a file is another one than the last time."""
        if self._look() != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read them again. What is refused is reported, and that of before goes on counting."""
        if not self._files:
            return
        self._seen = self._look()
        try:
            if self._settings.tokens:
                self.tokens = tokens.load(self._settings.tokens)
                self._on_tokens(self.tokens)
            if self.tls is not None:
                _load_certificate(self.tls, self._settings)
        except ConfigError as exc:
            self._telemetry.ingest_credentials_refused(str(exc))
        else:
            self._telemetry.ingest_credentials(", ".join(self._files))

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_signature(each) for each in self._files]


def _tls_context(settings: IngestSettings) -> ssl.SSLContext | None:
    """How connections are encrypted; None where they are not. Raises ConfigError for files that do not fit."""
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: IngestSettings) -> None:
    """Read certificate and key, for connections from now on. Raises ConfigError, and then the old ones stay."""
    try:
        # First into a context that is thrown away: a certificate without its key must not get into the one in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as exc:
        why = exc.reason or "not a certificate and its key in PEM"
        raise ConfigError("ingest.tls_certificate", f"{settings.tls_certificate} and ingest.tls_key: {why}") from exc
    except OSError as exc:
        raise ConfigError("ingest.tls_certificate", f"cannot read certificate or key: {exc.strerror}") from exc


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid
