"""The sequencer's connections, over `codec/sequencer.py`."""

from __future__ import annotations

from remora.servers.sequencer.connection import Closed
from remora.servers.sequencer.rounds import RoundFigures, Rounds
from remora.servers.sequencer.secure import SecureConnections, may_speak_plainly, tls_context

__all__ = ["Closed", "RoundFigures", "Rounds", "SecureConnections", "may_speak_plainly", "tls_context"]
