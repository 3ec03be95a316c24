"""A queue entry in full, as radosgw commits it: the event, and its topic's attributes at that time.

Strings are bytes, because an object key may be any bytes. Each struct keeps its versions and what a newer
writer appended, so that encoding a decoded entry gives the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Pairs = tuple[tuple[bytes, bytes], ...]
"""A map or multimap of strings in encoded order."""


class Time(NamedTuple):
    """A point in time as it is encoded: seconds and nanoseconds since the epoch, 32 bits each.

    Kept as two numbers, since an encoded `nsec` may exceed a second and must survive a round trip.
    """

    sec: int
    nsec: int

    @property
    def ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self.sec * 1_000_000_000 + self.nsec


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Event:
    """What happened to an object (`rgw_pubsub_s3_event`).

    `bucket_id` and `metadata` came with version 2, `tags` with version 3, `opaque_data` with version 4; older
    events have them empty. `sequencer` is 16 hex digits: the little-endian bytes of seconds and nanoseconds.
    """

    event_version: bytes
    event_source: bytes
    aws_region: bytes
    event_time: Time
    event_name: bytes
    user_identity: bytes
    source_ip_address: bytes
    x_amz_request_id: bytes
    x_amz_id_2: bytes
    s3_schema_version: bytes
    configuration_id: bytes
    bucket_name: bytes
    bucket_owner_identity: bytes
    bucket_arn: bytes
    object_key: bytes
    object_size: int
    object_etag: bytes
    object_version_id: bytes
    object_sequencer: bytes
    event_id: bytes
    bucket_id: bytes = b""
    metadata: Pairs = ()
    tags: Pairs = ()
    opaque_data: bytes = b""
    version: int = 4
    compat: int = 1
    newer_fields: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """One entry of a queue (`event_entry_t`).

    `creation_time` is None before version 2, and the three limits are None before version 3; in version 3 each
    limit is UNSET (model.topic) where the topic leaves it to the gateway's options. `arn_topic` is the plain
    name of the topic to send to. The endpoint and its arguments may hold credentials, so they are not shown.
    """

    event: S3Event
    push_endpoint: bytes = field(repr=False)
    push_endpoint_args: bytes = field(repr=False)
    arn_topic: bytes
    creation_time: Time | None = None
    time_to_live: int | None = None
    max_retries: int | None = None
    retry_sleep_duration: int | None = None
    version: int = 3
    compat: int = 1
    newer_fields: bytes = b""
