"""Tokens and certificate as their files have them now."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from remora.config import IngestSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.servers import tokens
from remora.servers.ingest.listener import load_certificate, tls_context
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
        self.tls: ssl.SSLContext | None = tls_context(settings)
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
                load_certificate(self.tls, self._settings)
        except ConfigError as exc:
            self._telemetry.ingest_credentials_refused(str(exc))
        else:
            self._telemetry.ingest_credentials(", ".join(self._files))

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_signature(each) for each in self._files]


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid
