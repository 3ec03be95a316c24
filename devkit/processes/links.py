"""Hosts of this machine's own: network namespaces, joined by cards that are as slow as is asked, and say so.

The cards are taps: the kernel lets their speed be set, as it does not of a veth pair. A program of this module
carries frames from one to the other, and `tc` holds each of them to its rate. All of it needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select

import pytest

from devkit.processes.programs import ENVIRONMENT, program

NEAR, FAR = "10.9.0.1", "10.9.0.2"
CARRIED = 0.95
"""What of a card's speed its frames get: on a real one preambles and the gaps between frames take the rest."""

_TUNSETIFF, _IFF_TAP_NO_PI = 0x400454CA, 0x1002
_SIOCETHTOOL, _ETHTOOL_SSET, _FULL_DUPLEX = 0x8946, 0x2, 1
_FRAME_BYTES = 1 << 16


@dataclass(frozen=True)
class Link:
    """Two hosts and what is between them; `near` has its default route over the card `card`, which leads to `far`."""

    near: str
    far: str
    card: str

    def on(self, host: str, *argv: str) -> list[str]:
        """A command as it runs on one of them."""
        return [program("ip", "iproute2"), "netns", "exec", host, *argv]


@contextmanager
def limited_link(megabits: int) -> Iterator[Link]:
    """A link of so many megabits per second each way. Without root it skips the test on a laptop and fails it in CI."""
    ip, tc = program("ip", "iproute2"), program("tc", "iproute2")
    if os.geteuid() or not Path("/dev/net/tun").exists():
        missing = "network namespaces and taps, which need root and /dev/net/tun"
        if "CI" in os.environ:
            pytest.fail(f"needs {missing}")
        pytest.skip(f"needs {missing}")
    name = f"remora-{os.getpid()}"
    link = Link(f"{name}-near", f"{name}-far", f"near{os.getpid()}")
    cards = (link.card, f"far{os.getpid()}")
    rate = f"{megabits * CARRIED:g}mbit"
    with ExitStack() as stack:
        for host in (link.near, link.far):
            _run(ip, "netns", "add", host)
            stack.callback(_run, ip, "netns", "del", host)
        stack.enter_context(_carried(link.near, cards[0], link.far, cards[1], str(megabits)))
        for host, card, address in zip((link.near, link.far), cards, (NEAR, FAR), strict=True):
            _run(ip, "-n", host, "link", "set", "lo", "up")
            _run(ip, "-n", host, "addr", "add", f"{address}/24", "dev", card)
            _run(ip, "-n", host, "link", "set", card, "up")
            shape = ["tbf", "rate", rate, "burst", "16kb", "latency", "100ms"]
            _run(tc, "-n", host, "qdisc", "add", "dev", card, "root", *shape)
        _run(ip, "-n", link.near, "route", "add", "default", "via", FAR)
        yield link


def listening(host: str, address: str) -> socket.socket:
    """A socket of this process that listens on one of the hosts, on a free port."""
    with _in(host):
        return socket.create_server((address, 0))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@contextmanager
def _carried(*arguments: str) -> Iterator[None]:
    argv = [sys.executable, "-m", __name__, *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@contextmanager
def _in(host: str) -> Iterator[None]:
    """What this thread makes meanwhile, it makes on that host."""
    with Path("/proc/thread-self/ns/net").open() as own:
        try:
            with (Path("/run/netns") / host).open() as there:
                _enter(there.fileno())
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _tap(host: str, name: str, megabits: int) -> int:
    """A card of this name and speed on a host, as the descriptor of its other side."""
    with _in(host):
        tap = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP_NO_PI))
        # struct ethtool_cmd: command, supported, advertising, speed, duplex; the rest does not count
        command = ctypes.create_string_buffer(struct.pack("=IIIHB29x", _ETHTOOL_SSET, 0, 0, megabits, _FULL_DUPLEX))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(command)))
    return tap


def _carry(taps: Sequence[int]) -> None:
    """Hand each frame that one card sends to the other, for ever."""
    other = dict(zip(taps, reversed(taps), strict=True))
    while True:
        for tap in select(taps, (), ())[0]:
            frame = os.read(tap, _FRAME_BYTES)
            try:
                os.write(other[tap], frame)
            except OSError:  # that card is not up yet
                continue


if __name__ == "__main__":
    _near, _near_card, _far, _far_card, _megabits = sys.argv[1:]
    _taps = [_tap(_near, _near_card, int(_megabits)), _tap(_far, _far_card, int(_megabits))]
    print("ready", flush=True)
    _carry(_taps)
