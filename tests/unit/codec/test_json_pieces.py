"""Long JSON is read in steps: as if it were parsed whole, and never more of it than a bounded piece."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import s3_bodies, speedups
from remora.codec.json_pieces import (
    MOST_BYTES,
    MOST_VALUES,
    WINDOW,
    JsonCursor,
    NotJson,
    Repeating,
    Steps,
    TooLarge,
    is_short,
    not_json,
    parse,
    repeated_name,
)
from remora.codec.s3_events import MalformedEvent
from remora.codec.s3_records import Found
from support.placed import place
from unit.codec.samples import mutated
from unit.codec.test_s3_events import AWS, CEPH, CREATED, MINIO, SEED, TOPIC, changed, document, lines

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=30,
)
windows = st.integers(16, 80)


def whole(text: bytes, window: int) -> object:
    """The value that a cursor finds in a text."""
    try:
        return ran(_value(JsonCursor(text, window=window)))
    except (ValueError, RecursionError) as exc:
        raise not_json(exc) from exc


def _value(cursor: JsonCursor) -> Steps[object]:
    value = yield from cursor.value()
    yield from cursor.expect_end()
    return value


def ran(steps: Steps[object]) -> object:
    """What comes of steps, all taken."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@given(values, st.sampled_from([None, 1]), st.booleans(), windows)
def test_a_value_is_what_json_makes_of_it(value: object, indent: int | None, is_ascii: bool, window: int) -> None:
    """However it is written, and wherever the windows end."""
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()

    assert whole(text, window) == value


@pytest.mark.parametrize("number", ["1.5", "-12.25e-7", "3E+4", "0.5e3", "10"])
def test_a_number_is_whole_wherever_the_window_ends(number: str) -> None:
    """A window that ends at a number's point or exponent does not end the number."""
    text = number.encode()

    assert all(whole(text, window) == json.loads(text) for window in range(1, len(text) + 2))


def found_in(records: s3_bodies.Records) -> object:
    """The records with their places, or that they are refused."""
    try:
        return [(type(each), *each[:3]) for each in records if isinstance(each, Found)]
    except MalformedEvent:
        return "refused"


SEEDS = [
    document(CEPH, AWS, MINIO),
    json.dumps(
        {"EventName": "x", "Records": [MINIO, CEPH], "Key": "é\U0001f600"}, indent=1, ensure_ascii=False
    ).encode(),
    b'{"Records":[{"a":"\\\\\\"}{[","b":[[],{}]},{}] , "x":{"y":[1,2.5e3,-1,null]}}',
    lines(CEPH, AWS) + document(CEPH, MINIO),
]


@given(st.sampled_from(SEEDS) | mutated(SEEDS), windows)
def test_records_are_found_in_steps_as_they_are_found_at_once(body: bytes, window: int) -> None:
    """In documents and in lines: the same values with the same places, or a refusal of the same bodies."""
    at_once = len(body) + 1

    assert found_in(s3_bodies.in_document(body, window=window)) == found_in(s3_bodies.in_document(body, window=at_once))
    each = body.split(b"\n")
    assert found_in(s3_bodies.in_lines(each, window=window)) == found_in(s3_bodies.in_lines(each, window=at_once))


@pytest.mark.parametrize(
    "body",
    [
        b'{"Records":[{"a":1} {"b":2}]}' + b" " * 40,
        b'{"Records":[{"a":1},]}' + b" " * 40,
        b'{"Records":[{"a":1}],}' + b" " * 40,
        b'{"Records":[{"a":1}]' + b" " * 40,
        b'{"Records" [{"a":1}]}' + b" " * 40,
        b'{"Records":[{"a":1}]}' + b" " * 40 + b"x",
        '{"é":"é",'.encode() * 9 + b"oops",
        b'{"Records":[{"a":"' + b"x" * 60 + b'\\"',
        b'{"Records":[{"a":"' + b"x" * 60 + b"\\",
        b'{"Records":[{"a":"' + b"x" * 60 + b'\xff"}]}',
        b'{"Records":[{"a":NaN}]}' + b" " * 40,
        b"[" * 60,
        b"12" * 30 + b" 3",
    ],
)
def test_what_is_no_json_is_refused_in_the_same_words(body: bytes) -> None:
    """With the same reason and the same place in the whole text, as far as json itself says it."""
    messages = []
    for window in (16, len(body)):
        with pytest.raises(MalformedEvent) as caught:
            list(s3_bodies.in_document(body, window=window))
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


@pytest.mark.parametrize("text", [b"x" * 100, b"\\u00e9\\n" * 30, "é\U0001f600".encode() * 50, b"\\\\" * 90])
@pytest.mark.parametrize("window", range(16, 40))
def test_a_text_may_be_longer_than_a_window(text: bytes, window: int) -> None:
    """Wherever the window ends within it: before, within or behind a character or an escape."""
    body = b'{"a":"' + text + b'"}'

    assert whole(body, window) == json.loads(body)


def test_a_value_has_bounds_that_are_the_same_wherever_it_stands() -> None:
    """What fits is read; one value more, or one byte, is too large, and a short text that may be has few values."""
    full, long = b"[" + b"1," * (MOST_VALUES - 2) + b"1]", b'"' + b"x" * (MOST_BYTES - WINDOW) + b'"'

    assert len(whole(full, WINDOW)) == MOST_VALUES - 1  # type: ignore[arg-type]
    assert whole(long, WINDOW)
    for more in (b"[1," + full[1:-1] + b",1]", b'"' + b"x" * (MOST_BYTES + WINDOW) + b'"'):
        with pytest.raises(TooLarge):
            whole(more + b" " * WINDOW, WINDOW)
        assert not is_short(more)
    assert issubclass(TooLarge, NotJson)


# ----------------------------------------------------------------------------------------- hostile bodies

ONE = document(CEPH)[12:-2]
MILLION = 1 << 20


def with_member(json_of_it: bytes) -> bytes:
    """A good record with one more member."""
    return ONE[:-1] + b',"x":' + json_of_it + b"}"


HOSTILE: dict[str, Callable[[], bytes]] = {
    "records": lambda: b"{}" + b",{}" * MILLION,
    "numbers": lambda: b"1" + b",1" * MILLION,
    "empty pairs": lambda: ONE.replace(b'"metadata":[', b'"metadata":[{}' + b",{}" * MILLION),
    "pairs": lambda: ONE.replace(
        b'"tags":[', b'"tags":[{"key":"","val":""}' + b',{"key":"","val":""}' * (MILLION // 4)
    ),
    "members": lambda: ONE[:-1] + b"".join(b',"%x":1' % i for i in range(MILLION // 4)) + b"}",
    "a list": lambda: with_member(b"[1" + b",1" * MILLION + b"]"),
    "lists": lambda: with_member(b"[[]" + b",[]" * MILLION + b"]"),
    "a text": lambda: with_member(b'"' + b"a\\n" * (4 * MILLION) + b'"'),
}


@pytest.mark.parametrize("ndjson", [False, True], ids=["document", "lines"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_body_of_too_many_values_is_refused_before_they_are_built(kind: str, ndjson: bool) -> None:
    """The memory that it takes to see that is less than the body's own."""
    body = HOSTILE[kind]() if ndjson else b'{"Records":[' + HOSTILE[kind]() + b"]}"

    tracemalloc.start()
    try:
        with pytest.raises(MalformedEvent) as caught:
            list(place(body, TOPIC, ndjson=ndjson, most=10_000, created=CREATED, seed=SEED))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert caught.value.record == 0
    assert peak < len(body) + MILLION


def test_members_beside_the_records_are_bounded_too() -> None:
    """A document with very many of them is refused as a whole."""
    body = b"{" + b"".join(b'"%x":1,' % i for i in range(100_000)) + b'"Records":[' + ONE + b"]}"

    with pytest.raises(MalformedEvent, match="has more than 1024 members") as caught:
        list(place(body, TOPIC, ndjson=False, most=10, created=CREATED, seed=SEED))

    assert caught.value.record is None


@pytest.mark.parametrize("base", [CEPH, AWS], ids=["quick", "plain"])
@pytest.mark.parametrize("ndjson", [False, True], ids=["document", "line"])
def test_no_part_is_made_of_much_json(base: dict[str, object], ndjson: bool) -> None:
    """Also where all records stand in one line, or are long ones: a part is some of them, and they are all there."""
    pairs = [{"key": f"k{i}", "val": "v" * 20} for i in range(200)]
    records = [changed("s3.object.metadata", pairs, changed("s3.object.key", f"k{i}", base)) for i in range(400)]
    body = document(*records)

    parts = list(place(body, TOPIC, ndjson=ndjson, most=400, created=CREATED, seed=SEED))

    assert [each.key for part in parts for each in part.events] == [
        b"%b:k%d" % (base["s3"]["bucket"]["name"].encode(), i)  # type: ignore[index]
        for i in range(400)
    ]
    assert max(len(part.events) for part in parts) * len(body) / 400 < 200 << 10


def test_empty_lines_are_passed_over_in_steps() -> None:
    """A body that has hardly anything else comes in many parts, most of them empty."""
    body = b"\n" * MILLION + ONE + b"\n" * MILLION

    parts = list(place(body, TOPIC, ndjson=True, most=1, created=CREATED, seed=SEED))

    assert len(parts) > 10
    assert sum(len(part.events) for part in parts) == 1


# ------------------------------------------------------------------------------------ names that stand twice

either_way = pytest.mark.parametrize(
    "find", [repeated_name, speedups.repeated_name], ids=["plain", speedups.IMPLEMENTATION]
)


def written(value: Any, draw: Callable[[int], int]) -> str:
    """JSON in which objects may say a name twice, and write it with escapes and with blanks around."""
    match value:
        case dict():
            members = [(name, written(each, draw)) for name, each in value.items()]
            if members and draw(4) == 0:
                members.append(members[draw(len(members))])
            blank = " " * draw(2)
            return "{" + ",".join(f"{blank}{_name(name, draw)}{blank}:{text}" for name, text in members) + blank + "}"
        case list():
            return "[" + ",".join(written(each, draw) for each in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=draw(2) == 0)


def _name(name: str, draw: Callable[[int], int]) -> str:
    if name and name.isascii() and name.isalnum() and draw(3) == 0:
        return f'"\\u{ord(name[0]):04x}{name[1:]}"'
    return json.dumps(name, ensure_ascii=draw(2) == 0)


def says_twice(value: object) -> bool:
    """Whether an object within a value says a name twice, by the parser that keeps what it read."""
    match value:
        case Repeating():
            return True
        case dict():
            return any(says_twice(each) for each in value.values())
        case list():
            return any(says_twice(each) for each in value)
        case _:
            return False


@given(values, st.data())
def test_names_that_stand_twice_are_found(value: object, data: st.DataObject) -> None:
    """Both ways find the same name, and one just where the parser of records sees one."""
    text = written(value, lambda most: data.draw(st.integers(0, most - 1))).encode()

    assert repeated_name(text) == speedups.repeated_name(text)
    assert (repeated_name(text) is not None) == says_twice(parse(text))


@either_way
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", None),
        (b'"a"', None),
        (b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}', None),
        (b'{"a":"\\"a\\":1,","b":"{\\\\"}', None),
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":{"b":[1,{},{"c":1,"d":2,"c":3}]}}', "a.b[2].c"),
        (b'[[],[1,2],{"x":[{"y":1}],"x":2}]', "[2].x"),
        (rb'{"a":1,"\u0061":1}', "a"),
        (b'{"":1,"":1}', ""),
    ],
)  # fmt: skip
def test_the_place_of_a_name_that_stands_twice(
    find: Callable[[bytes], str | None], text: bytes, expected: str | None
) -> None:
    """A name is shown with the names and indexes that lead to it."""
    assert find(text) == expected
