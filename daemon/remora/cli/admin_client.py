"""The client of a running daemon, for commands that ask it (on `admin.listen`) or change it (on its control socket).

A change goes over `admin.listen` where the command was given a control token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from remora.config import AdminSettings, Settings, UnixAddress
from remora.model.errors import ChangeNotAllowed, ConfigError, ConfigErrors, DaemonNotReachable


async def fetch_status(admin: AdminSettings) -> Any:
    """/-/status of the daemon that these settings belong to; DaemonNotReachable when there is none."""
    way = _to_read(admin)
    status = await _ask(way, "GET", "/-/status")
    if not (isinstance(status, dict) and status.keys() >= _OF_STATUS):
        raise DaemonNotReachable(f"what answers on {way.shown} is no remora that delivers")
    return status


async def fetch_shaping(admin: AdminSettings) -> Any:
    """How that daemon shapes its traffic; DaemonNotReachable when there is none."""
    return await _ask(_to_read(admin), "GET", "/-/shaping")


@dataclass(frozen=True, slots=True)
class DaemonControl:
    """What the daemon that these settings belong to can be asked to change.

    With a `token_file` the token in it is shown on `admin.listen`. Each method raises ChangeNotAllowed for a user whom
    the daemon lets change nothing, and DaemonNotReachable where none runs.
    """

    settings: Settings
    token_file: Path | None = None

    async def drain(self, on: bool) -> None:
        """Give its queues to other hosts, or take part again."""
        await self._ask("/-/drain" if on else "/-/undrain")

    async def release(self, destination: str | None) -> None:
        """Use a destination again that is in quarantine, or all."""
        await self._ask("/-/release", {} if destination is None else {"destination": destination})

    async def reshape(self, change: msgspec.Struct) -> list[str]:
        """Shape otherwise until the next reload; what was changed, a line each. Raises ConfigError for a refusal."""
        answer = await self._ask("/-/shaping", body=msgspec.json.encode(change))
        lines: list[str] = answer["lines"]
        return lines

    async def _ask(self, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None) -> Any:
        way, headers = self._way(), dict(_AS_LOOPBACK)
        if self.token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {self.token_file.read_text().strip()}"
            except (OSError, ValueError) as exc:
                raise ChangeNotAllowed(f"cannot read a token from {self.token_file}: {exc}") from exc
        return await _ask(way, "POST", path, query, body, headers)

    def _way(self) -> _Way:
        if self.token_file is not None:
            return _to_read(self.settings.admin)
        path = self.settings.control_socket
        return _Way(aiohttp.UnixConnector(path=path), "http://localhost", f"unix:{path} (admin.control_socket)")


ANSWER_S = 10.0
"""How long an answer may take: a supervisor itself waits 3 s for a worker that is silent."""

_OF_STATUS = frozenset({"version", "draining", "workers", "topics", "shards", "left"})
"""Some of what the status of a daemon has, and that of a sequencer or of another program has not."""

_AS_LOOPBACK: Mapping[str, str] = {"Host": "localhost"}
"""Whatever the address is called: a change is only taken from who asks for this host as such."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a daemon is reached: by a connection, under a URL, and how that is shown."""

    connector: aiohttp.BaseConnector = field(repr=False)
    url: str
    shown: str


def _to_read(admin: AdminSettings) -> _Way:
    address = admin.address
    if isinstance(address, UnixAddress):
        shown = f"unix:{address.path} (admin.listen)"
        return _Way(aiohttp.UnixConnector(path=address.path), "http://localhost", shown)
    host = f"[{address.host}]" if ":" in address.host else address.host
    shown = f"{address.host}:{address.port} (admin.listen)"
    return _Way(aiohttp.TCPConnector(), f"http://{host}:{address.port}", shown)


async def _ask(
    way: _Way,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] = _AS_LOOPBACK,
) -> Any:
    try:
        async with (
            aiohttp.ClientSession(connector=way.connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            session.request(method, way.url + path, params=query, data=body, headers=headers) as response,
        ):
            if response.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                problems = tuple(ConfigError(*each) for each in (await response.json())["problems"])
                raise problems[0] if len(problems) == 1 else ConfigErrors(problems)
            if response.status == HTTPStatus.FORBIDDEN:
                raise ChangeNotAllowed("; ".join((await response.json())["reasons"]))
            response.raise_for_status()
            return await response.json()
    except aiohttp.ClientConnectorError as exc:
        if isinstance(exc.os_error, PermissionError):
            problem = f"only root, the daemon's user and its group may use {way.shown}; see also --token-file"
            raise ChangeNotAllowed(problem) from exc
        number = exc.os_error.errno or 0
        why = os.strerror(number) if number > 0 else str(exc.os_error)  # a name that does not resolve has no number
        raise DaemonNotReachable(f"no daemon answers on {way.shown}: {why}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as exc:  # the last for no such JSON
        why = str(exc) or "no answer in time"
        raise DaemonNotReachable(f"no daemon answers on {way.shown}: {why}") from exc
