"""Queue entries as radosgw commits them, made from the few fields that a test cares about."""

from __future__ import annotations

from remora.codec.event_entry import encode
from remora.model.entry import EventEntry, S3Event, Time
from remora.model.ledger import Tally
from remora.model.record import Page


def raw_entry(
    key: str | bytes,
    number: int = 0,
    *,
    bucket: str = "bkt",
    uri: str = "kafka://127.0.0.1:9092",
    args: str = "",
    topic: str = "t",
    created: float = 1_700_000_000.0,
    version: int = 3,
    padding: int = 0,
    limits: tuple[int, int, int] | None = None,
) -> bytes:
    """One `event_entry_t`; `number` makes its event id unique, `padding` bytes of metadata make it larger."""
    when = Time(int(created), int(created % 1 * 1e9))
    key = key.encode() if isinstance(key, str) else key
    event = S3Event(
        event_version=b"2.2",
        event_source=b"ceph:s3",
        aws_region=b"default",
        event_time=when,
        event_name=b"ObjectCreated:Put",
        user_identity=b"u1",
        source_ip_address=b"",
        x_amz_request_id=b"req.%d" % number,
        x_amz_id_2=b"1011-default-default",
        s3_schema_version=b"1.0",
        configuration_id=b"n1",
        bucket_name=bucket.encode(),
        bucket_owner_identity=b"u1",
        bucket_arn=b"arn:aws:s3:default::" + bucket.encode(),
        object_key=key,
        object_size=number,
        object_etag=b"%032x" % number,
        object_version_id=b"",
        object_sequencer=(when.sec.to_bytes(4, "little") + when.nsec.to_bytes(4, "little")).hex().upper().encode(),
        event_id=b"id-%d" % number,
        bucket_id=b"bid.1",
        metadata=((b"x-amz-meta-padding", b"p" * padding),) if padding else (),
    )
    return encode(
        EventEntry(
            event=event,
            push_endpoint=uri.encode(),
            push_endpoint_args=args.encode(),
            arn_topic=topic.encode(),
            creation_time=when if version >= 2 else None,
            time_to_live=limits[0] if limits else None,
            max_retries=limits[1] if limits else None,
            retry_sleep_duration=limits[2] if limits else None,
            version=version,
        )
    )


def delivered(page: Page) -> Tally:
    """What the removal of a whole listing is booked as when all of it was delivered."""
    return Tally(delivered=len(page.entries))
