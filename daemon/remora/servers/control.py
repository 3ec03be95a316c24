"""What commands change of a daemon, and who may: the routes that take POST, and the two doors that lead to them.

Over the control socket may who could connect to it: the socket's mode lets root, the daemon's user and its group. Over
`admin.listen`, which any user of the host reaches and any proxy there, only a control token opens, and only where the
operator has made some.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from remora.model.caller import Caller
from remora.model.errors import ConfigError
from remora.policy.ingest.browsers import is_of_page
from remora.process.sockets import peer_of
from remora.servers import tokens
from remora.servers.http.response import Response
from remora.servers.routes import Answering, AskedOver, ServedPath, json_answer


@dataclass(frozen=True, slots=True)
class Control:
    """What can be changed by command; each function gets the caller, whom the log names.

    `drain` has this host give its queues away, or take part again. `release` ends the quarantine of a destination, or
    of all. `reshape` has traffic shaped otherwise from the next tick on, and gives a line for each value; it raises
    ConfigError where nothing changes. `use_store` charges what a command did with the store, and says in how many
    seconds that is paid back. `refused` gets a route, who asked for it, and why nothing changes.
    """

    drain: Callable[[bool, Caller], None]
    release: Callable[[str | None, Caller], None]
    reshape: Callable[[bytes, Caller], Sequence[str]]
    use_store: Callable[[bytes], float | None]
    refused: Callable[[str, Caller, str], None]


class NotLetIn(Exception):
    """A caller who may change nothing, with the reason; only `routes_of` sees it."""


Work = Callable[[AskedOver, Caller], Awaitable[Mapping[str, object]]]
"""Makes a change; gives what is to be said of it, such as `lines`, one for each value that is shown."""

Door = Callable[[AskedOver], Awaitable[Caller]]
"""Says who asks. Raises NotLetIn for those who may change nothing."""


def routes_of(control: Control, door: Door) -> list[ServedPath]:
    """The routes that change something, for those whom the door lets in."""

    async def drain(asked: AskedOver, caller: Caller) -> Mapping[str, object]:
        control.drain(True, caller)
        return {}

    async def undrain(asked: AskedOver, caller: Caller) -> Mapping[str, object]:
        control.drain(False, caller)
        return {}

    async def release(asked: AskedOver, caller: Caller) -> Mapping[str, object]:
        control.release(asked.parameter("destination"), caller)
        return {}

    async def reshape(asked: AskedOver, caller: Caller) -> Mapping[str, object]:
        return {"lines": list(control.reshape(await asked.body(), caller))}

    async def use_store(asked: AskedOver, caller: Caller) -> Mapping[str, object]:
        return {"wait_s": control.use_store(await asked.body())}

    changes = {
        "/-/drain": drain,
        "/-/undrain": undrain,
        "/-/release": release,
        "/-/shaping": reshape,
        "/-/store": use_store,
    }

    def guarded(change: Work) -> Answering:
        async def answer(asked: AskedOver) -> Response:
            try:
                said = await change(asked, await door(asked))
            except NotLetIn as exc:
                control.refused(asked.path, _who(asked), str(exc))
                return json_answer(403, {"ok": False, "reasons": [str(exc)]})
            except ConfigError as exc:
                return json_answer(422, {"ok": False, "problems": [(each.key, each.reason) for each in exc.problems]})
            return json_answer(200, {"ok": True, "reasons": [], "lines": [], **said})

        return answer

    return [ServedPath(path, guarded(change), changes=True) for path, change in changes.items()]


async def of_socket(asked: AskedOver) -> Caller:
    """The door of the control socket: who has come in so far may, since its mode kept all others out."""
    _refuse_browsers(asked)
    return _who(asked)


class TokenDoor:
    """The door of `admin.listen`: holders of control tokens on this host, nobody where no tokens are configured."""

    def __init__(self, file: str, control_socket: str) -> None:
        """`file` has the tokens, and is read for each request, so that a token no longer opens once it is taken out."""
        self._file = file
        self._elsewhere = f"changes are asked for over the socket {control_socket}, as the commands do"

    async def __call__(self, asked: AskedOver) -> Caller:
        """Who asks."""
        if not self._file:
            raise NotLetIn(f"{self._elsewhere}; here they need a token of the file {tokens.CONTROL}, which is not set")
        _refuse_browsers(asked)
        if not _is_of_this_host(asked):
            raise NotLetIn("only from this host, as localhost or by its loopback address")
        try:
            known = await asyncio.to_thread(tokens.load, self._file, tokens.CONTROL)
        except ConfigError as exc:
            raise NotLetIn(str(exc)) from exc
        grant = known.grant(tokens.bearer_of(asked.headers.get(b"authorization")))
        if grant is None:
            raise NotLetIn(f"{self._elsewhere}; here they need a token of the file {tokens.CONTROL}")
        who = _who(asked)
        return Caller(uid=who.uid, pid=who.pid, token=grant.name, address=who.address)


def _refuse_browsers(asked: AskedOver) -> None:
    """Let in no page of a user's browser: it may ask with what its user has, and its user knows nothing of it."""
    if is_of_page(asked.headers.given(b"origin"), asked.headers.given(b"sec-fetch-site")):
        raise NotLetIn("by no web page")


def _is_of_this_host(asked: AskedOver) -> bool:
    """Whether a request comes over the loopback or a Unix socket, and under a name of the loopback.

    A page whose name was made to mean 127.0.0.1 comes over the loopback, too, and need not say that it is a page; but
    it asks for the host that it was loaded from.
    """
    peer = _peer(asked)
    if isinstance(peer, str):
        return True
    return (
        isinstance(peer, tuple)
        and ipaddress.ip_address(peer[0]).is_loopback
        and all(_is_loopback(each) for each in asked.headers.every(b"host"))
    )


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this host's loopback, with any port or none."""
    name = re.sub(r":[0-9]*$", "", host).lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name).is_loopback
    except ValueError:
        return False


def _peer(asked: AskedOver) -> object:
    """Who asks: a tuple of address and port, or text over a Unix socket; None when the connection is gone."""
    return asked.connection.told("peername")


def _who(asked: AskedOver) -> Caller:
    """The process behind a Unix socket, or the address that a request comes from, as far as it is known."""
    peer = _peer(asked)
    if isinstance(peer, tuple):
        return Caller(address=str(peer[0]))
    connected = asked.connection.told("socket")
    return Caller() if connected is None else peer_of(cast(socket.socket, connected))  # the loops' own kind of socket
