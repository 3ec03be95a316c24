"""The sequencer over a network: two namespaces of this host's own, joined by a veth pair, with a delay each way.

Server and load are as on two hosts with 10 Gbit/s and 50 us of way between them: what one request at a time reaches is
bound by the round trip, so it grows with the connections until the server's core is full. It needs root, and netem in
the kernel (sch_netem); without netem the pair has no delay, and the figures say so.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError
from devkit.bench.sequencer import POOL, Load, Programs, started

DELAY_US, GBITS = 50, 10
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
PORT = "5678"
TASKS = 1000
LOADS = (Load(1), Load(8), Load(32), Load(64), Load(256), Load(8, 16), Load(8, 64))


@dataclass(frozen=True)
class Hosts:
    """The namespaces of server and client; `delay_us` is 0 where the kernel has no netem."""

    server: str
    client: str
    delay_us: int

    def on(self, namespace: str, *argv: object) -> list[str]:
        """A command as it runs in one of them."""
        return ["ip", "netns", "exec", namespace, *map(str, argv)]


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two namespaces with a veth pair between them; they are deleted in the end. Raises BenchError without root."""
    if os.geteuid():
        raise BenchError("--network makes network namespaces: that needs root")
    names = [f"remora-{os.getpid()}-{which}" for which in ("server", "client")]
    links = [f"rs{os.getpid()}", f"rc{os.getpid()}"]
    with ExitStack() as stack:
        for each in names:
            _ip("netns", "add", each)
            stack.callback(_ip, "netns", "del", each)
        _ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for name, link, address in zip(names, links, (SERVER, CLIENT), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
        delayed = [_delay(name, link) for name, link in zip(names, links, strict=True)]
        yield Hosts(names[0], names[1], DELAY_US if all(delayed) else 0)


def _ip(*argv: str) -> None:
    done = subprocess.run(["ip", *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"ip {' '.join(argv)}: {done.stderr.strip()}")


def _delay(name: str, link: str) -> bool:
    """Whether what leaves a link is delayed from now on."""
    how = ["netem", "delay", f"{DELAY_US}us", "rate", f"{GBITS}gbit"]
    argv = ["tc", "-n", name, "qdisc", "add", "dev", link, "root", *how]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    """Requests a second of `remora sequencer` and of the ceiling, by the load; medians of rounds that take turns."""
    with ExitStack() as stack:
        hosts = stack.enter_context(two_hosts())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-")))
        programs = Programs(folder)
        servers = {"remora": stack.enter_context(_remora(hosts, folder))}
        servers["ceiling"] = stack.enter_context(programs.ceiling_on(hosts.on(hosts.server), SERVER, "5679"))
        rates: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
        for load in LOADS * rounds:
            for name, address in servers.items():
                argv = programs.load_words(address, load, seconds, [f"{POOL}/bench-0:1"])
                rate = _rate(hosts.on(hosts.client, *argv), "requests")
                rates[name].setdefault(load.name, []).append(rate)
        for _ in range(rounds):
            argv = [sys.executable, "-m", "devkit.bench.seqclient", servers["remora"], POOL, "bench-0", TASKS, seconds]
            rates["remora"].setdefault(f"client, {TASKS} tasks", []).append(
                _rate(hosts.on(hosts.client, *argv), "positions")
            )
    medians = {name: {load: statistics.median(each) for load, each in of.items()} for name, of in rates.items()}
    return {"delay_us": hosts.delay_us, "rates": medians}


@contextmanager
def _remora(hosts: Hosts, folder: Path) -> Iterator[str]:
    file, address = folder / "remora.toml", f"{SERVER}:{PORT}"
    file.write_text(
        f'[store]\nkind = "sqlite"\n[sqlite]\ndirectory = "{folder}/store"\nfiles = 1\n'
        f'[sequencer]\ncreate = "log"\nallow = ["{CLIENT}/32"]\nadmin_listen = "unix:{folder}/admin.sock"\n'
    )
    argv = [sys.executable, "-m", "remora", "sequencer", "-c", file, "--listen", address]
    with started(hosts.on(hosts.server, *argv), "stderr", "listens on"):
        first = [sys.executable, "-m", "devkit.bench.seqclient", address, POOL, "bench-0", 1, 0]
        _rate(hosts.on(hosts.client, *first), "positions")  # it is registered, with epoch 1
        yield address


def _rate(argv: Sequence[str], of: str) -> float:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(argv)}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    rate: float = found[of] / found["took_s"]
    return rate


def run(seconds: float, rounds: int) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    found = measure(seconds, rounds)
    way = f"{found['delay_us']} us each way" if found["delay_us"] else "no delay: this kernel has no netem"
    print(f"-- two namespaces, {way}")
    for name, loads in found["rates"].items():
        for load, rate in loads.items():
            print(f"{name:9} {load:30} {rate:12,.0f} requests/s")
    return found
