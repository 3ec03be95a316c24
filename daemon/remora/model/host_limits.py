"""What a worker's use of its host is measured by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bytes of memory for one worker, and bytes per second of the host's network in each direction; 0: not known.

    `memory_from` and `network_from` name where the figure is from: an option, "control group", "host", or a card, which
    is named also where it does not tell its speed.
    """

    memory: int = 0
    memory_from: str = ""
    network: int = 0
    network_from: str = ""
