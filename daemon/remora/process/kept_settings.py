"""The settings that a running daemon works by, kept for commands whose configuration is refused meanwhile.

A file of the run directory has them, one for each configuration file that daemons of this host were started with. It
goes with the host's next start, and is the daemon's user's alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from remora.config.settings import Settings
from remora.config.workers import SupervisorSettings

_RUN_DIRECTORY = re.compile(
    r"""^\[supervisor\](?:\n(?!\[).*)*?\n\s*run_directory\s*=\s*["']([^"'\n]+)["']""", re.MULTILINE
)
"""Where a file says it, also one that is no TOML any more."""


def remember(settings: Settings, file: Path | None) -> None:
    """Keep the settings in force. What cannot be written is left: it helps only where all else is refused."""
    path = _path(settings.supervisor.run_directory, file)
    with suppress(OSError):
        path.parent.mkdir(mode=0o755, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
            opened.write(msgspec.json.encode(settings))
        new.replace(path)


def recall(file: Path | None) -> Settings | None:
    """The settings that a daemon with this configuration file was last started or reloaded with; None if unknown."""
    try:
        return msgspec.json.decode(_path(_run_directory(file), file).read_bytes(), type=Settings)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _run_directory(file: Path | None) -> str:
    """Where the daemon keeps its files, as far as a file says that may be refused."""
    with suppress(OSError, ValueError):
        if file is not None and (found := _RUN_DIRECTORY.search(file.read_text())):
            return found[1]
    return os.environ.get("REMORA_SUPERVISOR_RUN_DIRECTORY", "") or SupervisorSettings().run_directory


def _path(run_directory: str, file: Path | None) -> Path:
    name = hashlib.sha256(os.fsencode(file.resolve()) if file else b"").hexdigest()[:16]
    return Path(run_directory) / f"settings-{name}.json"
