"""aiokafka's log, made fit for a daemon: at most WARNING, each kind of line once a minute, no debug."""

from __future__ import annotations

import logging
import time

REPEAT_S = 60.0

_out = logging.getLogger("remora.kafka")


class RepeatFilter(logging.Handler):
    """Passes a line on unless one of its kind was passed on within a minute.

    What matters reaches status and metrics as an endpoint's error; these lines only help to find its cause. A
    broker that is down makes aiokafka repeat them ten times a second.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: dict[tuple[str, str], float] = {}
        self._held_back: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        # The template and not the text: addresses and numbers in it would make each line a kind of its own.
        kind = (record.name, str(record.msg))
        now = time.monotonic()
        if now - self._last.get(kind, -REPEAT_S) < REPEAT_S:
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        self._last[kind] = now
        held_back = self._held_back.pop(kind, 0)
        _out.warning("%s%s", record.getMessage(), f" ({held_back} more like this in between)" if held_back else "")


def install_log_filter() -> None:
    """Take aiokafka's log over. Debug stays off whatever the daemon's level: requests in it hold passwords."""
    theirs = logging.getLogger("aiokafka")
    theirs.setLevel(logging.WARNING)
    theirs.propagate = False
    if not any(isinstance(handler, RepeatFilter) for handler in theirs.handlers):
        theirs.addHandler(RepeatFilter())
