"""`remora sequencer` from its first socket to its last lock: a store, the logs it serves, and their connections."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import uvloop

from remora.app import open_logs
from remora.config import SequencerSettings, Settings
from remora.engine.sequencing.sequencing import Sequencing, Totals
from remora.metrics import configure_logging
from remora.model.exits import Exit
from remora.process.sockets import listening_sockets, shown_address
from remora.servers.sequencer import Rounds

Report = Callable[[str], None]


def run(settings: Settings, report_s: float = 0.0, report: Report = print) -> Exit:
    """Serve until SIGTERM or SIGINT; every `report_s` seconds `report` gets a line, never where that is 0.

    Raises ConfigError where the address cannot be listened on.
    """
    configure_logging(settings.log)
    gc.freeze()  # what was imported stays
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, report_s, report))


async def _serve(settings: Settings, report_s: float, report: Report) -> Exit:
    mine = settings.sequencer
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    with listening_sockets("sequencer.listen", mine.listen, int(mine.socket_mode, 8)) as sockets:
        address = shown_address(sockets)
        async with open_logs(settings) as logs:
            sequencing = Sequencing(logs, mine, address, Random())  # noqa: S311  # spreads retries, guards nothing
            rounds = Rounds(
                sequencing.core,
                sockets,
                most_connections=mine.max_connections,
                may_connect=_gate(mine),
                before=sequencing.before,
                after=sequencing.after,
            )
            async with rounds:
                sequencing.resume = rounds.resume
                sys.stderr.write(f"remora: the sequencer listens on {address}\n")
                with _running(sequencing.run()), _running(_reports(sequencing, rounds, report_s, report)):
                    await stop.wait()
                await sequencing.close()
    return Exit.OK


@contextmanager
def _running(work: object) -> Iterator[None]:
    """Have a task run while the block does."""
    assert asyncio.iscoroutine(work)
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


def _gate(settings: SequencerSettings) -> Callable[[socket.socket], bool]:
    """Whether a connection may speak: those of this host may, and those of the networks that are allowed."""
    networks = [ipaddress.ip_network(each) for each in settings.allow]

    def may_connect(connection: socket.socket) -> bool:
        if connection.family == socket.AF_UNIX:
            return True
        peer = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return peer.is_loopback or any(peer in each for each in networks)

    return may_connect


async def _reports(sequencing: Sequencing, rounds: Rounds, every_s: float, report: Report) -> None:
    """A line of rates for each interval."""
    if not every_s:
        return
    now = asyncio.get_running_loop().time
    at, before = now(), Totals()
    while True:
        await asyncio.sleep(at + every_s - now())
        took_s, totals = now() - at, sequencing.totals()
        at += took_s
        positions = (totals.positions - before.positions) / took_s
        requests = (totals.requests - before.requests) / took_s
        logs, before = sequencing.served, totals
        report(f"{positions:.0f} positions/s, {requests:.0f} requests/s, {logs} logs, {rounds.connections} connections")
