"""Something that answers as a daemon's admin port and control socket do, with what a test has written down."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

STATUS = {
    "version": "1", "ready": True, "reasons": [], "draining": False, "workers": [], "topics": [], "shards": [],
    "left": [], "ingest": "", "store": {"description": "d", "connected": True, "state": "", "damaged": []},
}  # fmt: skip
SHAPING = {
    "scopes": [], "default_class": "standard", "changed": False, "remarks": [], "flows": [], "ticks": 0,
    "late_ticks": 0,
}  # fmt: skip

DONE = {"ok": True, "reasons": [], "lines": []}

Answer = tuple[int, bytes] | None
"""The status and the body of an answer; None closes the connection without one."""


def answer(said: object, status: int = 200) -> Answer:
    """An answer in JSON."""
    return status, json.dumps(said).encode()


WELL: Mapping[str, Answer] = MappingProxyType({"/-/status": answer(STATUS), "GET /-/shaping": answer(SHAPING)})


@contextmanager
def scripted_daemon(
    control_socket: Path | None = None, answers: Mapping[str, Answer] = MappingProxyType({})
) -> Iterator[str]:
    """Answers over TCP, and over a socket where one is given; yields the address.

    `answers` has paths, or methods with paths, and stands over those of a daemon that is well and makes each change.
    """
    said = {**WELL, **answers}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(said.get(f"GET {self.path}", said.get(self.path, (404, b""))))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(said.get(f"POST {self.path}", said.get(self.path, answer(DONE))))

        def _answer(self, found: Answer) -> None:
            if found is None:
                self.close_connection = True
                return
            status, body = found
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ExitStack() as servers:
        server = servers.enter_context(_served(HTTPServer(("127.0.0.1", 0), Handler)))
        if control_socket is not None:
            servers.enter_context(_served(_UnixServer(str(control_socket), Handler)))  # type: ignore[arg-type]  # a path
        yield f"127.0.0.1:{server.server_port}"


class _UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(str(self.server_address))

    def get_request(self) -> tuple[socket.socket, Any]:
        connected, _ = super().get_request()
        return connected, ("", 0)


@contextmanager
def _served(server: HTTPServer) -> Iterator[HTTPServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
