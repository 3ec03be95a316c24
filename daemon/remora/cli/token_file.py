"""The token of a command, which shows it to a daemon."""

from __future__ import annotations

from pathlib import Path

from remora.model.errors import PermissionMissing


def token_of(file: Path | None) -> str:
    """The token in a file; empty without one. Raises PermissionMissing, with the file's name, for what is none."""
    if file is None:
        return ""
    try:
        token = file.read_bytes().decode().strip()
    except OSError as exc:
        raise PermissionMissing(f"cannot read a token from {file}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise PermissionMissing(f"cannot read a token from {file}: it is not UTF-8") from exc
    if not token.isprintable():  # no header can have it
        raise PermissionMissing(f"cannot read a token from {file}: it has several lines, or signs that do not print")
    return token
