"""The client of a running daemon, for commands that ask it (on `admin.listen`) or change it (on its control socket).

A change goes over `admin.listen` where the command was given a control token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remora.cli.token_file import token_of
from remora.config import AdminSettings, Settings, UnixAddress
from remora.config.checked import refuse
from remora.model.errors import ChangeNotAllowed, ConfigError, DaemonNotReachable, PermissionMissing

T = TypeVar("T")


async def fetch_status(admin: AdminSettings) -> Any:
    """/-/status of the daemon that these settings belong to; DaemonNotReachable when there is none."""
    return await _read(_to_read(admin), "/-/status", _OF_STATUS)


async def fetch_shaping(admin: AdminSettings) -> Any:
    """How that daemon shapes its traffic; DaemonNotReachable when there is none."""
    return await _read(_to_read(admin), "/-/shaping", _OF_SHAPING)


@dataclass(frozen=True, slots=True)
class DaemonControl:
    """What the daemon that these settings belong to can be asked to change.

    With a `token_file` the token in it is shown on `admin.listen`. Each method raises ChangeNotAllowed for a user whom
    the daemon lets change nothing, and DaemonNotReachable where none runs, or where none has answered: that says how to
    see whether the change is made nevertheless.
    """

    settings: Settings
    token_file: Path | None = None

    async def drain(self, on: bool) -> None:
        """Give its queues to other hosts, or take part again."""
        await self._ask("/-/drain" if on else "/-/undrain", "`remora status` says whether the host is draining")

    async def release(self, destination: str | None) -> None:
        """Use a destination again that is in quarantine, or all."""
        query = {} if destination is None else {"destination": destination}
        await self._ask("/-/release", "`remora quarantine list` shows what is left", query)

    async def reshape(self, change: msgspec.Struct) -> list[str]:
        """Shape otherwise until the next reload; what was changed, a line each. Raises ConfigError for a refusal."""
        return await self._ask("/-/shaping", "`remora shaping show` shows what holds", body=msgspec.json.encode(change))

    async def use_store(self, priority: str, nbytes: int) -> float | None:
        """Charge what a command did with the store; in how many seconds that is paid back, None where nobody knows."""
        body = msgspec.json.encode({"priority": priority, "nbytes": nbytes})
        return (await self._answer("/-/store", "`remora shaping stats` counts what is charged", body=body)).wait_s

    async def _ask(
        self, path: str, shows: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> list[str]:
        """The lines of the answer; see `_answer`."""
        return (await self._answer(path, shows, query, body)).lines

    async def _answer(
        self, path: str, shows: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> _Lines:
        """`shows` is for a change that was sent and not answered."""
        way, headers = self._way(), dict(_AS_LOOPBACK)
        if self.token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {token_of(self.token_file)}"
            except PermissionMissing as exc:
                raise ChangeNotAllowed(str(exc)) from exc
        try:
            status, said = await _ask(way, "POST", path, query, body, headers)
            if status == HTTPStatus.UNPROCESSABLE_ENTITY:
                refuse(ConfigError(key, reason) for key, reason in _decoded(way, status, said, _Problems).problems)
            if status == HTTPStatus.FORBIDDEN:
                raise ChangeNotAllowed("; ".join(_decoded(way, status, said, _Reasons).reasons))
            return _decoded(way, status, said, _Lines)
        except Unanswered as exc:
            raise DaemonNotReachable(f"{exc}; the change may be made nevertheless: {shows}") from exc

    def _way(self) -> _Way:
        if self.token_file is not None:
            return _to_read(self.settings.admin)
        path = self.settings.control_socket
        return _Way("http://localhost", f"unix:{path} (admin.control_socket)", path)


ANSWER_S = 10.0
"""How long an answer may take: a supervisor itself waits 3 s for a worker that is silent."""

_OF_STATUS = frozenset({"version", "draining", "workers", "topics", "shards", "left"})
_OF_SHAPING = frozenset({"scopes"})
"""Some of what a daemon says of itself, and a sequencer or another program does not."""


class Unanswered(DaemonNotReachable):
    """The daemon was asked, or may have been, and gave no answer, or that it failed."""


class _Problems(msgspec.Struct):
    problems: list[tuple[str, str]]


class _Reasons(msgspec.Struct):
    reasons: list[str]


class _Lines(msgspec.Struct):
    lines: list[str]
    wait_s: float | None = None


_AS_LOOPBACK: Mapping[str, str] = {"Host": "localhost"}
"""Whatever the address is called: a change is only taken from who asks for this host as such."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a daemon is reached: under a URL, on a Unix socket where it has a path, and how that is shown."""

    url: str
    shown: str
    socket: str | None = None


def _to_read(admin: AdminSettings) -> _Way:
    address = admin.address
    if isinstance(address, UnixAddress):
        return _Way("http://localhost", f"unix:{address.path} (admin.listen)", address.path)
    host = f"[{address.host}]" if ":" in address.host else address.host
    shown = f"{address.host}:{address.port} (admin.listen)"
    return _Way(f"http://{host}:{address.port}", shown)


async def _read(way: _Way, path: str, keys: Set[str]) -> dict[str, Any]:
    """What the daemon says of itself under a path, an object with these keys among others."""
    status, said = await _ask(way, "GET", path)
    found = _decoded(way, status, said, dict[str, Any])
    if not found.keys() >= keys:
        raise _stranger(way, status)
    return found


def _decoded(way: _Way, status: int, said: bytes, form: type[T]) -> T:
    """An answer in the form that a daemon gives it. Raises DaemonNotReachable for any other, and for a failure."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unanswered(f"the daemon on {way.shown} answers with HTTP status {status}; its log says why")
    try:
        return msgspec.json.decode(said, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise _stranger(way, status) from exc


def _stranger(way: _Way, status: int) -> DaemonNotReachable:
    code = "" if status == HTTPStatus.OK else f": HTTP status {status}"
    return DaemonNotReachable(f"what answers on {way.shown} is no remora that delivers{code}")


async def _ask(
    way: _Way,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] = _AS_LOOPBACK,
) -> tuple[int, bytes]:
    """The answer's status and body. Raises Unanswered where the question was sent, or may have been."""
    import aiohttp  # a quarter of the start of a command that may have nothing to ask

    connector = aiohttp.UnixConnector(path=way.socket) if way.socket else aiohttp.TCPConnector()
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            session.request(method, way.url + path, params=query, data=body, headers=headers) as response,
        ):
            return response.status, await response.read()
    except aiohttp.ClientConnectorError as exc:
        if isinstance(exc.os_error, PermissionError):
            problem = f"only root, the daemon's user and its group may use {way.shown}; see also --token-file"
            raise ChangeNotAllowed(problem) from exc
        number = exc.os_error.errno or 0
        why = os.strerror(number) if number > 0 else str(exc.os_error)  # a name that does not resolve has no number
        raise DaemonNotReachable(f"no daemon answers on {way.shown}: {why}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
        why = str(exc) or "no answer in time"
        raise Unanswered(f"no daemon answers on {way.shown}: {why}") from exc
