"""A token server (OAuth 2, client credentials) that signs tokens as a broker's key set has it, or answers as told."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

Script = Callable[["TokenServer"], bytes]
"""The bytes of an answer."""


def answer(status: int, body: bytes, *headers: str) -> bytes:
    """A whole answer of HTTP."""
    lines = (f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def _part(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def signed(key: rsa.RSAPrivateKey, claims: dict[str, Any]) -> str:
    """A token of these claims (RFC 7515, RS256)."""
    head = json.dumps({"alg": "RS256", "typ": "JWT", "kid": "remora"}).encode()
    text = f"{_part(head)}.{_part(json.dumps(claims).encode())}"
    return f"{text}.{_part(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class TokenServer:
    """What it was asked, and what it answers. `script` answers instead of a token, as long as it is set."""

    def __init__(self, key: rsa.RSAPrivateKey, issuer: str, audience: str) -> None:
        self._key, self._issuer, self._audience = key, issuer, audience
        self.connections = 0
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.script: Script | None = None
        self.lasts_s = 3600
        self.subject = "remora"
        self.port = 0
        self.ends = threading.Event()
        """Set when the server ends: what a script that says nothing waits for."""

    @property
    def url(self) -> str:
        """Where it grants tokens."""
        return f"https://localhost:{self.port}/realms/remora/token"

    def token(self, **claims: Any) -> str:
        """A token that the broker takes, unless these claims say something else."""
        now = int(time.time())
        plain = {"iss": self._issuer, "aud": self._audience, "sub": self.subject, "iat": now, "exp": now + self.lasts_s}
        return signed(self._key, plain | claims)

    def granted(self, **claims: Any) -> bytes:
        """The answer that grants a token."""
        body = {"access_token": self.token(**claims), "token_type": "Bearer", "expires_in": self.lasts_s}
        return answer(200, json.dumps(body).encode(), "Content-Type: application/json")


@contextmanager
def token_server(
    certificate: Path, key: Path, signing_key: Path | None = None, issuer: str = "", audience: str = ""
) -> Iterator[TokenServer]:
    """Serve in threads, with TLS; with a `signing_key` in PEM, else with one that no broker knows."""
    if signing_key is None:
        signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    else:
        loaded = serialization.load_pem_private_key(signing_key.read_bytes(), None)
        assert isinstance(loaded, rsa.RSAPrivateKey)
        signer = loaded
    tokens = TokenServer(signer, issuer, audience)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()
            self.request.close()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            tokens.asked.append((self.path, dict(self.headers), body))
            self.wfile.write(tokens.script(tokens) if tokens.script else tokens.granted())
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> Any:
            tokens.connections += 1
            return super().get_request()

        def handle_error(self, *_: object) -> None:
            """A client that goes away is no error."""

    with Server(("127.0.0.1", 0), Handler) as server:
        tokens.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield tokens
        finally:
            tokens.ends.set()
            server.shutdown()
            thread.join()
