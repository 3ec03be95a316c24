"""`POST /v1/sources/seaweedfs`: what SeaweedFS posts goes where notifications send it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.model.notification import EventFilter, Notification
from remora.servers import tokens
from support.notified import THUMBNAILS, place
from unit.codec.samples import DATA

SEAWEEDFS = "/v1/sources/seaweedfs"
POSTED = [json.loads(line)["body"] for line in (DATA / "seaweedfs-4.44.jsonl").read_text("utf-8").splitlines()]
CREATION = next(each for each in POSTED if each["key"] == "/buckets/bucket/plain" and each["event_type"] == "create")
NOTHING = next(each for each in POSTED if each["key"] == "/buckets/bucket")

ALL = Notification("all", ("other",))
HOT = Notification(
    "hot", ("audit",), ("bucket",), ("s3:ObjectCreated:*",), EventFilter(metadata=(("x-amz-meta-class", "hot"),))
)


async def test_everything_that_a_seaweedfs_posted(tmp_path: Path) -> None:
    """Of all that a real SeaweedFS posted the changes of objects are stored, each where its notifications send it."""
    async with place(tmp_path, ALL, HOT) as at:
        for each in POSTED:
            assert (await at.site.ask("POST", SEAWEEDFS, each)).status == 200

        assert await at.keys("audit") == {("plain", "hot"): 1}
        times = {
            "plain": 4, "deep/er/a b+c%25\u00e4.jpg": 2, "empty": 1, "folder/": 1, "multi/part": 1, "v/k": 3,
            "copied": 2, "renamed": 1,
        }  # fmt: skip
        assert await at.keys("other") == {(key, "all"): count for key, count in times.items()}
        assert at.site.metric("remora_ingest_unmatched_total") == 0


async def test_a_change_of_no_object_is_answered_and_stored_nowhere(tmp_path: Path) -> None:
    """A bucket's own folder is no object: it is no event, and not one that matches nothing."""
    async with place(tmp_path, THUMBNAILS, unmatched="refuse") as at:
        answer = await at.site.ask("POST", SEAWEEDFS, NOTHING)

        assert (answer.status, answer.json) == (200, {"accepted": 0, "unmatched": 0, "topics": {}})
        assert (await at.site.ask("POST", SEAWEEDFS, CREATION)).code == "NoNotificationMatches"


async def test_refusals(tmp_path: Path) -> None:
    """Another body, another type and a body of S3's kind are refused; an empty one, too, which is no SeaweedFS'."""
    async with place(tmp_path, ALL) as at:
        bodies: list[dict[str, Any] | bytes] = [{"Records": []}, b"", b"[1]"]
        for body in bodies:
            assert (await at.site.ask("POST", SEAWEEDFS, body)).code == "MalformedEvent"
        lines = await at.site.ask("POST", SEAWEEDFS, CREATION, {"Content-Type": "application/x-ndjson"})
        assert lines.status == 415
        assert (await at.site.ask("POST", "/v1/events", b"")).code == "MalformedEvent"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"key": ', '"key": "/buckets/other/plain", "key": ', "key"),
        ('"new_entry": ', '"new_entry": null, "new_entry": ', "message.new_entry"),
        ('"file_size": ', '"file_size": 1, "file_size": ', "message.new_entry.attributes.file_size"),
    ],
)
async def test_a_name_that_stands_twice(tmp_path: Path, old: str, new: str, field: str) -> None:
    """A posting that says something twice is 422 with the place, since a proxy may have read the other one."""
    body = json.dumps(CREATION)
    assert body.count(old) == 1
    async with place(tmp_path, ALL) as at:
        answer = await at.site.ask("POST", SEAWEEDFS, body.replace(old, new).encode())

        assert (answer.status, answer.code, answer.json["field"]) == (422, "MalformedEvent", field)
        assert await at.keys("other") == {}


async def test_a_token_of_buckets(tmp_path: Path) -> None:
    """A token counts as for events of S3's kind: it needs a right to the bucket."""
    mine, others = tokens.new_token(), tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{tokens.line_of('a', mine, '', 'bucket')}\n{tokens.line_of('b', others, '*', 'photos')}\n")
    async with place(tmp_path, ALL, tokens=str(path)) as at:

        async def status(token: str, posting: dict[str, Any]) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return (await at.site.ask("POST", SEAWEEDFS, posting, headers)).status

        assert await status("", NOTHING) == 401
        assert await status(others, CREATION) == 403
        assert await at.keys("other") == {}
        assert await status(mine, CREATION) == 200
        assert await at.keys("other") == {("plain", "all"): 1}


async def test_a_repeat_under_its_key(tmp_path: Path) -> None:
    """A proxy that adds an idempotency key has a posting stored once."""
    async with place(tmp_path, replace(ALL, topics=("other", "audit"))) as at:
        answers = [await at.site.ask("POST", SEAWEEDFS, CREATION, {"Idempotency-Key": "k"}) for _ in range(2)]

        assert [each.json["topics"] for each in answers] == [{"other": 1, "audit": 1}] * 2
        assert await at.keys("other") == {("plain", "all"): 1}
