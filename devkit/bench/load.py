"""Queue entries as radosgw commits them for objects that were PUT with version 4 signatures."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from remora.codec.event_entry import encode
from remora.codec.rendering_cached import Renderer
from remora.model.entry import EventEntry, S3Event, Time
from remora.model.record import Page, Record
from remora.model.topic import UNSET, Target

BUCKETS = 3
"""Buckets whose notifications go to one topic."""

# What differs from entry to entry, with a stand-in of the same length that occurs nowhere else.
_TIME = Time(0x4D495421, 0x21454D54)
_SIZE = 0x5A49532121215A53
_REQUEST, _KEY, _ETAG, _SEQUENCER, _EVENT, _SHA = (letter * n for letter, n in zip(
    (b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06"), (20, 10, 32, 16, 49, 64), strict=True
))  # fmt: skip
_STAND_INS = (
    _TIME.sec.to_bytes(4, "little") + _TIME.nsec.to_bytes(4, "little"),
    _REQUEST,
    _KEY,
    _SIZE.to_bytes(8, "little"),
    _ETAG,
    _SEQUENCER,
    _EVENT,
    _SHA,
)

_NOTE_OVERHEAD = len('{"key":"x-amz-meta-note","val":""},')


class Load:
    """The entries of one queue. Entry n is the same for every queue's place and every endpoint, save for names."""

    def __init__(self, place: int, target: Target, payload_bytes: int, release: int = 16, *, objects: int = 0) -> None:
        """Bodies that are smaller than `payload_bytes` (about 1,000 is the least) get a note that fills them up.

        `release` is that of the radosgw which commits such entries: 16.2.15 or 20.2.4. So many `objects` are written
        again and again, in turn; with 0 each entry has an object of its own.
        """
        self._place, self._objects = place, objects
        self._began = time.time_ns()
        self._moulds = [_mould(_template(place, bucket, target, b"", release)) for bucket in range(BUCKETS)]
        missing = payload_bytes - len(bodies([self._entry(0)])[0]) - _NOTE_OVERHEAD
        if missing > 0:
            note = b"n" * missing
            self._moulds = [_mould(_template(place, bucket, target, note, release)) for bucket in range(BUCKETS)]

    def entries(self, first: int, count: int) -> Iterator[bytes]:
        """Entries number `first` and following."""
        return map(self._entry, range(first, first + count))

    def _entry(self, number: int) -> bytes:
        sec, nsec = divmod(self._began + number * 50_000, 1_000_000_000)
        when = sec.to_bytes(4, "little") + nsec.to_bytes(4, "little")
        sha = hashlib.sha256(b"%d.%d" % (self._place, number)).hexdigest().encode()
        etag = sha[:32]
        values = (
            when,
            b"%020d" % int(sha[:15], 16),
            b"%010d" % (number % self._objects if self._objects else number),
            (number * 7919 % 50_000_000).to_bytes(8, "little"),
            etag,
            when.hex().upper().encode(),
            b"%010d.%05d.%b" % (number, self._place, etag),
            sha,
        )
        pieces = self._moulds[number % BUCKETS]
        parts = [b""] * (2 * len(values) + 1)
        parts[::2] = pieces
        parts[1::2] = values
        return b"".join(parts)


def event_id(place: int, number: int) -> bytes:
    """The part of an entry's event id that tells it from all others."""
    return b"%010d.%05d" % (number, place)


def _template(place: int, bucket: int, target: Target, note: bytes, release: int) -> bytes:
    name = b"bench-%02d-%d" % (place, bucket)
    metadata = [(b"x-amz-content-sha256", _SHA), (b"x-amz-date", b"20261121T030128Z")]
    if note:
        metadata.append((b"x-amz-meta-note", note))
    event = S3Event(
        event_version=b"2.2",
        event_source=b"ceph:s3",
        aws_region=b"",
        event_time=_TIME,
        event_name=b"ObjectCreated:Put",
        user_identity=b"dev",
        source_ip_address=b"",
        x_amz_request_id=b"47b27c29-bc9f-4a25-a2eb-d03d45ce1680.4213." + _REQUEST,
        x_amz_id_2=b"1075-default-default",
        s3_schema_version=b"1.0",
        configuration_id=b"to-" + target.topic.encode(),
        bucket_name=name,
        bucket_owner_identity=b"dev",
        bucket_arn=b"arn:aws:s3:::" + name,
        object_key=b"photos/2026/11/21/img-" + _KEY + b".jpg",
        object_size=_SIZE,
        object_etag=_ETAG,
        object_version_id=b"",
        object_sequencer=_SEQUENCER,
        event_id=_EVENT,
        bucket_id=b"47b27c29-bc9f-4a25-a2eb-d03d45ce1680.4215.%d" % bucket,
        metadata=tuple(metadata),
    )
    entry = EventEntry(
        event=event,
        push_endpoint=target.uri.encode(),
        push_endpoint_args=target.args.encode(),
        arn_topic=target.topic.encode(),
        version=1,
    )
    if release > 16:  # without a time, radosgw 20 takes them for a former release's and commits them once more
        now = Time(int(time.time()), 0)
        entry = replace(entry, version=3, creation_time=now, time_to_live=UNSET, max_retries=UNSET,
                        retry_sleep_duration=UNSET)  # fmt: skip
    return encode(entry)


def _mould(template: bytes) -> Sequence[bytes]:
    """The pieces between the stand-ins, each of which must occur once and in this order."""
    pieces, rest = [], template
    for stand_in in _STAND_INS:
        piece, found, rest = rest.partition(stand_in)
        assert found, stand_in
        assert stand_in not in rest, stand_in
        pieces.append(piece)
    return [*pieces, rest]


def bodies(entries: Sequence[bytes]) -> list[bytes]:
    """What is delivered of these entries."""
    return [record.body for record in records(entries)]


def records(entries: Sequence[bytes]) -> Sequence[Record]:
    """These entries as they are delivered."""
    found, refused = Renderer().render(Page([b""] * (len(entries) + 1), list(entries), truncated=False))
    if refused:
        raise ValueError(f"entries that cannot be decoded: {refused}")
    return found
