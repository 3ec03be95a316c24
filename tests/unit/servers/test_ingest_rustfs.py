"""What RustFS posts goes where notifications send it: a request as the source of its release 1.0.1 makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remora.model.notification import EventFilter, Notification
from support.notified import place

HOT = Notification(
    "hot", ("audit",), ("bucket",), ("s3:ObjectCreated:*",), EventFilter(metadata=(("x-amz-meta-class", "hot"),))
)
ALL = Notification("all", ("other",))


def posted(name: str, key: str, **of_object: Any) -> dict[str, Any]:
    """A request of its webhook. A key is encoded as forms are; `configurationId` is `Config` in all records."""
    return {
        "EventName": name,
        "Key": f"bucket/{key}",
        "Records": [{
            "eventVersion": "2.1", "eventSource": "rustfs:s3", "awsRegion": "", "eventTime": "2026-11-28T19:22:52.123Z",
            "eventName": name, "userIdentity": {"principalId": "rustfsadmin"},
            "requestParameters": {"region": "", "principalId": "rustfsadmin", "host": "127.0.0.1"},
            "responseElements": {"x-amz-request-id": "", "x-amz-id-2": ""},
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "Config",
                "bucket": {
                    "name": "bucket", "ownerIdentity": {"principalId": "rustfsadmin"}, "arn": "arn:aws:s3:::bucket",
                },
                "object": {"key": key, **of_object, "sequencer": "187C2B1A6F3E4D00"},
            },
            "source": {"host": "127.0.0.1", "port": "", "userAgent": "MinIO (linux; amd64) minio-go/v7"},
        }],
    }  # fmt: skip


CREATION = posted(
    "s3:ObjectCreated:Put", "deep%2Fa+b%2B%C3%A4.jpg", size=5, eTag="5d41402abc4b2a76b9719d911017c592",
    contentType="image/jpeg", userMetadata={"content-type": "image/jpeg", "x-amz-meta-class": "hot"},
)  # fmt: skip
REMOVAL = posted("s3:ObjectRemoved:Delete", "deep%2Fa+b%2B%C3%A4.jpg")


async def test_what_a_rustfs_posts_is_matched_and_stored(tmp_path: Path) -> None:
    """Keys come out as they were, metadata is matched, and a removal that has no size goes where no filter asks."""
    async with place(tmp_path, ALL, HOT) as at:
        answers = [await at.site.ask("POST", "/v1/events", each) for each in (CREATION, REMOVAL)]

        assert [(each.status, each.json["unmatched"]) for each in answers] == [(200, 0), (200, 0)]
        key = "deep/a b+\u00e4.jpg"
        assert await at.keys("audit") == {(key, "hot"): 1}
        assert await at.keys("other") == {(key, "all"): 2}
        (created, removed) = await at.found("other")
        assert (created.event_name, created.object_size) == (b"s3:ObjectCreated:Put", 5)
        assert (removed.event_name, removed.object_size) == (b"s3:ObjectRemoved:Delete", 0)


async def test_the_look_of_a_rustfs_is_answered(tmp_path: Path) -> None:
    """Before it posts, a RustFS asks for the head of its address, and takes any answer for a receiver that is there."""
    async with place(tmp_path, ALL) as at:
        assert (await at.site.ask("HEAD", "/v1/events")).status < 500
