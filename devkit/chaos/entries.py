"""Queue entries as a radosgw commits them, with ids by which they are known again wherever they turn up."""

from __future__ import annotations

import random
import re
import string
import time
from dataclasses import dataclass

from remora.codec.event_entry import encode
from remora.model.entry import EventEntry, S3Event, Time

_ID = re.compile(rb"ev\.[a-z0-9]+\.[a-z0-9]+\.[0-9]{8}")
_LETTERS = string.ascii_letters + string.digits


def event_id(stream: str, number: int) -> str:
    """The id of a stream's event; `stream` is two words of letters and digits with a dot between."""
    return f"ev.{stream}.{number:08}"


def found_id(raw: bytes) -> str:
    """The id in an entry's bytes, whether or not they can be decoded; "" where there is none."""
    found = _ID.search(raw)
    return found[0].decode() if found else ""


def noise(chance: random.Random, length: int) -> str:
    """Text that no compression makes much smaller."""
    return "".join(chance.choices(_LETTERS, k=length))


def undecodable(event: str) -> bytes:
    """An entry that nobody can decode."""
    return b"\xff\xff\xff\xff broken " + event.encode()


@dataclass(frozen=True, slots=True)
class Destination:
    """The endpoint that an entry carries: its URI, its arguments and the topic in Kafka."""

    uri: str
    args: str
    topic: str


def entry(event: str, bucket: str, key: str, to: Destination, note: str = "") -> bytes:
    """A good entry, committed now."""
    now = time.time_ns()
    when = Time(now // 10**9, now % 10**9)
    return encode(
        EventEntry(
            event=S3Event(
                event_version=b"2.2",
                event_source=b"ceph:s3",
                aws_region=b"default",
                event_time=when,
                event_name=b"ObjectCreated:Put",
                user_identity=b"chaos",
                source_ip_address=b"",
                x_amz_request_id=event.encode(),
                x_amz_id_2=b"1011-default-default",
                s3_schema_version=b"1.0",
                configuration_id=b"chaos",
                bucket_name=bucket.encode(),
                bucket_owner_identity=b"chaos",
                bucket_arn=b"arn:aws:s3:::" + bucket.encode(),
                object_key=key.encode(),
                object_size=1,
                object_etag=b"fbade9e36a3f36d3d676c1b808451dd7",
                object_version_id=b"",
                object_sequencer=b"8809016B10D74030",
                event_id=event.encode(),
                bucket_id=bucket.encode(),
                metadata=((b"x-amz-meta-note", note.encode()),) if note else (),
            ),
            push_endpoint=to.uri.encode(),
            push_endpoint_args=to.args.encode(),
            arn_topic=to.topic.encode(),
            creation_time=when,
            time_to_live=None,
            max_retries=None,
            retry_sleep_duration=None,
            version=3,
        )
    )
