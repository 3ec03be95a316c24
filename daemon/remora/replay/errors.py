"""What the jobs refuse."""

from __future__ import annotations

from remora.model.errors import RemoraError


class ReplayError(RemoraError):
    """A job could not do its work; the message names the file, topic or option that stands in the way."""


class ReplayRefused(ReplayError):
    """An input or an option is not as it must be; nothing was sent and nothing was overwritten."""
