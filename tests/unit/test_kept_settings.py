"""A configuration that is refused does not blind the commands that show what runs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from devkit.processes.daemon import write_config
from remora.config import Settings, load
from remora.model.exits import Exit
from remora.process import kept_settings
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

STATUS = {
    "version": "1", "ready": True, "reasons": [], "draining": False, "workers": [], "topics": [], "shards": [],
    "left": [], "ingest": "", "store": {"description": "d", "connected": True, "state": "", "damaged": []},
}  # fmt: skip
SHAPING = {
    "scopes": [], "default_class": "standard", "changed": False, "remarks": [], "flows": [], "ticks": 0,
    "late_ticks": 0,
}  # fmt: skip


class UnixServer(HTTPServer):
    """An HTTP server on a Unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(str(self.server_address))

    def get_request(self) -> tuple[socket.socket, Any]:
        connected, _ = super().get_request()
        return connected, ("", 0)


@contextmanager
def daemon(control_socket: Path | None = None) -> Iterator[str]:
    """Something that answers as a daemon's admin port does, or its control socket; yields the port's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(SHAPING if self.path == "/-/shaping" else STATUS)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer({"ok": True, "reasons": [], "lines": []})

        def answer(self, said: object) -> None:
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ExitStack() as servers:
        server = servers.enter_context(served(HTTPServer(("127.0.0.1", 0), Handler)))
        if control_socket is not None:
            servers.enter_context(served(UnixServer(str(control_socket), Handler)))  # type: ignore[arg-type]  # a path
        yield f"127.0.0.1:{server.server_port}"


@contextmanager
def served(server: HTTPServer) -> Iterator[HTTPServer]:
    """The server, which answers in a thread while the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def of_running(config: Path, tmp_path: Path) -> Settings:
    """The settings of a daemon that was started with the file, before that was spoilt."""
    config.write_text(f'[supervisor]\nrun_directory = "{tmp_path}/run"\n')
    return load(config)


def test_settings_are_recalled_as_they_were(of_running: Settings, config: Path, tmp_path: Path) -> None:
    """All of them, for this file only, in a file that nobody else may read."""
    kept_settings.remember(of_running, config)

    assert kept_settings.recall(config) == of_running
    assert kept_settings.recall(tmp_path / "other.toml") is None
    [kept] = (tmp_path / "run").iterdir()
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("spoilt", ['[log]\nlevel = "loud"\n', "no toml ["])
def test_a_refused_file_does_not_blind_status(remora: Run, of_running: Settings, config: Path, spoilt: str) -> None:
    """The daemon that runs is asked where it listens, and standard error says what is wrong with the file."""
    with daemon() as address:
        kept_settings.remember(replace(of_running, admin=replace(of_running.admin, listen=address)), config)
        config.write_text(f"{config.read_text()}\n{spoilt}")

        done = remora("status", "-c", config)

    assert done.code == Exit.OK
    assert done.out.startswith(b"remora 1, ready\n")
    assert "log.level" in done.err or "is not TOML" in done.err
    assert "by the settings that it runs with" in done.err


ASKING = (
    "shaping show", "shaping stats", "quarantine list", "topic stats", "balance show", "slo rules",
    "drain", "drain --undo", "quarantine release --all", "shaping reset",
    "shaping set --scope ALL --disable", "topic hold orders", "topic resume orders",
)  # fmt: skip


@pytest.mark.parametrize("command", ASKING)
def test_a_refused_file_takes_no_command_of_the_daemon_away(
    remora: Run, config: Path, folder: Path, command: str
) -> None:
    """Each command that asks the running daemon, or changes what it does, goes by the settings that it runs with."""
    store, run = {"directory": f"{folder}/queues", "files": 1}, {"run_directory": str(folder)}
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": store, "supervisor": run})
    assert remora("topic", "create", "orders", "--endpoint", "http://h", "-c", config).code == Exit.OK
    with daemon(folder / "control.sock") as address:
        settings = load(config)
        kept_settings.remember(replace(settings, admin=replace(settings.admin, listen=address)), config)
        config.write_text(f'{config.read_text()}\n[log]\nlevel = "loud"\n')

        done = remora(*command.split(), "-c", config)

    assert done.code == Exit.OK, done.err
    assert "by the settings that it runs with" in done.err


def test_a_refused_file_does_not_keep_events_out(remora: Run, config: Path, folder: Path) -> None:
    """`send` goes where the running daemon takes events in, not where the refused file says."""
    config.write_text(f'[supervisor]\nrun_directory = "{folder}"\n[ingest]\nlisten = "unix:{folder}/in"\n')
    kept_settings.remember(load(config), config)
    config.write_text(config.read_text().replace("/in", "/other") + '[log]\nlevel = "loud"\n')
    records = folder / "records"
    records.write_text("")

    done = remora("send", "orders", records, "--timeout", "0.1s", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert f"unix:{folder}/in: cannot connect" in done.err


def test_without_a_daemon_the_refusal_stands(remora: Run, config: Path) -> None:
    """Where nothing tells what runs, the file's problem is the answer."""
    config.write_text('[log]\nlevel = "loud"')

    assert remora("status", "-c", config).code == Exit.CONFIG


def test_the_address_can_be_given(remora: Run, config: Path) -> None:
    """`--admin` says where the daemon listens, whatever the file says."""
    config.write_text('[admin]\nlisten = "127.0.0.1:1"')
    with daemon() as address:
        assert remora("status", "-c", config, "--admin", address).code == Exit.OK
    assert remora("status", "-c", config, "--admin", "nonsense").code == Exit.USAGE
