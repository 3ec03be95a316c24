"""The network card of the host's default route: how fast it is, and what it has sent and received.

psutil would read the same files, but not which card the default route has, and is a dependency to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, SYS = Path("/proc"), Path("/sys/class/net")
_UP, _GATEWAY = 0x1, 0x2
"""Flags of a route: see route(8)."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card: `bytes_per_second` in each direction, 0 where it does not tell; `received` and `sent` since it is up."""

    name: str
    bytes_per_second: int
    received: int
    sent: int


def default_card(proc: Path = PROC, sys: Path = SYS) -> Card | None:
    """Returns the card of the default route with the least metric, of IPv4 before IPv6; None where there is none."""
    if (route := min(_default_routes(proc), default=None)) is None:
        return None
    name = route[2]
    received, sent = _traffic(proc, name)
    return Card(name, _speed(sys / name) * 10**6 // 8, received, sent)


def _default_routes(proc: Path) -> Iterator[tuple[int, int, str]]:
    """Family, metric and card of each default route; columns as in the kernel's fib_trie.c and route.c of IPv6."""
    for columns in _rows(proc / "net" / "route"):
        if len(columns) >= 8 and columns[1] == columns[7] == "00000000" and int(columns[3], 16) & _UP:
            yield 4, int(columns[6]), columns[0]
    for columns in _rows(proc / "net" / "ipv6_route"):
        if len(columns) >= 10 and set(columns[0]) == {"0"} and columns[1] == "00" and int(columns[8], 16) & _GATEWAY:
            yield 6, int(columns[5], 16), columns[9]


def _traffic(proc: Path, name: str) -> tuple[int, int]:
    for columns in _rows(proc / "net" / "dev", apart=":"):
        if columns[0] == name and len(columns) >= 10:
            return int(columns[1]), int(columns[9])
    return 0, 0


def _speed(card: Path) -> int:
    """Megabits per second; of a bridge, a bond or a VLAN that does not tell the sum of what lies below it."""
    try:
        own = int((card / "speed").read_text())
    except (OSError, ValueError):
        own = 0
    if own > 0:
        return own
    try:
        return sum(_speed(below) for below in card.iterdir() if below.name.startswith("lower_"))
    except OSError:
        return 0


def _rows(file: Path, apart: str = " ") -> Iterator[list[str]]:
    try:
        text = file.read_text()
    except OSError:
        return
    yield from (columns for line in text.splitlines() if (columns := line.replace(apart, " ", 1).split()))
