"""Every decoder of the codec with valid input for it: what the tests of any-bytes robustness and the fuzzer run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from remora.codec import event_entry, lock_ops, queue_ops, topic
from remora.codec.rendering_cached import Renderer
from remora.model.entry import Time
from unit.codec.samples import (
    MINIMAL,
    LockerSample,
    framed,
    list_reply,
    listing_of,
    lock_info,
    queue_head,
    real_pairs,
    reservation,
    topic_object,
)


class Decoder(NamedTuple):
    """A function of bytes, and inputs that it accepts."""

    name: str
    decode: Callable[[bytes], object]
    valid: tuple[bytes, ...]


def all_decoders() -> list[Decoder]:
    """One of each, with a renderer that has seen real entries and so takes its short cuts."""
    renderer = Renderer()
    entries = (MINIMAL, *(pair.entry for pair in real_pairs()[::7]))
    renderer.render(listing_of(*entries))

    def render(entry: bytes) -> object:
        records, refused = renderer.render(listing_of(entry))
        if refused:
            raise refused[0]
        return records[0]

    open_reservations = [reservation(1, 4096, Time(1, 2), None), reservation(2, 8192, Time(3, 4), 7)]
    page = list_reply([(b"hello", b"0/24576"), (b"", b"0/24591"), (b"x" * 300, b"7/1234567")], b"8/24576")
    map_of_two = framed(lambda w: w.u32(2).raw(b"".join(open_reservations)))
    head = queue_head((3, 30_000), (4, 25_000), reservations=open_reservations, urgent_version=3, committed=9)
    return [
        Decoder("entry", event_entry.decode, entries),
        Decoder("explain", event_entry.explain, entries),
        Decoder("attributes", event_entry.attributes, entries),
        Decoder("render", render, entries),
        Decoder("listing", queue_ops.decode_listing, (page, list_reply([], b"0/24576"))),
        Decoder("reserve", queue_ops.decode_reserve, (framed(lambda w: w.u32(1)),)),
        Decoder("capacity", queue_ops.decode_capacity, (framed(lambda w: w.u64(128_000_000)),)),
        Decoder("stats", queue_ops.decode_stats, (framed(lambda w: w.u64(15).u32(1)),)),
        Decoder("reservations", queue_ops.decode_reservations, (map_of_two,)),
        Decoder("overflow reservations", queue_ops.decode_overflow_reservations, (map_of_two[6:], bytes(4))),
        Decoder("head", queue_ops.decode_head, (head[:400], queue_head()[:400])),
        Decoder("lock info", lock_ops.decode_lock_info, (lock_info([]), lock_info([LockerSample()] * 2))),
        Decoder("topics", topic.decode_topics, (topic_object("18.2.7"),)),
        Decoder("topic", topic.decode_topic, (topic_object("20.2.4"),)),
    ]
