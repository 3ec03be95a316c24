"""The sequencer's connections, over `codec/sequencer.py`."""

from __future__ import annotations

from remora.servers.sequencer.rounds import Closed, Rounds

__all__ = ["Closed", "Rounds"]
