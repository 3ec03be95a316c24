"""The process of `remora sequencer`."""

from __future__ import annotations

from remora.sequencer.process import run

__all__ = ["run"]
