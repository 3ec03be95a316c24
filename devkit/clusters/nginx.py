"""Debian's nginx, with a configuration of its own, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from devkit.processes.ports import free_port
from devkit.processes.programs import program
from devkit.waits import until

CONF = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    log_format body escape=none '$request_method $request_uri $status $connection';
    access_log {folder}/access.log body;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    limit_req_zone $server_port zone=few:1m rate=1r/m;
    server {{
        listen 127.0.0.1:{port} {listen};
        {server}
        location /ok {{ return 204; }}
        location /page {{ return 200 "thanks"; }}
        location /gone {{ return 410; }}
        location /elsewhere {{ return 301 /ok; }}
        location /large {{ client_max_body_size 200; proxy_pass http://127.0.0.1:{port}/ok; }}
        location /dead {{ proxy_pass http://127.0.0.1:{closed}; }}
        location /few {{ limit_req zone=few; limit_req_status 429; proxy_pass http://127.0.0.1:{port}/ok; }}
        location /once {{ keepalive_requests 1; return 204; }}
    }}
}}
"""


class Nginx:
    """Where it listens, and what it answered."""

    def __init__(self, folder: Path, port: int, scheme: str) -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self._log = folder / "access.log"

    def answers(self) -> list[tuple[str, int, int]]:
        """Path, status and connection of each request, in the order of their answers."""
        found = []
        for line in self._log.read_text().splitlines():
            _, path, status, connection = line.split()
            found.append((path, int(status), int(connection)))
        return found


@contextlib.asynccontextmanager
async def nginx(folder: Path, server: str = "", *, tls: bool = False) -> AsyncIterator[Nginx]:
    """It serves while the block runs; `server` are further directives."""
    path = program("nginx", "nginx-light")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = free_port()
        conf = folder / "nginx.conf"
        listen = "ssl" if tls else ""
        conf.write_text(
            CONF.format(folder=folder, port=port, listen=listen, server=server, closed=closed.getsockname()[1])
        )
        log = folder / "error.log"
        process = await asyncio.create_subprocess_exec(path, "-c", str(conf), "-e", str(log))
        try:
            await until(lambda: process.returncode is not None or _listens(port), "nginx listens")
            assert process.returncode is None, log.read_text()
            yield Nginx(folder, port, "https" if tls else "http")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
        return True
    return False
