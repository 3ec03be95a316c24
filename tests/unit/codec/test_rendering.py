"""What was compiled agrees with the plain way, whatever it has seen before."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.codec import event_entry, rendering_cached, rendering_plain, speedups
from remora.codec.event_entry import decode, encode
from remora.codec.rendering_cached import Renderer
from remora.codec.rendering_plain import Rendered
from remora.model.entry import EventEntry, Time
from remora.model.errors import CodecError
from remora.model.record import Page, Record
from unit.codec.samples import MINIMAL, entries, listing_of, mutated, real_pairs, texts, with_event

if TYPE_CHECKING:
    from remora.codec._compiled import CompiledRendering

needs_compiled = pytest.mark.skipif(speedups.CompiledRendering is None, reason="nothing was compiled")
each_way = pytest.mark.parametrize("compiled", dict.fromkeys([None, speedups.CompiledRendering]))
opaques = st.none() | st.sampled_from([b"", b"now", b'"\n\xff'])


def plainly(data: bytes, opaque: bytes | None = None) -> Rendered | str:
    """What must come out, by the plain way; a refusal as its text."""
    try:
        entry = decode(data)
    except CodecError as error:
        return str(error)
    return (
        rendering_plain.key(entry.event),
        rendering_plain.body(entry, opaque),
        entry.event.event_id,
        rendering_plain.created_ns(entry),
        entry.event.event_time.ns,
    )


def rendered(renderer: Renderer, data: bytes, opaque: bytes | None = None) -> Rendered | str:
    """What the renderer makes of it; a refusal as its text."""
    records, refused = renderer.render(listing_of(data), opaque)
    assert len(records) + len(refused) == 1
    return (*records[0][:4], records[0].event_ns) if records else str(refused[0])


def fast(renderer: Renderer, data: bytes) -> Rendered | None:
    """What the short cuts make of it, None when they leave it to the plain way."""
    assert renderer._compiled is not None

    def plain(entry: bytes) -> Rendered:
        raise CodecError("entry", 0, "left to the plain way")

    records, _ = renderer._compiled.render([data], [b"0/0", b"0/1"], None, plain)
    return (*records[0][:4], records[0].event_ns) if records else None


def test_the_compiled_way_is_there() -> None:
    """It was built, and is what a renderer takes: else the tests that compare it are left out, unnoticed."""
    if speedups.IMPLEMENTATION != "compiled" and not os.environ.get("CI"):
        pytest.skip("nothing was compiled: install a C compiler and Python's headers, and run scripts/setup")
    assert (speedups.IMPLEMENTATION, type(Renderer()._compiled)) == ("compiled", speedups.CompiledRendering)


@pytest.mark.parametrize(("pure", "expected"), [("", speedups.IMPLEMENTATION), ("1", "python")])
def test_the_compiled_way_can_be_left_out(pure: str, expected: str) -> None:
    """REMORA_PURE_PYTHON=1 is for finding out whether what was compiled is to blame."""
    program = "from remora.codec import speedups; print(speedups.IMPLEMENTATION)"
    found = subprocess.run(
        [sys.executable, "-c", program], env={"REMORA_PURE_PYTHON": pure}, capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == expected


@needs_compiled
def test_real_entries_become_what_radosgw_posted() -> None:
    """The first sight of an entry, which is decoded in full, and the second, which is not, give radosgw's bytes."""
    renderer = Renderer()

    for pair in real_pairs():
        assert rendered(renderer, pair.entry)[1] == pair.body
    for pair in real_pairs():
        assert rendered(renderer, pair.entry) == plainly(pair.entry)
        assert fast(renderer, pair.entry) == plainly(pair.entry)


@needs_compiled
@settings(max_examples=150)
@given(st.lists(st.tuples(entries, opaques), max_size=4))
def test_entries_of_every_version_agree_with_the_plain_way(some: Sequence[tuple[EventEntry, bytes | None]]) -> None:
    """Key, body, event id, age and time are the same on first and on second sight, with and without opaque data."""
    renderer = Renderer()

    for entry, opaque in [*some, *some]:
        data = encode(entry)
        assert rendered(renderer, data, opaque) == plainly(data, opaque)


@each_way
@settings(max_examples=150)
@given(st.lists(entries.map(encode) | mutated([MINIMAL, *(p.entry for p in real_pairs()[::11])]), max_size=12), opaques)
def test_a_listing_is_divided_in_order(
    compiled: type[CompiledRendering] | None, some: Sequence[bytes], opaque: bytes | None
) -> None:
    """Each entry of a listing is a record, with its place and the positions around it, or refused; in order."""
    page, renderer = listing_of(*some), Renderer(compiled)

    for _ in range(2):  # the second time from what the renderer remembers
        records, refused = renderer.render(page, opaque)

        found: dict[int, Rendered | str] = {each.ordinal: (*each[:4], each.event_ns) for each in records}
        found |= {place: str(exc) for place, exc in refused.items()}
        assert [found[place] for place in range(len(some))] == [plainly(data, opaque) for data in some]
        assert len(records) + len(refused) == len(some)
        assert [each.ordinal for each in records] == sorted(each.ordinal for each in records)
        for each in records:
            assert type(each) is Record
            assert (each.position, each.next_position) == tuple(page.positions[each.ordinal : each.ordinal + 2])


@needs_compiled
def test_a_defect_in_the_plain_way_is_no_refusal() -> None:
    """What is raised besides CodecError comes out, so that no entry is parked for an error of ours."""

    def plain(entry: bytes) -> Rendered:
        raise ZeroDivisionError

    assert speedups.CompiledRendering is not None
    with pytest.raises(ZeroDivisionError):
        speedups.CompiledRendering({}, {}, {}).render([MINIMAL], [b"0/0", b"0/1"], None, plain)


@each_way
def test_positions_that_are_missing_are_noticed(compiled: type[CompiledRendering] | None) -> None:
    """A listing without the position behind its last entry is an error."""
    renderer = Renderer(compiled)

    with pytest.raises(IndexError):
        renderer.render(Page([b"0/0"], [MINIMAL], truncated=False))


varying = st.fixed_dictionaries(
    {},
    optional={
        "event_time": st.builds(Time, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
        "x_amz_request_id": texts,
        "object_key": texts,
        "object_size": st.integers(0, 2**64 - 1),
        "object_etag": texts,
        "object_version_id": texts,
        "object_sequencer": texts | st.sampled_from([b"00F1536515CD5B07", b"00f1536515cd5b07", b"0" * 16, b"g" * 16]),
        "event_id": texts,
        "metadata": st.lists(st.tuples(texts, texts), max_size=40).map(tuple),
        "tags": st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    },
)


@needs_compiled
@settings(max_examples=300)
@given(st.sampled_from(real_pairs()), st.lists(varying, min_size=1, max_size=4), opaques)
def test_events_of_a_known_bucket_agree_with_the_plain_way(
    pair: object, events: list[dict[str, object]], opaque: bytes | None
) -> None:
    """After an entry of a bucket was seen, others of it with any other values in the varying fields agree."""
    renderer = Renderer()
    known = getattr(pair, "entry", b"")
    rendered(renderer, known)

    for changes in events:
        data = encode(with_event(decode(known), **changes))
        assert rendered(renderer, data, opaque) == plainly(data, opaque)


@needs_compiled
@settings(max_examples=1000)
@given(st.lists(mutated([MINIMAL, *(p.entry for p in real_pairs()[::11])]), min_size=1, max_size=3), opaques)
def test_damaged_entries_agree_with_the_plain_way(damaged: list[bytes], opaque: bytes | None) -> None:
    """A damaged entry gives the plain way's bytes or its error, with every region of its origin remembered."""
    renderer = Renderer()
    rendered(renderer, MINIMAL)
    for pair in real_pairs()[::11]:
        rendered(renderer, pair.entry)

    for data in damaged:
        assert rendered(renderer, data, opaque) == plainly(data, opaque)


@needs_compiled
@pytest.mark.parametrize("number", [0, 5, -1])
def test_an_entry_cut_off_anywhere_is_refused_as_the_plain_way_refuses_it(number: int) -> None:
    """The renderer, having seen the whole entry, takes none of its prefixes for one."""
    data = real_pairs()[number].entry
    renderer = Renderer()
    rendered(renderer, data)

    for cut in range(len(data)):
        assert isinstance(rendered(renderer, data[:cut]), str)
        assert rendered(renderer, data[:cut]) == plainly(data[:cut])


@needs_compiled
@pytest.mark.parametrize("number", [0, 5, -1])
def test_an_entry_with_fields_missing_at_its_end_is_refused(number: int) -> None:
    """Though the entry's own length fits what is left of it, missing fields are noticed."""
    data = real_pairs()[number].entry
    renderer = Renderer()
    rendered(renderer, data)

    for missing in range(1, 60):
        changed = data[:2] + (len(data) - 6 - missing).to_bytes(4, "little") + data[6:-missing]
        assert isinstance(rendered(renderer, changed), str)
        assert rendered(renderer, changed) == plainly(changed)


@needs_compiled
@pytest.mark.parametrize("word", [0, 1, 0xFF, 0x100, 0xFFFF_FFFF])
def test_an_overwritten_word_anywhere_agrees_with_the_plain_way(word: int) -> None:
    """Each four bytes of an entry overwritten, lengths and counts included, give the plain way's result."""
    for data in (MINIMAL, real_pairs()[-1].entry):
        renderer = Renderer()
        rendered(renderer, data)
        for at in range(len(data) - 3):
            changed = data[:at] + word.to_bytes(4, "little") + data[at + 4 :]
            assert rendered(renderer, changed) == plainly(changed)


@needs_compiled
@pytest.mark.parametrize("at", [0, 1, 6, 7])
def test_other_versions_of_known_regions_agree_with_the_plain_way(at: int) -> None:
    """Any version or compat of entry and event, around regions that are all known, gives the plain way's result."""
    renderer = Renderer()
    rendered(renderer, MINIMAL)

    for value in range(12):
        changed = MINIMAL[:at] + bytes([value]) + MINIMAL[at + 1 :]
        assert rendered(renderer, changed) == plainly(changed)
        assert rendered(renderer, changed, b"now") == plainly(changed, b"now")


REGION_FIELDS = [
    "event_version",
    "event_source",
    "aws_region",
    "event_name",
    "user_identity",
    "source_ip_address",
    "x_amz_id_2",
    "s3_schema_version",
    "configuration_id",
    "bucket_name",
    "bucket_owner_identity",
    "bucket_arn",
    "bucket_id",
    "opaque_data",
]


@needs_compiled
@pytest.mark.parametrize("field", REGION_FIELDS)
def test_a_region_that_differs_late_is_not_taken_for_a_known_one(field: str) -> None:
    """Entries that are equal for hundreds of bytes of a repeating field, and differ behind, keep their own values."""
    base = decode(MINIMAL)
    same = b"s" * 300
    one, two, short = (with_event(base, **{field: same + end}) for end in (b"one", b"two", b""))
    renderer = Renderer()

    for _ in range(3):
        for entry in (one, two, short):
            assert rendered(renderer, encode(entry)) == plainly(encode(entry))


@needs_compiled
def test_bytes_moved_between_neighbouring_fields_are_not_taken_for_a_known_region() -> None:
    """The same characters, divided differently among the fields of a region, are another region."""
    base = decode(MINIMAL)
    one = with_event(base, bucket_name=b"ab", bucket_owner_identity=b"c", event_name=b"xy", user_identity=b"z")
    two = with_event(base, bucket_name=b"a", bucket_owner_identity=b"bc", event_name=b"x", user_identity=b"yz")
    renderer = Renderer()

    for entry in (one, two, one, two):
        assert rendered(renderer, encode(entry)) == plainly(encode(entry))


@needs_compiled
def test_a_region_seen_in_a_refused_entry_is_not_remembered() -> None:
    """An entry that cannot be decoded leaves nothing behind for the next one to hit."""
    renderer = Renderer()
    broken = MINIMAL[:-1]

    assert isinstance(rendered(renderer, broken), str)
    assert fast(renderer, MINIMAL) is None
    assert rendered(renderer, MINIMAL) == plainly(MINIMAL)


@needs_compiled
def test_changed_attributes_of_a_known_bucket_do_not_hide_its_events() -> None:
    """Another endpoint, or other opaque data, behind the same bucket is noticed at once."""
    renderer = Renderer()
    entry = replace(decode(MINIMAL), push_endpoint_args=b"a=1")
    other = with_event(replace(entry, push_endpoint=b"kafka://elsewhere"), opaque_data=b"other")

    for each in (entry, other, entry, other):
        assert rendered(renderer, encode(each)) == plainly(encode(each))


@needs_compiled
def test_two_regions_in_turn_stay_on_the_fast_way() -> None:
    """Events of two zone groups and two buckets in turn are all hits after their first sight."""
    renderer = Renderer()
    base = decode(MINIMAL)
    some = [encode(with_event(base, aws_region=r, bucket_name=b)) for r in (b"eu", b"us") for b in (b"b1", b"b2")]
    for data in some:
        rendered(renderer, data)

    assert [fast(renderer, data) for data in some] == [plainly(data) for data in some]


@needs_compiled
@pytest.mark.parametrize("version", [4, 9])
def test_an_entry_newer_than_known_stays_on_the_fast_way(version: int) -> None:
    """Fields that a newer radosgw appends to the entry cost no speed."""
    data = encode(replace(decode(MINIMAL), version=version, newer_fields=b"new"))
    renderer = Renderer()
    rendered(renderer, data)

    assert fast(renderer, data) == plainly(data)


@needs_compiled
def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many buckets, users and opaque values come by, a renderer stays within its bound, and right."""
    bound = 512 << 10
    monkeypatch.setattr(rendering_cached, "MAX_CACHED_BYTES", bound)
    renderer = Renderer()
    base = with_event(decode(MINIMAL), bucket_arn=b"a" * 200)
    entries = [with_event(base, bucket_name=b"bucket-%d" % i, user_identity=b"user-%d" % i) for i in range(1000)]
    encoded = [encode(entry) for entry in entries]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i, data in enumerate(encoded):
            rendered(renderer, data)
            rendered(renderer, data, b"opaque-%d" % i)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < bound
    assert renderer._cached_bytes <= bound
    assert 50 < len(renderer._buckets) < 1000
    assert len(renderer._opaques) <= 256
    assert fast(renderer, encoded[-1]) == plainly(encoded[-1])


@needs_compiled
def test_regions_that_grow_are_charged_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that is seen again with far longer opaque data takes more of the bound, and is still bounded."""
    bound = 512 << 10
    monkeypatch.setattr(rendering_cached, "MAX_CACHED_BYTES", bound)
    renderer = Renderer()
    for length in (1, 2000):
        for i in range(200):
            entry = with_event(decode(MINIMAL), bucket_name=b"bucket-%d" % i, opaque_data=b"o" * length)
            rendered(renderer, encode(entry))

    held = sum(bucket.cost for bucket in renderer._buckets.values())
    assert 0 < held < renderer._cached_bytes <= bound


@needs_compiled
@pytest.mark.parametrize("field", ["bucket_arn", "bucket_id", "opaque_data", "user_identity", "aws_region"])
def test_huge_regions_are_not_remembered(field: str) -> None:
    """A field of a megabyte is rendered, and not kept."""
    renderer = Renderer()
    data = encode(with_event(decode(MINIMAL), **{field: b"a" * 1_000_000}))

    assert rendered(renderer, data) == plainly(data)
    assert [*renderer._buckets, *renderer._actors, *renderer._sources] == []
    rendered(renderer, MINIMAL)
    assert rendered(renderer, MINIMAL, b"o" * 1_000_000) == plainly(MINIMAL, b"o" * 1_000_000)
    assert not renderer._opaques


@needs_compiled
def test_the_plain_way_is_not_asked_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of known buckets never reach the full decoder, or the speed would be gone unnoticed."""
    renderer = Renderer()
    known = [pair.entry for pair in real_pairs()]
    for data in known:
        rendered(renderer, data)

    def refuse(data: bytes) -> EventEntry:
        raise AssertionError("decoded in full")

    monkeypatch.setattr(event_entry, "decode", refuse)
    for data in known:
        rendered(renderer, data, b"now")
