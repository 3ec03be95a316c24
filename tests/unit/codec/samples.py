"""Real entries, hand-made replies, and strategies for the codec's tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from remora.codec.ceph import FieldWriter
from remora.model.entry import EventEntry, S3Event, Time
from remora.model.record import Page

REPOSITORY = Path(__file__).resolve().parents[3]
DATA = REPOSITORY / "tests" / "data"
FULL_DATA = REPOSITORY.parent / "shared" / "data" / "radosgw"
RELEASES = ("16.2.15", "18.2.7", "20.2.4")


class Pair(NamedTuple):
    """A queue entry, and the body that the radosgw which made it posted for it."""

    entry: bytes
    body: bytes


@cache
def real_pairs() -> tuple[Pair, ...]:
    """The captured pairs of the repository, and those of the full capture where it lies beside it."""
    found = json.loads((DATA / "radosgw-entries.json").read_text("utf-8"))
    raw = [pair for release in RELEASES for pair in found[release]]
    for release in RELEASES:
        full = FULL_DATA / f"entries-{release}.json"
        if full.exists():
            raw += json.loads(full.read_text("utf-8"))["pairs"]
    return tuple(dict.fromkeys(Pair(base64.b64decode(p["entry_b64"]), p["body"].encode()) for p in raw))


@cache
def topic_object(release: str) -> bytes:
    """A topic metadata object as a real radosgw wrote it."""
    return bytes.fromhex(json.loads((DATA / "radosgw-topics.json").read_text("utf-8"))[release]["hex"])


MINIMAL = bytes.fromhex(
    "03015401000004010501000003000000322e3207000000636570683a73330700000064656661756c7400f1536515cd5b07110000"
    "004f626a656374437265617465643a50757402000000753100000000050000007265712e3106000000686f73742d310300000031"
    "2e30020000006e3101000000620200000075311500000061726e3a6177733a73333a64656661756c743a3a62010000006b050000"
    "0000000000040000006574616700000000100000003030463135333635313543443542303716000000313730303030303030302e"
    "3132333435362e65746167050000006269642e31010000000c000000782d616d7a2d6d6574612d61010000003101000000010000"
    "00740100000076020000006f710e0000006b61666b613a2f2f623a39303932160000006b61666b612d61636b2d6c6576656c3d62"
    "726f6b657205000000746f70696301f1536500000000ffffffffffffffffffffffff"
)
"""The smallest useful entry: bucket `b`, key `k`, one piece of metadata, one tag, opaque data `oq`."""


# -------------------------------------------------------------------------------------- replies, by hand

Fields = Callable[[FieldWriter], object]


def framed(body: Fields, version: int = 1, compat: int = 1) -> bytes:
    """A versioned struct."""
    return FieldWriter().struct(version, compat, body).encoded()


def framed_requests() -> list[bytes]:
    """Requests to the sequencer for log `pool/log` of epoch 1, one of each kind, each as a frame."""
    log = b"\x12\x04pool\x1a\x03log"
    kinds = (
        b"\x20\x01",
        b"\x20\x00",
        b"\x20\x01\x28\x03",
        b"\x20\x01\x38\x05",
        b"\x20\x01\x40\x01",
        b"\x20\x01\x30\x07",
    )
    bodies = [b"\x08\x01" + log + kind for kind in kinds] + [b"\x08\x00" + log + b"\x20\x01"]
    return [len(body).to_bytes(4, "big") + body for body in bodies]


def list_reply(entries: Sequence[tuple[bytes, bytes]], next_marker: bytes, *, truncated: bool = False) -> bytes:
    """A reply of 2pc_queue_list_entries with these (data, marker) entries."""

    def body(w: FieldWriter) -> None:
        w.u8(truncated).string(next_marker).u32(len(entries))
        for data, marker in entries:
            w.raw(framed(lambda inner, d=data, m=marker: inner.string(d).string(m)))  # type: ignore[misc]  # defaults

    return framed(body)


def reservation(number: int, size: int, made: Time, entries: int | None) -> bytes:
    """An open reservation with its id in front, as maps of them hold it; version 1 without `entries`."""

    def body(w: FieldWriter) -> None:
        w.u64(size).time(made)
        if entries is not None:
            w.u32(entries)

    return FieldWriter().u32(number).encoded() + framed(body, 1 if entries is None else 2)


def queue_head(
    front: tuple[int, int] = (0, 24576),
    tail: tuple[int, int] = (0, 24576),
    *,
    ring: int = 128_000_000,
    reserved: int = 0,
    last_id: int = 0,
    reservations: Sequence[bytes] = (),
    urgent_version: int = 1,
    committed: int = 0,
) -> bytes:
    """The first bytes of a queue object."""

    def urgent(w: FieldWriter) -> None:
        w.u64(reserved).u32(last_id).u32(len(reservations)).raw(b"".join(reservations)).u8(0)
        if urgent_version > 1:
            w.u32(committed)

    def head(w: FieldWriter) -> None:
        w.u64(24576)
        for gen, offset in (front, tail):
            w.raw(framed(lambda inner, g=gen, o=offset: inner.u64(g).u64(o)))  # type: ignore[misc]  # defaults
        w.u64(24576 + ring).u64(23552).string(framed(urgent, urgent_version))

    encoded = framed(head)
    return FieldWriter().u16(0xDEAD).u64(len(encoded)).raw(encoded).encoded().ljust(2048, b"\0")


class LockerSample(NamedTuple):
    """A holder as the lock class keeps it; an IPv4 address in today's form."""

    kind: int = 8
    number: int = 4116
    cookie: str = "abcdefghijklmnop"
    expiration: Time = Time(1_700_000_090, 5)
    address: bytes = bytes.fromhex("0200 0000 7f000001 0000000000000000")
    nonce: int = 3_141_592
    description: str = ""


def lock_info(lockers: Sequence[LockerSample], kind: int = 1, tag: str = "") -> bytes:
    """A get_info reply."""

    def locker(each: LockerSample) -> bytes:
        address = framed(lambda w: w.u32(1).u32(each.nonce).string(each.address))
        return framed(lambda w: w.raw(framed_entity(each))) + framed(
            lambda w: w.time(each.expiration).u8(1).raw(address).text(each.description)
        )

    def framed_entity(each: LockerSample) -> bytes:
        return FieldWriter().u8(each.kind).s64(each.number).text(each.cookie).encoded()

    return framed(lambda w: w.u32(len(lockers)).raw(b"".join(map(locker, lockers))).u8(kind).text(tag))


# ------------------------------------------------------------------------------------------- strategies

times = st.builds(Time, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
texts = st.one_of(st.binary(max_size=12), st.text(max_size=12).map(lambda s: s.encode("utf-8", "surrogatepass")))
pairs = st.lists(st.tuples(texts, texts), max_size=4).map(tuple)


def _event(version: int) -> st.SearchStrategy[S3Event]:
    newer: dict[str, st.SearchStrategy[object]] = {}
    if version >= 2:
        newer |= {"bucket_id": texts, "metadata": pairs}
    if version >= 3:
        newer |= {"tags": pairs}
    if version >= 4:
        newer |= {"opaque_data": texts}
    if version > 4:
        newer |= {"newer_fields": st.binary(max_size=8)}
    names = [f.name for f in S3Event.__dataclass_fields__.values() if f.type == "bytes" and not _is_newer(f.name)]
    return st.builds(
        S3Event,
        version=st.just(version),
        event_time=times,
        object_size=st.integers(0, 2**64 - 1),
        **dict.fromkeys(names, texts),
        **newer,
    )


def _is_newer(name: str) -> bool:
    return name in {"bucket_id", "opaque_data", "newer_fields"}


def _entry(version: int) -> st.SearchStrategy[EventEntry]:
    limit = st.integers(0, 2**32 - 1)
    newer: dict[str, st.SearchStrategy[object]] = {}
    if version >= 2:
        newer |= {"creation_time": times}
    if version >= 3:
        newer |= {"time_to_live": limit, "max_retries": limit, "retry_sleep_duration": limit}
    if version > 3:
        newer |= {"newer_fields": st.binary(max_size=8)}
    return st.builds(
        EventEntry,
        version=st.just(version),
        event=st.integers(1, 6).flatmap(_event),
        push_endpoint=texts,
        push_endpoint_args=texts,
        arn_topic=texts,
        **newer,
    )


entries = st.integers(1, 5).flatmap(_entry)
"""Entries of every version, one newer than known included, around events of every version."""


def listing_of(*entries: bytes) -> Page:
    """A listing of these entries."""
    return Page([b"0/%d" % place for place in range(len(entries) + 1)], list(entries), truncated=False)


def with_event(entry: EventEntry, **changes: object) -> EventEntry:
    """The entry with another event inside."""
    return replace(entry, event=replace(entry.event, **changes))  # type: ignore[arg-type]  # checked by the constructor


@st.composite
def mutated(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """One of the valid encodings, damaged: bits flipped, words overwritten, parts removed, doubled or cut off."""
    data = bytearray(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                word = draw(st.sampled_from([0, 1, 2, 0x7F, 0xFF, 0x100, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF]))
                data[at : at + 4] = word.to_bytes(4, "little")
            case 2:
                del data[at:]
            case 3:
                del data[at : at + draw(st.integers(1, 8))]
            case 4:
                data[at:at] = draw(st.binary(max_size=8))
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)
