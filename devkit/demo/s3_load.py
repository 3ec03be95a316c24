"""What the demo does through S3, and a record of it: per key, the notifications that it must cause, in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

AT_ONCE = 8

PLAIN_KEYS = [f"photos/{number:02}.jpg" for number in range(24)]
ODD_KEYS = [
    "with space", "per%cent&amp;+plus", 'quote"s', "back\\slash", "slash//es/", "naïve-中文-😀", "{json}: [1]",
    "tab\t", "line\nfeed", "carriage\rreturn", "del\x7f", "unit\x1f",
]  # fmt: skip
SOURCE = "the source of all copies"

Event = tuple[str, int]
"""A notification as its cause knows it: the event's name, and the size of the object, which no two writes share."""


@dataclass
class Load:
    """Runs the operations of one round after the other; those of a key one by one, the keys side by side."""

    s3: Any
    bucket: str
    expected: dict[str, list[Event]] = field(default_factory=dict)
    _size: int = 0

    @property
    def count(self) -> int:
        """Notifications so far."""
        return sum(map(len, self.expected.values()))

    async def round(self) -> None:
        """Write, overwrite, copy to, upload in parts, delete and write again each of the keys."""
        await self._put(SOURCE)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one_key(key: str) -> None:
            async with gate:
                await self._life(key)

        async with asyncio.TaskGroup() as tasks:
            for key in PLAIN_KEYS + ODD_KEYS:
                tasks.create_task(one_key(key))

    async def _life(self, key: str) -> None:
        await self._put(key)
        await self._put(key, Metadata={"owner": "demo", "colour": "blau grün".encode().hex()}, Tagging="a=1&b=two")
        await self._copy(key)
        if key.isprintable():  # the answer to the first step of an upload quotes the key in XML, which allows no others
            await self._upload(key)
        await self._delete(key)
        await self._put(key)

    async def _put(self, key: str, **options: object) -> None:
        size = self._new_size()
        await self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"x" * size, **options)
        self._expect("ObjectCreated:Put", key, size)

    async def _copy(self, key: str) -> None:
        await self.s3.copy_object(Bucket=self.bucket, Key=key, CopySource={"Bucket": self.bucket, "Key": SOURCE})
        self._expect("ObjectCreated:Copy", key, self.expected[SOURCE][-1][1])

    async def _upload(self, key: str) -> None:
        size = self._new_size()
        upload = {"Bucket": self.bucket, "Key": key}
        upload["UploadId"] = (await self.s3.create_multipart_upload(**upload))["UploadId"]
        part = await self.s3.upload_part(**upload, PartNumber=1, Body=b"x" * size)
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        await self.s3.complete_multipart_upload(**upload, MultipartUpload=parts)
        self._expect("ObjectCreated:CompleteMultipartUpload", key, size)

    async def _delete(self, key: str) -> None:
        await self.s3.delete_object(Bucket=self.bucket, Key=key)
        self._expect("ObjectRemoved:Delete", key, self.expected[key][-1][1])

    def _expect(self, event: str, key: str, size: int) -> None:
        self.expected.setdefault(key, []).append((event, size))

    def _new_size(self) -> int:
        self._size += 1
        return self._size
