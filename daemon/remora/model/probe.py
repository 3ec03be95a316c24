"""What `remora topic test` finds out about the way to an endpoint, step by step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """A step, what came of it in words, and how long it took; `ok` is None for one that was not looked at."""

    name: str
    ok: bool | None
    said: str
    seconds: float = 0.0
