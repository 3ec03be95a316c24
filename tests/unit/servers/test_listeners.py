"""Listeners of servers: whatever becomes of who begins one, none is left behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from remora.process.sockets import listening_sockets, unix_socket
from remora.servers.http.connections import Refused
from remora.servers.ingest.server import accepting
from remora.servers.routes import served

Begun = AbstractAsyncContextManager[object]

SERVERS: dict[str, Callable[[Sequence[socket.socket]], Begun]] = {
    "routes": lambda sockets: served([], sockets),
    "ingest": lambda sockets: accepting(sockets, None, Refused),
}

MOST_TURNS = 20


def descriptors_of(inode: int) -> int:
    """How many descriptors this process has of one socket."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # what is closed meanwhile
            found += os.stat(f"/proc/self/fd/{name}").st_ino == inode
    return found


async def given_up(begun: Begun, turns: int) -> bool:
    """Begin a server, and cancel that after some turns of the loop; whether it had begun by then."""
    has_begun = False

    async def run() -> None:
        nonlocal has_begun
        async with begun:
            has_begun = True
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    for _ in range(MOST_TURNS):  # a transport closes in one of the next turns
        await asyncio.sleep(0)
    return has_begun


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:{}/it"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_is_cancelled_while_it_begins_leaves_no_listener(
    tmp_path: Path, server: str, loop: Callable[[], asyncio.AbstractEventLoop], listen: str
) -> None:
    """At whichever turn: of what it has begun on, no descriptor is left but the one that is not its own to close."""
    has_begun, tried = False, 0
    while not has_begun:
        with ExitStack() as stack:
            sockets = stack.enter_context(listening_sockets("listen", listen.format(tmp_path), 0o600))
            inode = os.fstat(sockets[0].fileno()).st_ino

            with asyncio.Runner(loop_factory=loop) as runner:
                has_begun = runner.run(given_up(SERVERS[server](sockets), tried))
                left = descriptors_of(inode)
            assert left == (server == "routes" or tried == 0), f"cancelled after {tried} turns"
        assert descriptors_of(inode) == 0
        tried += 1
        assert tried < MOST_TURNS


def test_a_socket_whose_path_is_gone_at_once_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be found after it was bound is an error of the start, which leaves no listener."""
    path, made = tmp_path / "it", []

    class Bound(socket.socket):
        def dup(self) -> Bound:
            path.unlink()
            made.append(super().dup())
            return made[-1]

    monkeypatch.setattr(socket, "socket", Bound)
    with pytest.raises(FileNotFoundError), unix_socket(path, 0o600):
        pass

    assert [each.fileno() for each in made] == [-1]
