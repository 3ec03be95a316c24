"""HTTP requests to the ingest API, put together by hand: nothing of remora's own client is used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

NDJSON, JSON = "application/x-ndjson", "application/json"

PAUSE_S = 0.05
"""Between two tries of a request that was not answered."""

CUT_S = 2.0
"""How long a client tries to send half of a request."""


class Event(NamedTuple):
    """One event to store."""

    id: str
    bucket: str
    key: str

    def record(self) -> dict[str, Any]:
        """As an S3 event record: of some objects exactly as radosgw writes it, of others in another way."""
        opaque = {"opaqueData": ""} if len(self.key) % 2 else {}
        return {
            "eventVersion": "2.2",
            "eventSource": "ceph:s3",
            "awsRegion": "",
            "eventTime": "2026-11-21T03:01:28.808357Z",
            "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "chaos"},
            "requestParameters": {"sourceIPAddress": ""},
            "responseElements": {"x-amz-request-id": self.id, "x-amz-id-2": "1075-default-default"},
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "chaos",
                "bucket": {
                    "name": self.bucket,
                    "ownerIdentity": {"principalId": "chaos"},
                    "arn": f"arn:aws:s3:::{self.bucket}",
                    "id": f"{self.bucket}.1",
                },
                "object": {
                    "key": self.key,
                    "size": 1,
                    "eTag": "fbade9e36a3f36d3d676c1b808451dd7",
                    "versionId": "",
                    "sequencer": "8809016B10D74030",
                    "metadata": [{"key": "x-amz-meta-note", "val": "n" * (sum(self.id.encode()) % 400)}],
                    "tags": [],
                },
            },
            "eventId": self.id,
            **opaque,
        }


def lines(events: Sequence[Event]) -> bytes:
    """Events as NDJSON."""
    return b"".join(json.dumps(each.record()).encode() + b"\n" for each in events)


def document(events: Sequence[Event]) -> bytes:
    """Events as gateways post them."""
    return json.dumps({"Records": [each.record() for each in events]}).encode()


@dataclass(frozen=True)
class Request:
    """One request; `key` is its idempotency key."""

    method: str
    path: str
    body: bytes = b""
    type: str = ""
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        named = {"Content-Type": self.type, "Idempotency-Key": self.key}
        return {name: value for name, value in named.items() if value}


class Answer(NamedTuple):
    """What was answered; the body of a refusal is text."""

    status: int
    body: Any

    @property
    def is_final(self) -> bool:
        """Whether asking again would only give the same; a server that is full or away wants to be asked again."""
        return self.status not in (500, 503, 507)


class Undecided(Exception):
    """A request was not answered for good in time."""


class Connection:
    """What one client sends its requests through; connections that break are made anew."""

    def __init__(self, socket: str, on_answer: Callable[[], None] = lambda: None, timeout_s: float = 30.0) -> None:
        self._socket = socket
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(socket), timeout=aiohttp.ClientTimeout(total=timeout_s)
        )
        self._on_answer = on_answer

    async def close(self) -> None:
        await self._session.close()

    async def once(self, request: Request) -> Answer | None:
        """Ask once; None when nothing is known of the outcome."""
        try:
            async with self._session.request(
                request.method, f"http://remora{request.path}", data=request.body or None, headers=request.headers
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        self._on_answer()
        try:
            return Answer(answer.status, json.loads(body) if body else None)
        except ValueError:
            return Answer(answer.status, body.decode(errors="replace"))

    async def hang_up(self, request: Request, after_s: float) -> Answer | None:
        """Ask, and close the connection before the answer, unless that came sooner."""
        try:
            async with asyncio.timeout(after_s):
                return await self.once(request)
        except TimeoutError:
            return None

    async def cut(self, request: Request, share: float) -> None:
        """Send the head and this share of the body, less than all of it, and close the connection."""
        named = {"Host": "remora", "Content-Length": str(len(request.body)), **request.headers}
        head = f"{request.method} {request.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in named.items())
        part = request.body[: min(int(share * len(request.body)), len(request.body) - 1)]
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CUT_S):
                _, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(head.encode() + b"\r\n" + part)
                    await writer.drain()
                finally:
                    writer.close()
                await writer.wait_closed()

    async def decided(self, request: Request, patience_s: float) -> tuple[Answer, int]:
        """Ask until there is an answer for good; it, and how often was asked before it. Raises Undecided."""
        deadline = asyncio.get_running_loop().time() + patience_s
        tries = 0
        while True:
            answer = await self.once(request)
            if answer and answer.is_final:
                return answer, tries
            if asyncio.get_running_loop().time() > deadline:
                raise Undecided(f"{request.method} {request.path} {request.key}: {answer or 'no answer'}")
            tries += 1
            await asyncio.sleep(PAUSE_S)
