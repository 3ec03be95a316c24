"""`remora demo`: a first look at a daemon, with nothing but the installed package.

It is started as users start it, and asked over its own ports: nothing here reaches into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import click
from aiohttp import web

from remora.cli.admin_client import fetch_status
from remora.cli.output import print_line, run_async
from remora.client import IngestClient
from remora.config import AdminSettings

EVENTS = 10
KILL_AFTER = 5
WORKERS = 2
LONGEST_S = 120.0
"""Beyond this the daemon's start, a command or an event hangs, on the slowest of machines."""

MOST_FOLDER = 60
"""Bytes of the path of a temporary directory: that of a socket has at most 107."""

ASK_INTERVAL_S = 0.2
COMMAND = (sys.executable, "-m", "remora")


@click.command()
@click.option(
    "--pause", type=click.FloatRange(0, 60), default=1.0, show_default=True, help="Seconds between two events."
)
@click.option("--keep", is_flag=True, help="Leave the daemon running until Ctrl-C, to look around.")
def demo(pause: float, keep: bool) -> None:
    """Show a daemon at work: ten events, a receiver that prints them, and a worker that is killed meanwhile.

    Starts a daemon with two workers and an embedded store in a temporary directory, and an HTTP receiver that prints
    what arrives. Needs no broker and no root, takes 20 seconds, and leaves nothing. Exit code 1 when an event did not
    arrive.

    \b
    Example:
      remora demo
    """
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > MOST_FOLDER:
        place = "/tmp"  # noqa: S108  # a directory of its own is made there
    with tempfile.TemporaryDirectory(prefix="remora-demo-", dir=place) as name:
        missing = run_async(_show(Path(name), pause, keep))
    if missing:
        raise click.ClickException(f"{missing} of {EVENTS} events did not arrive")


@dataclass
class DemoReceiver:
    """What arrived over HTTP, by key, each printed."""

    arrived: Counter[str] = field(default_factory=Counter)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        """Print the events of one request, and acknowledge them."""
        for record in (await request.json())["Records"]:
            key = record["s3"]["object"]["key"]
            self.arrived[key] += 1
            again = " once more" if self.arrived[key] > 1 else ""
            print_line(f"  arrived{again}: {record['eventName']} {record['s3']['bucket']['name']}/{key}")
        self.news.set()
        return web.Response()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Answer on a free port of this host's own address; its URL."""
        app = web.Application()
        app.router.add_post("/", self.take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()

    async def until(self, events: int) -> None:
        """Wait for so many different events."""
        while len(self.arrived) < events:
            self.news.clear()
            await self.news.wait()


async def _show(folder: Path, pause_s: float, keep: bool) -> int:
    """All of it; how many events did not arrive."""
    receiver, began = DemoReceiver(), time.monotonic()
    async with receiver.listening() as url, _daemon(folder) as (admin, process):
        delivering = asyncio.create_task(_deliver(folder, receiver, url, admin, pause_s))
        ending = asyncio.create_task(process.wait())
        await asyncio.wait((delivering, ending), return_when=asyncio.FIRST_COMPLETED)
        delivering.cancel()  # nothing more comes of a daemon that has ended
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await delivering
        doubled = sum(receiver.arrived.values()) - len(receiver.arrived)
        print_line(
            f"{len(receiver.arrived)} of {EVENTS} events arrived, {doubled} of them twice,"
            f" in {time.monotonic() - began:.0f} s"
        )
        if keep and process.returncode is None:
            print_line(
                f"Look around: remora status -c {folder}/remora.toml; the page: http://{admin.listen}/. Ctrl-C ends."
            )
            pressed = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, pressed.set)
            await pressed.wait()
    return EVENTS - len(receiver.arrived)


async def _deliver(folder: Path, receiver: DemoReceiver, url: str, admin: AdminSettings, pause_s: float) -> None:
    print_line(f"Starting a daemon with {WORKERS} workers and its queues in {folder}.")
    await asyncio.wait_for(_until_ready(admin), LONGEST_S)
    print_line(f"It runs. Its page: http://{admin.listen}/")
    await _command("topic", "create", "photos", "--endpoint", url, "--shards", str(WORKERS), folder=folder)
    print_line(f"Topic photos goes to {url}. Sending {EVENTS} events:")
    async with IngestClient(f"unix:{folder}/ingest.sock", deadline_s=LONGEST_S) as client:
        for number in range(1, EVENTS + 1):
            s3 = {"bucket": {"name": "album"}, "object": {"key": f"cat-{number}.jpg", "size": number}}
            await client.publish("photos", [{"eventName": "ObjectCreated:Put", "s3": s3}])
            if number == KILL_AFTER:
                await asyncio.wait_for(receiver.until(number), LONGEST_S)
                worker = max((await fetch_status(admin))["workers"], key=lambda each: each["shards"])
                os.kill(worker["pid"], signal.SIGKILL)
                print_line(f"Killed worker {worker['number']} (pid {worker['pid']}); the others take its queues over.")
            await asyncio.sleep(pause_s)
    await asyncio.wait_for(receiver.until(EVENTS), LONGEST_S)


@contextlib.asynccontextmanager
async def _daemon(folder: Path) -> AsyncIterator[tuple[AdminSettings, Process]]:
    """A daemon on this folder, ended at the end; what it said is printed where it ends by itself."""
    admin = AdminSettings(listen=f"127.0.0.1:{_free_port()}")
    (folder / "remora.toml").write_text(
        f'[supervisor]\nworkers = {WORKERS}\nrun_directory = "{folder}/run"\n[sqlite]\ndirectory = "{folder}/queues"\n'
        f'[ingest]\nlisten = "unix:{folder}/ingest.sock"\n[admin]\nlisten = "{admin.listen}"\n'
    )
    (folder / "run").mkdir()
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "run", "-c", folder / "remora.toml", stderr=log, env=_environment()
        )
    try:
        yield admin, process
    finally:
        if process.returncode is None:
            process.terminate()
        if await process.wait():
            for line in (folder / "log").read_text(errors="replace").splitlines():
                print_line(line, err=True)


async def _command(*words: str, folder: Path) -> None:
    """Run a command as a user would, and show it."""
    print_line(f"$ remora {' '.join(words)}")
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, "-c", folder / "remora.toml", stdout=asyncio.subprocess.DEVNULL, env=_environment()
    )
    if await process.wait():
        raise click.ClickException("that failed")


async def _until_ready(admin: AdminSettings) -> None:
    """Wait until the daemon takes events in."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{admin.listen}/-/ready") as answer:
                    if answer.ok:
                        return
            await asyncio.sleep(ASK_INTERVAL_S)


def _environment() -> dict[str, str]:
    """This one without options for another daemon."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
