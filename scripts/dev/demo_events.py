"""The events that the embedded demo sends: S3 records in the order in which their keys were changed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Event = tuple[str, int]
"""A notification as its cause knows it: the event's name, and the size of the object, which no two writes share."""

ODD_KEYS = [
    "with space", "per%cent&amp;+plus", 'quote"s', "back\\slash", "slash//es/", "naïve-中文-😀", "{json}: [1]", "tab\t",
]  # fmt: skip


@dataclass
class Traffic:
    """Changes of one bucket's objects; remembers, per key, what must arrive and in which order."""

    bucket: str
    seed: int
    expected: dict[bytes, list[Event]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._keys = [f"2026/{number:03}.jpg" for number in range(200)] + ODD_KEYS

    def records(self, number: int) -> list[dict[str, Any]]:
        """So many further records, of keys drawn at random."""
        return [self._record(self._random.choice(self._keys)) for _ in range(number)]

    def forget(self, records: Sequence[dict[str, Any]]) -> None:
        """Records that are given up, the last ones that were made, must not arrive."""
        for record in reversed(records):
            self.expected[_key(record)].pop()
            self.count -= 1

    def _record(self, key: str) -> dict[str, Any]:
        self.count += 1
        name = self._random.choice(["ObjectCreated:Put", "ObjectCreated:Copy", "ObjectRemoved:Delete"])
        record = {
            "eventVersion": "2.2",
            "eventSource": "ceph:s3",
            "awsRegion": "default",
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "eventName": name,
            "userIdentity": {"principalId": "demo"},
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": self.bucket, "ownerIdentity": {"principalId": "demo"}},
                "object": {
                    "key": key,
                    "size": self.count,
                    "eTag": f"{self.count:032x}",
                    "sequencer": f"{self.count:016X}",
                },
            },
        }
        self.expected.setdefault(_key(record), []).append((name, self.count))
        return record


def ndjson(records: Sequence[dict[str, Any]]) -> bytes:
    """One record a line."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def batches(records: Sequence[dict[str, Any]], size: int) -> Iterator[Sequence[dict[str, Any]]]:
    """The records in pieces of at most this size."""
    return (records[at : at + size] for at in range(0, len(records), size))


def _key(record: dict[str, Any]) -> bytes:
    return f"{record['s3']['bucket']['name']}/{record['s3']['object']['key']}".encode()
