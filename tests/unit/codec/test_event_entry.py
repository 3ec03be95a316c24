"""Queue entries, both ways: for every version, and for what radosgw really wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from remora.codec.ceph import Field, FieldWriter
from remora.codec.event_entry import attributes, decode, encode, explain
from remora.model.entry import EventEntry, Time
from remora.model.errors import CodecError
from remora.model.topic import Source, Target
from unit.codec.samples import MINIMAL, entries, real_pairs, with_event

HEADERS = 12  # bytes of the entry's header and of the event's


def test_the_reference_entry_is_read_field_by_field() -> None:
    """The known bytes give the known values."""
    entry = decode(MINIMAL)

    assert len(MINIMAL) == 346
    assert (entry.version, entry.compat, entry.event.version, entry.event.compat) == (3, 1, 4, 1)
    assert (entry.event.bucket_name, entry.event.object_key, entry.event.object_size) == (b"b", b"k", 5)
    assert entry.event.event_time == Time(1_700_000_000, 123_456_789)
    assert (entry.event.metadata, entry.event.tags) == (((b"x-amz-meta-a", b"1"),), ((b"t", b"v"),))
    assert (entry.event.opaque_data, entry.event.bucket_id) == (b"oq", b"bid.1")
    assert (entry.push_endpoint, entry.arn_topic) == (b"kafka://b:9092", b"topic")
    assert entry.push_endpoint_args == b"kafka-ack-level=broker"
    assert entry.creation_time == Time(1_700_000_001, 0)
    assert (entry.time_to_live, entry.max_retries, entry.retry_sleep_duration) == (2**32 - 1,) * 3


def test_real_entries_encode_to_the_bytes_that_they_were() -> None:
    """Decoding and encoding what three releases of radosgw wrote changes nothing."""
    pairs = real_pairs()

    assert len(pairs) >= 36
    assert {decode(pair.entry).version for pair in pairs} == {1, 3}
    for pair in pairs:
        assert encode(decode(pair.entry)) == pair.entry


@given(entries)
def test_every_version_survives_a_round_trip(entry: EventEntry) -> None:
    """An entry of any version, newer than known included, is decoded to what was encoded, and back."""
    data = encode(entry)

    assert decode(data) == entry
    assert encode(decode(data)) == data


@given(entries)
def test_bytes_behind_the_entry_change_nothing(entry: EventEntry) -> None:
    """What follows the struct is ignored, as radosgw ignores it."""
    data = encode(entry)

    assert decode(data + b"more") == entry
    assert attributes(data + b"more") == attributes(data)


def test_an_entry_cut_off_anywhere_is_refused() -> None:
    """No proper prefix of an entry is taken for one; each names a field and an offset within the input."""
    for cut in range(len(MINIMAL)):
        with pytest.raises(CodecError) as caught:
            decode(MINIMAL[:cut])

        assert caught.value.field.startswith("entry")
        assert 0 <= caught.value.offset <= cut


@pytest.mark.parametrize("word", [0xFFFF_FFFF, 0x7FFF_FFFF, 0x0001_0000])
def test_no_length_field_can_reach_beyond_the_input(word: int) -> None:
    """Each length and count, overwritten with a huge number, is refused by name."""
    lengths = [at for at in map(_length_offset, explain(MINIMAL)[0]) if at is not None]

    assert len(lengths) == 2 + 27 + 2  # structs, strings, maps
    for at in lengths:
        with pytest.raises(CodecError):
            decode(MINIMAL[:at] + word.to_bytes(4, "little") + MINIMAL[at + 4 :])


def _length_offset(field: Field) -> int | None:
    """Where a field's length or count stands, None when it has none."""
    if field.type.startswith("struct"):
        return field.offset + 2
    is_map = field.path.endswith((".x_meta_map", ".tags"))
    return field.offset if is_map or field.type == "string" else None


@pytest.mark.parametrize(("struct_at", "known", "name"), [(0, 3, "entry"), (6, 4, "entry.event")])
def test_an_incompatible_version_is_refused(struct_at: int, known: int, name: str) -> None:
    """Compat above what is known is refused for the entry and the event; a higher version alone is not."""
    newer, incompatible = bytearray(MINIMAL), bytearray(MINIMAL)
    newer[struct_at : struct_at + 2] = bytes((known + 5, known))
    incompatible[struct_at : struct_at + 2] = bytes((known + 5, known + 1))

    assert decode(bytes(newer)).event.object_key == b"k"
    with pytest.raises(CodecError, match=f"^{name} at byte {struct_at}: needs a reader of version {known + 1}"):
        decode(bytes(incompatible))


def test_explain_shows_every_field_in_its_place() -> None:
    """The listing runs through the whole entry without a gap, and each string stands where it says."""
    fields, error = explain(MINIMAL)
    shown = {f.path: f for f in fields}

    assert error is None
    assert shown["entry.event.object_key"].value == b"k"
    assert shown["entry.event.object_size"].value == 5
    assert shown["entry.creation_time"].value == Time(1_700_000_001, 0)
    assert [f.offset for f in fields] == sorted({f.offset for f in fields})
    for field in fields:
        if isinstance(field.value, bytes):
            assert MINIMAL[field.offset + 4 :].startswith(field.value)


def test_explain_shows_what_comes_before_the_damage() -> None:
    """For a broken entry the readable fields are listed, and the error says where it stops."""
    fields, error = explain(MINIMAL[:100])

    assert isinstance(error, CodecError)
    assert [f.path for f in fields] == []  # the outer length already tells that bytes are missing

    broken = bytearray(MINIMAL)
    at = next(f.offset for f in explain(MINIMAL)[0] if f.path.endswith("object_key"))
    broken[at : at + 4] = b"\xff\xff\xff\xff"
    fields, error = explain(bytes(broken))

    assert error is not None
    assert (error.field, error.offset) == ("entry.event.object_key", at)
    assert fields[-1].path == "entry.event.bucket_arn"


@given(entries)
def test_attributes_are_those_of_the_full_decoding(entry: EventEntry) -> None:
    """Reading only behind the event gives the same endpoint, topic and limits for every version."""
    topic = attributes(encode(entry))

    unset = 0xFFFF_FFFF
    limits = [None if v in (None, unset) else v for v in (entry.time_to_live, entry.max_retries)]
    assert topic.target == Target(
        entry.push_endpoint.decode("utf-8", "replace"),
        entry.push_endpoint_args.decode("utf-8", "replace"),
        entry.arn_topic.decode("utf-8", "replace"),
    )
    assert [topic.time_to_live_s, topic.max_retries] == limits
    assert topic.retry_sleep_s == (None if entry.retry_sleep_duration == unset else entry.retry_sleep_duration)
    assert (topic.source, topic.opaque_data, topic.persistent) == (Source.ENTRY, None, True)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_attributes_of_entries_that_differ_only_in_their_event_are_one_value(version: int) -> None:
    """Other times, keys and events give the same object again, so that comparing is cheap."""
    entry = replace(decode(MINIMAL), version=version, arn_topic=b"own-%d" % version)
    other = with_event(replace(entry, creation_time=Time(5, 6)), object_key=b"another", object_size=1)

    assert attributes(encode(other)) is attributes(encode(entry))


def test_attributes_with_bytes_in_the_wrong_place_are_not_remembered_wrongly() -> None:
    """Newer fields behind the limits of a version 3 entry do not shift what is read."""
    entry = replace(decode(MINIMAL), newer_fields=b"\1\0\0\0" * 5, time_to_live=60, max_retries=7)

    topic = attributes(encode(entry))

    assert (topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s) == (60, 7, None)
    assert topic.target.uri == "kafka://b:9092"


def test_attributes_too_large_to_remember_are_read_all_the_same() -> None:
    """Arguments of some kilobytes are understood."""
    entry = replace(decode(MINIMAL), push_endpoint_args=b"a=" + b"x" * 5000)

    assert attributes(encode(entry)).target.args == "a=" + "x" * 5000


def test_attributes_do_not_need_a_readable_event() -> None:
    """An event that cannot be decoded does not hide where its entry should go."""
    broken = bytearray(MINIMAL)
    broken[HEADERS : HEADERS + 4] = b"\xff\xff\xff\xff"

    with pytest.raises(CodecError):
        decode(bytes(broken))
    assert attributes(bytes(broken)) == attributes(MINIMAL)


@pytest.mark.parametrize("struct_at", [0, 6])
def test_attributes_of_an_incompatible_version_are_refused(struct_at: int) -> None:
    """An entry, or an event, that needs a newer reader does not tell where it should go."""
    incompatible = bytearray(MINIMAL)
    incompatible[struct_at + 1] = 5

    with pytest.raises(CodecError, match="needs a reader of version 5"):
        attributes(bytes(incompatible))


def test_credentials_are_not_shown_by_repr() -> None:
    """Printing an entry shows neither its endpoint nor the arguments."""
    entry = replace(decode(MINIMAL), push_endpoint=b"kafka://u:secret@h", push_endpoint_args=b"password=secret")

    assert "secret" not in repr(entry)


def test_an_entry_of_version_two_without_creation_time_gets_an_all_zero_one() -> None:
    """Raising an entry's version does not need the fields which that version adds."""
    entry = replace(decode(MINIMAL), version=1)
    raised = encode(replace(entry, version=3, creation_time=None, time_to_live=None))

    assert decode(raised).creation_time == Time(0, 0)
    assert decode(raised).time_to_live == 0xFFFF_FFFF
    assert raised.endswith(FieldWriter().time(Time(0, 0)).u32(0xFFFF_FFFF).encoded() + b"\xff" * 8)
