"""A configuration that is refused does not blind the commands that show what runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from remora.config import Settings, load
from remora.model.exits import Exit
from remora.process import kept_settings
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

STATUS = {
    "version": "1", "ready": True, "reasons": [], "draining": False, "workers": [], "topics": [], "shards": [],
    "left": [], "ingest": "", "store": {"description": "d", "connected": True, "state": "", "damaged": []},
}  # fmt: skip


@contextmanager
def daemon() -> Iterator[str]:
    """Something that answers as a daemon's admin port does; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(STATUS).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
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
