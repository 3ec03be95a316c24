"""What the jobs refuse."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remora.model.errors import RemoraError


class ReplayError(RemoraError):
    """A job could not do its work; the message names the file, topic or option that stands in the way."""


class ReplayRefused(ReplayError):
    """An input or an option is not as it must be; nothing was sent and nothing was overwritten."""


@contextmanager
def named_by_path(otherwise: Path | str) -> Iterator[None]:
    """Make a ReplayError of what the file system refuses: the file, else `otherwise`, and why."""
    try:
        yield
    except OSError as exc:
        # Of those without a number none is of a file; where the output's reader has gone, commands end without a word.
        if exc.errno in (None, errno.EPIPE):
            raise
        raise ReplayError(f"{exc.filename or otherwise}: {exc.strerror or exc}") from exc
