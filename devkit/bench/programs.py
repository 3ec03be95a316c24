"""The programs that a benchmark starts beside the clusters: remora, and the nginx that radosgw posts to."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from devkit.bench.clusters import BenchError, Clusters
from devkit.bench.embedded import Embedded
from devkit.paths import ROOT
from devkit.processes.ports import free_port
from devkit.receivers import slow_receiver

# One process that answers at once and writes nothing. radosgw opens a connection for every entry that it has listed,
# 1,000 for each queue: the limits are such that none of them waits or is closed.
_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
worker_rlimit_nofile {files};
events {{ worker_connections {files}; }}
http {{
    access_log off;
    split_clients "$connection-$connection_requests" $is_bad {{ 1% 1; * 0; }}
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    server {{
        listen 127.0.0.1:{port} backlog=16384;
        location = /status {{ stub_status; }}
        location / {{ return 200; }}
        location = /flaky {{ if ($is_bad) {{ return 503; }} return 200; }}
    }}
}}
"""

_REMORA = """\
[store]
kind = "rados"

[ingest]
listen = ""

[rados]
conf = "{conf}"
name = "{client}"
keyring = "{keyring}"

[admin]
listen = "unix:{folder}/admin"
control_socket = "{folder}/control"
"""


class SlowSink:
    """An HTTP server that says yes after a while."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.url = f"http://127.0.0.1:{port}"

    def requests(self) -> int:
        """How many requests it has answered, without these questions."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            return int(answer.read())


class Sink:
    """An HTTP server that says yes."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.url = f"http://127.0.0.1:{port}"

    def requests(self) -> int:
        """How many requests it has answered, this question included."""
        with urllib.request.urlopen(f"{self.url}/status", timeout=10) as answer:
            return int(answer.read().split()[9])


@contextmanager
def sink(folder: Path) -> Iterator[Sink]:
    """Debian's nginx with a configuration of its own."""
    path = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin")
    if path is None:
        raise BenchError("nginx is missing: run scripts/setup, or install Debian's nginx-light")
    port = free_port()
    conf = folder / "nginx.conf"
    conf.write_text(_NGINX.format(folder=folder, port=port, files=resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with running([path, "-c", str(conf), "-e", str(folder / "nginx.log")], folder / "nginx.out") as process:
        served = Sink(process.pid, port)
        answering(served.requests, "nginx", folder / "nginx.log")
        yield served


@contextmanager
def slow_sink(folder: Path, seconds: float) -> Iterator[SlowSink]:
    """A receiver that takes so long for each request."""
    port, log = free_port(), folder / "slow-receiver.log"
    program = Path(slow_receiver.__file__)
    with running([sys.executable, str(program), str(port), str(seconds)], log) as process:
        served = SlowSink(process.pid, port)
        answering(served.requests, program.name, log)
        yield served


def answering(look: Callable[[], object], what: str, log: Path) -> None:
    """Return when a look no longer raises OSError. Raises BenchError when that takes too long."""
    for _ in range(200):
        try:
            look()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise BenchError(f"{what} does not answer: {_last_words(log)}")


@contextmanager
def remora(clusters: Clusters, folder: Path, more: str = "") -> Iterator[int]:
    """The daemon with its defaults and `more` sections, and its process id.

    It is told to end at the end, and must have drained.
    """
    env = clusters.ceph
    conf, log = folder / "remora.toml", folder / "remora.log"
    conf.write_text(_REMORA.format(folder=folder, **{key: env[key] for key in ("conf", "client", "keyring")}) + more)
    with _daemon(conf, log) as process:
        yield process.pid


@contextmanager
def radosgw(clusters: Clusters) -> Iterator[int]:
    """The cluster's radosgw, which runs meanwhile only, and its process id."""
    clusters.start("ceph", "rgw")
    try:
        yield clusters.ceph["pids"]["rgw"]
    finally:
        clusters.stop("ceph", "rgw")


@contextmanager
def remora_on(embedded: Embedded) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon on an embedded store, told to end at the end unless it has been killed; it need not serve yet."""
    with _daemon(embedded.configuration, embedded.log) as process:
        yield process


async def listening(process: subprocess.Popen[bytes], embedded: Embedded) -> None:
    """Return when the daemon takes events in. Its sockets let clients wait before a worker is there to answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            answers = await embedded.takes_events()
        except (aiohttp.ClientError, OSError):
            answers = False
        if answers:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"remora does not listen: {_last_words(embedded.log)}")
        await asyncio.sleep(0.05)


@contextmanager
def _daemon(conf: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with running([str(ROOT / ".venv/bin/remora"), "run", "-c", str(conf)], log) as process:
        yield process
        if process.returncode == -signal.SIGKILL:
            return
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            raise BenchError(f"remora ended with {process.returncode}: {_last_words(log)}")


@contextmanager
def running(argv: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, told to end at the end; one that fails is a BenchError."""
    with log.open("ab") as out:
        # A session of its own, as a service has it: what is done to it is done to its workers too.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
        if process.poll() not in (None, 0, -signal.SIGKILL):
            raise BenchError(f"{Path(argv[0]).name} ended with {process.returncode}: {_last_words(log)}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a program with all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:])
