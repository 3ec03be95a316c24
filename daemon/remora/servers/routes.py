"""The routes of the admin and control servers: a path and a method lead to a function that gives the answer.

A connection carries one request and ends after `CONNECTION_S` at the latest, and there are at most `MOST_CONNECTIONS`
of each server, so that no client can hold the daemon's descriptors. Clients that do not ask, or do not read, keep no
probe out: the oldest of them loses its connection to the next one that comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import parse_qs

import msgspec

from remora.servers.http.begun import in_task
from remora.servers.http.connection import ConnectionPhase, ServedConnection
from remora.servers.http.connections import OpenConnections, Refused, listen
from remora.servers.http.head import VERSIONS, Headers, NotARequest
from remora.servers.http.request import BodyBroken, Peer, Request, Service
from remora.servers.http.response import CONTINUE, Response

CONNECTION_S = 30.0
MOST_CONNECTIONS = 64
MOST_BODY = 1 << 20
GOODBYE_S = 1.0
"""At the end: how long the answers under way may take, and be on their way to their readers."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AskedOver:
    """A request, and the connection that it came by."""

    request: Request
    connection: Peer

    @property
    def path(self) -> str:
        """What is asked for."""
        return self.request.head.path

    @property
    def headers(self) -> Headers:
        """Its headers."""
        return self.request.head.headers

    def parameter(self, name: str) -> str | None:
        """The parameter of this name of the target, the first one where there are several; None where there is none."""
        query = self.request.head.target.partition(b"#")[0].partition(b"?")[2].decode("utf-8", "replace")
        return parse_qs(query, keep_blank_values=True).get(name, [None])[0]

    async def body(self) -> bytes:
        """Its body. Raises BodyBroken, and NotAnswered for one that is longer than `MOST_BODY`."""
        if self.request.head.waits_to_go_on:
            self.request.tell(CONTINUE)
        body = bytearray()
        while piece := await self.request.content.read():
            body += piece
            if len(body) > MOST_BODY:
                raise NotAnswered(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return bytes(body)


Answering = Callable[[AskedOver], Awaitable[Response]]
"""Answers a question, or raises NotAnswered or BodyBroken. Anything else is a defect: 500, and the log has it."""


@dataclass(frozen=True, slots=True)
class ServedPath:
    """A path and how it is answered: to GET and HEAD, or to POST where it `changes` something."""

    path: str
    answer: Answering
    changes: bool = False


class NotAnswered(Exception):
    """A request that gets no answer but a status, with a line that says why."""

    def __init__(self, status: HTTPStatus, why: str = "", headers: Mapping[str, str] = _NO_HEADERS) -> None:
        super().__init__(why or status.phrase)
        self.status = status
        self.headers = headers


def json_answer(status: int, value: Mapping[str, object]) -> Response:
    """An answer in JSON."""
    return Response(status, msgspec.json.encode(value) + b"\n", {"Content-Type": "application/json"})


class _Router(Service):
    """Answers by routes."""

    stopping = False

    def __init__(self, paths: Iterable[ServedPath]) -> None:
        self._paths: dict[str, dict[str, Answering]] = {}
        for each in paths:
            methods = ("POST",) if each.changes else ("GET", "HEAD")
            self._paths.setdefault(each.path, {}).update(dict.fromkeys(methods, each.answer))

    async def answer(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> None:
        """As `Service`."""
        await in_task()
        try:
            response = await self._found(request)(AskedOver(request, connection))
        except Exception as exc:
            response = self.refuse(request, exc, connection.peer)
        answered(_last(response))

    def _found(self, request: Request) -> Answering:
        """How the path is answered. Raises NotAnswered."""
        head = request.head
        if head.version not in VERSIONS:
            raise NotAnswered(HTTPStatus.BAD_REQUEST, f"expected HTTP/1.1, not HTTP/{head.version}")
        if (methods := self._paths.get(head.path)) is None:
            raise NotAnswered(HTTPStatus.NOT_FOUND)
        if (found := methods.get(head.method)) is None:
            raise NotAnswered(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ",".join(sorted(methods))})
        return found

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        """As `Service`."""
        match exc:
            case NotAnswered(status=status, headers=headers):
                return _last(_line(status, str(exc), headers))
            case NotARequest() | BodyBroken():
                return _last(_line(HTTPStatus.BAD_REQUEST, str(exc)))
        context = {"message": f"a request of {peer or 'a local process'} failed", "exception": exc}
        asyncio.get_running_loop().call_exception_handler(context)
        return _last(_line(HTTPStatus.INTERNAL_SERVER_ERROR, "the daemon's log has the reason"))


def _line(status: HTTPStatus, why: str, headers: Mapping[str, str] = _NO_HEADERS) -> Response:
    text = f"{status.value}: {why}\n".encode(errors="replace")
    return Response(status, text, {"Content-Type": "text/plain; charset=utf-8", **headers})


def _last(response: Response) -> Response:
    """The answer, with which its connection ends, and which nobody keeps."""
    response.headers = {**response.headers, "Cache-Control": "no-store"}
    response.close()
    return response


class _FewConnections(OpenConnections):
    """The connections of one server, each for a while."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    def accept(self) -> asyncio.Protocol:
        """The protocol for a connection that was accepted. Where there is one too many, the oldest of those ends whose
        client is waited for; where there is none the new one is closed at once."""
        if len(self) >= MOST_CONNECTIONS:
            waited_for = (each for each in self._open if each.phase is not ConnectionPhase.ANSWER)
            if (oldest := next(waited_for, None)) is None:
                return Refused()
            oldest.cut()
            self.lost(oldest)  # now, for those that are accepted before its transport tells
        return ServedConnection(self, self._service)

    def made(self, connection: ServedConnection) -> None:
        """As `OpenConnections`."""
        super().made(connection)
        self._loop.call_later(CONNECTION_S, connection.cut)


@contextlib.asynccontextmanager
async def served(paths: Iterable[ServedPath], sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve these paths on sockets that listen while the block runs."""
    connections = _FewConnections(_Router(paths))
    try:
        with contextlib.ExitStack() as stack:
            for each in sockets:
                # Of a copy, since a listener closes its socket: a server that failed is begun again on the same one.
                await listen(stack, each.dup(), connections.accept)
            yield
    finally:
        await connections.finished(GOODBYE_S)
        await connections.close(GOODBYE_S)
