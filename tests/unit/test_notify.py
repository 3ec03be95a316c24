"""The sd_notify client, against a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.process.notify import Notifier


class Manager:
    """The service manager's end: a bound datagram socket and what arrives there."""

    def __init__(self, name: str) -> None:
        self.environ = {"NOTIFY_SOCKET": name}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.setblocking(False)

    def message(self) -> list[str]:
        """The lines of the next message that is already here."""
        return self.socket.recv(4096).decode().splitlines()

    async def next_message(self) -> list[str]:
        """The lines of the next message."""
        return (await asyncio.get_running_loop().sock_recv(self.socket, 4096)).decode().splitlines()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A manager on a socket in a folder, and one in the abstract namespace."""
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@remora-test-{os.getpid()}")
    yield made
    made.socket.close()


def test_each_state_is_one_message(manager: Manager) -> None:
    """What systemd is told arrives in its own words, one message each."""
    with Notifier(manager.environ) as notifier:
        notifier.ready()
        notifier.status("delivering 3 queues\nsecond line")
        notifier.stopping()
        notifier.extend(1.5)
        notifier.alive()

    assert [manager.message() for _ in range(5)] == [
        ["READY=1"],
        ["STATUS=delivering 3 queues second line"],
        ["STOPPING=1"],
        ["EXTEND_TIMEOUT_USEC=1500000"],
        ["WATCHDOG=1"],
    ]


def test_a_reload_carries_the_monotonic_time(manager: Manager) -> None:
    """A reload is announced with the time that systemd tells it from earlier ones by."""
    with Notifier(manager.environ) as notifier:
        notifier.reloading()

    first, second = manager.message()
    assert first == "RELOADING=1"
    assert second.removeprefix("MONOTONIC_USEC=").isdecimal()


def test_an_unchanged_status_is_not_repeated(manager: Manager) -> None:
    """The status line is sent when it differs from the last one."""
    with Notifier(manager.environ) as notifier:
        for text in ("idle", "idle", "busy"):
            notifier.status(text)

    assert [manager.message(), manager.message()] == [["STATUS=idle"], ["STATUS=busy"]]
    with pytest.raises(BlockingIOError):
        manager.message()


def test_nothing_happens_where_nobody_listens() -> None:
    """Without a manager every call is without effect, and there is no watchdog to feed."""
    with Notifier({"WATCHDOG_USEC": "1000000"}) as notifier:
        notifier.ready()
        notifier.stopping()

        assert notifier.watchdog_s is None


def test_what_could_not_be_sent_comes_with_the_next_message(tmp_path: Path) -> None:
    """While the manager is away only the latest of each value is kept, and nothing is lost."""
    path = tmp_path / "notify"
    with Notifier({"NOTIFY_SOCKET": str(path)}) as notifier:
        notifier.ready()
        for number in range(1000):
            notifier.status(f"status {number}")
        manager = Manager(str(path))
        notifier.alive()
        lines = manager.message()
        manager.socket.close()

    assert lines == ["READY=1", "STATUS=status 999", "WATCHDOG=1"]


def test_a_socket_that_cannot_be_one_is_refused() -> None:
    """A relative path is a mistake of the program that starts us, and is named."""
    with pytest.raises(OSError, match="NOTIFY_SOCKET"):
        Notifier({"NOTIFY_SOCKET": "relative"})


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_it_names(environ: dict[str, str], seconds: float | None) -> None:
    """A watchdog meant for another process, or none at all, is not fed."""
    assert Notifier({"NOTIFY_SOCKET": "/run/none", **environ}).watchdog_s == seconds


async def test_the_watchdog_is_fed_while_there_is_progress(manager: Manager) -> None:
    """Beats come while the loops say they are alive, end when they do not, and begin again."""
    alive, text = True, "one"
    environ = {**manager.environ, "WATCHDOG_USEC": "2000"}
    with Notifier(environ) as notifier:
        run = asyncio.create_task(notifier.run(lambda: alive, lambda: text))
        started = [await manager.next_message() for _ in range(3)]
        alive, text = False, "two"
        while (message := await manager.next_message()) != ["STATUS=two"]:
            assert message == ["WATCHDOG=1"]
        text = "three"
        silent = await manager.next_message()
        alive = True
        resumed = await manager.next_message()
        run.cancel()

    assert started == [["STATUS=one"], ["WATCHDOG=1"], ["WATCHDOG=1"]]
    assert silent == ["STATUS=three"]
    assert resumed == ["WATCHDOG=1"]
