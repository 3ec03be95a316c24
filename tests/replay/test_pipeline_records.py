"""Kafka's values to events: what lands, what is kept aside and why, and the folders of buckets."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from remora.codec import rendering_plain
from remora.codec.event_entry import decode
from remora.model.entry import Time
from remora_pipeline.replay.notification import Unusable
from remora_pipeline.replay.pipeline import records
from remora_pipeline.replay.pipeline.columns import NOTIFICATION, PARSED
from remora_pipeline.replay.pipeline.labels import label
from remora_pipeline.replay.pipeline.records import MOST_TEXT_BYTES, SOURCE, events, parsed


def document(**changes: Any) -> dict[str, Any]:
    """A record as radosgw writes it, with other values at some dotted paths; None removes."""
    made: dict[str, Any] = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "eventTime": "2026-11-21T02:14:07.482913Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "loader"},
        "s3": {
            "bucket": {"name": "photos", "arn": "arn:aws:s3:default:harbour:photos", "id": "x.1"},
            "object": {"key": "a+b%20c", "size": 5, "eTag": "e", "sequencer": "2201016B00000000", "tags": []},
        },
    }
    for path, value in changes.items():
        *outer, name = path.split("__")
        place = made
        for part in outer:
            place = place[part]
        if value is None:
            del place[name]
        else:
            place[name] = value
    return made


def value(*records: Any) -> bytes:
    return json.dumps({"Records": list(records)}).encode()


def rows(raw: bytes, *, is_decoded: bool = False) -> list[dict[str, Any]]:
    return [dict(zip(NOTIFICATION.names, found.row, strict=True)) for found in events(raw, is_decoded=is_decoded)]


def batch(*values: bytes | None, **place: Any) -> pa.RecordBatch:
    """Kafka's records as the task gets them; `place` has what all of them have besides."""
    told = {"topic": "t", "partition": 3, "timestamp": 1_795_227_938_000_000} | place
    columns = {
        "value": list(values),
        "offset": list(range(len(values))),
        **{name: [told.get(name)] * len(values) for name in SOURCE.names if name not in ("value", "offset")},
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in SOURCE.names}, schema=SOURCE)


def test_what_remora_delivers_is_read_whole() -> None:
    """An entry as remora renders it becomes a row with all that the entry holds."""
    plain = decode(raw_entry('tides/gauge+7 nörth\n".csv', bucket="harbour"))
    event = replace(
        plain.event,
        event_name=b"ObjectCreated:Copy",
        object_size=2**40,
        object_version_id=b"v1",
        event_time=Time(1_795_227_938, 123_456_789),
        metadata=((b"x-amz-meta-a", b"1"), (b"x-amz-meta-b", "ü".encode())),
        tags=((b"t", b"1"), (b"t", b"2")),
    )
    entry = replace(plain, event=event)

    (row,) = rows(rendering_plain.body(entry), is_decoded=True)

    assert row["key"] == event.object_key.decode()
    assert (row["event_name"], row["bucket"], row["size"]) == ("ObjectCreated:Copy", "harbour", 2**40)
    assert row["event_time"] == 1_795_227_938_123_456
    assert row["metadata"] == [("x-amz-meta-a", "1"), ("x-amz-meta-b", "ü")]
    assert row["tags"] == [("t", "2")]
    assert (row["sequencer"], row["event_id"]) == (event.object_sequencer.decode(), event.event_id.decode())


@pytest.mark.parametrize(
    ("source", "is_decoded", "key"),
    [
        ("ceph:s3", False, "a+b%20c"),
        ("ceph:s3", True, "a+b%20c"),
        ("aws:s3", True, "a+b%20c"),
        ("aws:s3", False, "a b c"),
        (None, False, "a b c"),
    ],
)
def test_only_keys_that_are_encoded_are_decoded(source: str | None, is_decoded: bool, key: str) -> None:
    """Keys are URL-decoded in other stores' own records, and neither in radosgw's nor in what remora has delivered."""
    assert rows(value(document(eventSource=source)), is_decoded=is_decoded)[0]["key"] == key


@pytest.mark.parametrize(
    ("text", "time_us", "day"),
    [
        ("2026-11-21T23:59:59.999999Z", 1795305599999999, "2026-11-21"),
        ("2026-11-21T23:59:59.999999999Z", 1795305599999999, "2026-11-21"),
        ("2026-11-22T00:30:00+01:00", 1795303800000000, "2026-11-21"),
        ("0.000000", 0, "1970-01-01"),
        ("86400.5", 86_400_500_000, "1970-01-02"),
        ("1969-12-31T23:59:59.000001Z", -999_999, "1969-12-31"),
    ],
)
def test_days_are_in_utc(text: str, time_us: int, day: str) -> None:
    """An event's time is read to the microsecond, and its folder is its day in UTC, in every form that stores write."""
    (found,) = events(value(document(eventTime=text)), is_decoded=False)

    assert dict(zip(NOTIFICATION.names, found.row, strict=True))["event_time"] == time_us
    assert found.day == day


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (None, "the record has no value"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"x":' + b"[" * 100_000, "not JSON: nested too deeply"),
        (b"[]", "not a notification: Expected `object`"),
        (b"{}", "missing required field `Records`"),
        (b'{"Records":[]}', "Records is empty"),
        (b'{"Records":null}', "$.Records"),
        (value(document(s3=None)), "missing required field `s3`"),
        (value(document(s3__object__key=None)), "missing required field `key` - at `$.Records[0].s3.object`"),
        (value(document(s3__object__key="")), "s3.object.key is empty"),
        (value(document(s3__bucket__name="")), "s3.bucket.name is empty"),
        (value(document(eventName="")), "eventName is empty"),
        (value(document(eventName=None)), "missing required field `eventName`"),
        (value(document(eventTime=None)), "missing required field `eventTime`"),
        (value(document(eventTime="yesterday")), "eventTime is not a time"),
        (value(document(eventTime="2026-11-21T02:14:07")), "eventTime has no zone"),
        (value(document(eventTime="5.abc")), "eventTime is not a time"),
        (value(document(eventTime="5.-1")), "eventTime is not a time"),
        (value(document(eventTime="5.\u0663")), "eventTime is not a time"),
        (value(document(eventTime="0001-01-01T00:00:00+01:00")), "eventTime is not a time"),
        (value(document(s3__object__size="5")), "$.Records[0].s3.object.size"),
        (value(document(s3__object__size=-1)), "$.Records[0].s3.object.size"),
        (value(document(s3__object__size=2**63)), "$.Records[0].s3.object.size"),
        (value(document(s3__object__key="%ff", eventSource="aws:s3")), "not UTF-8: s3.object.key after URL-decoding"),
        (value(document()).replace(b"photos", b"ph\xff"), "not UTF-8"),
        (value(document()).replace(b"photos", b"ph\xed\xa0\x80"), "not UTF-8"),
        (value(document()).replace(b"photos", b"ph\\ud800"), "not JSON"),
        (value(document(), document(eventTime="x")), "eventTime is not a time"),
    ],
)
def test_what_is_no_notification_has_a_cause(raw: bytes | None, cause: str) -> None:
    """A value that cannot become events is refused as a whole, with a cause that names the member at fault."""
    with pytest.raises(Unusable) as refused:
        events(raw, is_decoded=False)

    assert cause in str(refused.value)


NAMED = st.sampled_from(["Records", "s3", "eventTime", "eventName", "object", "bucket", "key", "name"])
JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(NAMED, inner)
).map(lambda made: json.dumps(made).encode())


@given(st.binary() | JSON)
def test_any_value_lands_or_is_kept_aside(raw: bytes) -> None:
    """Whatever a value is, it gives rows of the table's types or one row with its bytes and a cause."""
    (made,) = parsed([batch(raw)])

    found = made.to_pylist()
    assert found
    assert all((row["cause"] is None) == (row["value"] is None) == (row["bucket"] is not None) for row in found)
    assert [row["value"] for row in found if row["cause"]] in ([], [raw])


BEHIND_9999_US = 253_402_300_800_000_000
KEPT = value(document())


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ({"timestamp": BEHIND_9999_US}, "time stamp lies outside of the years 1 to 9999"),
        ({"timestamp": 2**63 - 1}, "time stamp lies outside of the years 1 to 9999"),
        ({"timestamp": -(2**63)}, "time stamp lies outside of the years 1 to 9999"),
        *[({name: b"\xff"}, "is not UTF-8") for name in ("shard", "position", "next_position", "sequence")],
        ({"position": b"x" * (MOST_TEXT_BYTES + 1)}, "the header remora-pos has 4097 bytes, more than 4096"),
        ({"kafka_key": b"x" * (MOST_TEXT_BYTES + 1)}, "Kafka's key has 4097 bytes, more than 4096"),
    ],
)
def test_a_place_that_no_table_has_is_kept_aside(place: dict[str, Any], cause: str) -> None:
    """A record whose stamp, key or header does not fit into the tables lies aside, whole, with the cause, and what does
    not fit is null."""
    (made,) = parsed([batch(KEPT, **place)])

    (row,) = made.to_pylist()
    assert cause in row["cause"]
    assert (row["value"], row["bucket"], row["offset"]) == (KEPT, None, 0)
    assert all(row[name] is None for name in place if name != "kafka_key")
    assert row["day"] == (None if "timestamp" in place else "2026-11-21")


def test_a_place_at_its_bounds_lands() -> None:
    """The last microsecond that tables know, Kafka's stamp for none, and keys and headers of the greatest length land;
    a key is bytes, whatever they are."""
    longest = b"x" * MOST_TEXT_BYTES
    for stamp in (BEHIND_9999_US - 1, -1000):
        (made,) = parsed([batch(KEPT, timestamp=stamp, kafka_key=b"\xff" * MOST_TEXT_BYTES, sequence=longest)])

        assert made.column("cause").null_count == 1
        assert made.column("timestamp").cast(pa.int64()).to_pylist() == [stamp]
        assert made.column("kafka_key").to_pylist() == [b"\xff" * MOST_TEXT_BYTES]
        assert made.column("sequence").to_pylist() == [longest.decode()]


def test_a_defect_of_the_parser_costs_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no cause was foreseen for lies aside by its exception's name, and its neighbours land."""

    def failing(value: bytes | None, *, is_decoded: bool) -> Any:
        if value == b"x":
            raise KeyError("\udcff")
        return events(value, is_decoded=is_decoded)

    monkeypatch.setattr(records, "events", failing)
    (made,) = parsed([batch(KEPT, b"x", KEPT)])

    found = made.to_pylist()
    assert [row["cause"] is None for row in found] == [True, False, True]
    assert "KeyError" in found[1]["cause"]
    assert found[1]["value"] == b"x"


def test_many_events_of_one_value_come_in_several_batches() -> None:
    """A value of which much more comes than it has itself is not made into one batch of any size."""
    many = value(*[document(s3__object__key="k")] * 9000)

    made = list(parsed([batch(many, many, kafka_key=b"x" * MOST_TEXT_BYTES)]))

    assert sum(each.num_rows for each in made) == 18_000
    assert max(each.nbytes for each in made) < 3 * 2**26
    assert len(made) > 1


def test_rows_keep_their_place() -> None:
    """Each row bears topic, partition and offset of its own record, also between bad ones and several in a value."""
    values = [b"x", value(document(), document(s3__object__key="second")), None, value(document())]

    (made,) = parsed([batch(*values)])

    found = made.to_pylist()
    assert made.schema.names == PARSED.names
    assert [(row["offset"], row["record"], row["value"]) for row in found] == [
        (0, None, b"x"),
        (1, 0, None),
        (1, 1, None),
        (2, None, None),
        (3, 0, None),
    ]
    assert [row["cause"] is None for row in found] == [False, True, True, False, True]
    assert {(row["topic"], row["partition"]) for row in found} == {("t", 3)}
    assert {row["timestamp"] for row in found} == {datetime.fromtimestamp(1_795_227_938, UTC)}
    assert [row["day"] for row in found if row["cause"]] == ["2026-11-21"] * 2


def test_no_records_give_no_rows() -> None:
    """An empty batch gives nothing, and no error."""
    assert list(parsed([batch()])) == []


NAMES = [
    "photos",
    "a-b.c",
    "2024-logs",
    "007",
    "7",
    "1e5",
    "1d",
    "2026-11-21",
    "null",
    "NaN",
    "true",
    "a_b",
    "_a",
    ".a",
]


@given(st.sampled_from(NAMES) | st.text(min_size=1, max_size=255), st.text(min_size=1, max_size=255))
def test_labels_tell_buckets_apart(one: str, other: str) -> None:
    """Labels are plain ASCII that fits into a file name; different buckets have different ones."""
    try:
        one.encode(), other.encode()
    except UnicodeEncodeError:
        return

    first = label(one)

    assert first.isascii()
    assert first.isprintable()
    assert not set(first) & set("\"#%'*/:=?\\{[]^ ")
    assert len(f"bucket_dir={first}") <= 200
    assert (first == label(other)) == (one == other)


@pytest.mark.parametrize("name", ["photos", "a-b.c", "2024-logs", "a_b", "_a", "12-photos-34"])
def test_ordinary_names_are_their_labels(name: str) -> None:
    """The name of a bucket that follows S3's rules is its folder, also where it begins with a number."""
    assert label(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "007",
        "7",
        "-1",
        "1.5",
        "1e5",
        "1d",
        "1_000",
        "0x1f",
        "2026-11-21",
        "null",
        "NaN",
        "True",
        "__HIVE_DEFAULT_PARTITION__",
    ],
)
def test_names_like_numbers_are_marked(name: str) -> None:
    """A name that readers would take for a number, a date or nothing gets a mark that makes it a text."""
    assert label(name) == f"{name}~"


def test_dots_are_no_folders_above() -> None:
    """A bucket cannot name the folder above its table."""
    assert Path("events", f"bucket_dir={label('../../etc')}").parts[-1].count("/") == 0
    assert label("..") not in (".", "..")
