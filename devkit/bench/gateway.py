"""Objects that many writers put into a bucket of a cluster's radosgw, and delete, over connections that last."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

from devkit.bench.clusters import BenchError
from devkit.clusters.s3_signature import signed


class Bucket:
    """A new bucket. Each writer has a connection of its own, which it names by its number."""

    def __init__(self, env: Mapping[str, Any], writers: int) -> None:
        """`env` is the cluster's."""
        self._env = env
        self._host = env["s3"]["endpoint"].removeprefix("http://")
        self._name = f"bench-{uuid.uuid4().hex[:12]}"
        self._connections = [HTTPConnection(self._host, timeout=120) for _ in range(writers)]
        self.keys: deque[str] = deque()
        """Of the objects that were put under a key of their own, and not deleted."""
        self._request(0, "PUT", f"/{self._name}", b"")

    def put(self, writer: int, body: bytes) -> None:
        """Put an object that no other one has the key of."""
        key = uuid.uuid4().hex
        self.overwrite(writer, key, body)
        self.keys.append(key)

    def overwrite(self, writer: int, key: str, body: bytes) -> None:
        """Put an object in place of the one that had its key."""
        self._request(writer, "PUT", f"/{self._name}/{key}", body)

    def delete(self, writer: int) -> bool:
        """Delete the object that was put first; whether there was one."""
        try:
            key = self.keys.popleft()
        except IndexError:
            return False
        self._request(writer, "DELETE", f"/{self._name}/{key}", b"")
        return True

    def close(self) -> None:
        """Close the connections. Each is opened anew when it is used: radosgw ends those that were idle for long."""
        for connection in self._connections:
            connection.close()

    def _request(self, writer: int, method: str, path: str, body: bytes) -> None:
        connection = self._connections[writer]
        connection.request(method, path, body, signed(method, path, self._host, self._env))
        answer = connection.getresponse()
        said = answer.read()
        if answer.status not in (200, 204):
            raise BenchError(f"radosgw answers {method} {path} with {answer.status}: {said[:200]!r}")
