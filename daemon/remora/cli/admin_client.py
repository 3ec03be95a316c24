"""The client of a running daemon's admin listener, for the commands that ask or change the daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec

from remora.config import AdminSettings, UnixAddress
from remora.model.errors import ConfigError, ConfigErrors, DaemonNotReachable


async def fetch_status(admin: AdminSettings) -> Any:
    """/-/status of the daemon that these settings belong to; DaemonNotReachable when there is none."""
    status = await _ask(admin, "GET", "/-/status")
    if not (isinstance(status, dict) and status.keys() >= _OF_STATUS):
        raise DaemonNotReachable(f"what answers on {_shown(admin)} (admin.listen) is no remora that delivers")
    return status


async def drain_host(admin: AdminSettings, on: bool) -> None:
    """Have that daemon give its queues to other hosts, or take part again; DaemonNotReachable when there is none."""
    await _ask(admin, "POST", "/-/drain" if on else "/-/undrain")


async def release_destination(admin: AdminSettings, destination: str | None) -> None:
    """Have that daemon use a destination again that is in quarantine, or all; DaemonNotReachable when there is none."""
    await _ask(admin, "POST", "/-/release", {} if destination is None else {"destination": destination})


async def fetch_shaping(admin: AdminSettings) -> Any:
    """How that daemon shapes its traffic; DaemonNotReachable when there is none."""
    return await _ask(admin, "GET", "/-/shaping")


async def change_shaping(admin: AdminSettings, change: msgspec.Struct) -> list[str]:
    """Have that daemon shape otherwise until its next reload; what was changed, a line each.

    Raises ConfigError for a change that it refuses, DaemonNotReachable when there is none.
    """
    answer = await _ask(admin, "POST", "/-/shaping", body=msgspec.json.encode(change))
    lines: list[str] = answer["lines"]
    return lines


ANSWER_S = 10.0
"""How long an answer may take: a supervisor itself waits 3 s for a worker that is silent."""

_OF_STATUS = frozenset({"version", "draining", "workers", "topics", "shards", "left"})
"""Some of what the status of a daemon has, and that of a sequencer or of another program has not."""


def _shown(admin: AdminSettings) -> str:
    address = admin.address
    if isinstance(address, UnixAddress):
        return f"unix:{address.path}"
    return f"{address.host}:{address.port}"


async def _ask(
    admin: AdminSettings,
    method: str,
    path: str,
    query: Mapping[str, str] = MappingProxyType({}),
    body: bytes | None = None,
) -> Any:
    address = admin.address
    if isinstance(address, UnixAddress):
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path=address.path)
        url = f"http://localhost{path}"
    else:
        connector = aiohttp.TCPConnector()
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{address.port}{path}"
    shown = _shown(admin)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            # Whatever the address is called: a drain is only taken from who asks for this host as such.
            session.request(method, url, params=query, data=body, headers={"Host": "localhost"}) as response,
        ):
            if response.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise _refusal(await response.json())
            response.raise_for_status()
            return await response.json()
    except aiohttp.ClientConnectorError as exc:
        number = exc.os_error.errno or 0
        why = os.strerror(number) if number > 0 else str(exc.os_error)  # a name that does not resolve has no number
        raise DaemonNotReachable(f"no daemon answers on {shown} (admin.listen): {why}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:  # the last for what is no JSON
        why = str(exc) or "no answer in time"
        raise DaemonNotReachable(f"no daemon answers on {shown} (admin.listen): {why}") from exc


def _refusal(answer: Mapping[str, Any]) -> ConfigError:
    """Why a daemon refuses values."""
    problems = tuple(ConfigError(*each) for each in answer["problems"])
    return problems[0] if len(problems) == 1 else ConfigErrors(problems)
