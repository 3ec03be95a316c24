"""`remora send` finds the records in what it is given, each with its line."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.cli import records
from remora.cli.records import Bad, GivenRecord, read_records
from remora.codec.event_entry import decode
from support.ingest import record

Found = GivenRecord | Bad


def found_in(path: Path) -> list[Found]:
    """Everything that is found in a file."""

    async def read() -> list[Found]:
        fd = os.open(path, os.O_RDONLY)
        try:
            return [each async for piece in read_records(fd) for each in piece.found]
        finally:
            os.close(fd)

    return asyncio.run(read())


def of_bytes(tmp_path: Path, data: bytes) -> list[Found]:
    """Everything that is found in some bytes."""
    file = tmp_path / "input"
    file.write_bytes(data)
    return found_in(file)


def keys(found: list[Found]) -> list[tuple[int, str]]:
    """Line and object key of each record, or its line and why it is none."""
    return [
        (each.line, each.reason if isinstance(each, Bad) else decode(each.entry).event.object_key.decode())
        for each in found
    ]


def line(key: str) -> bytes:
    """A record on a line, without its end."""
    return json.dumps(record(key)).encode()


def test_every_line_is_a_record(tmp_path: Path) -> None:
    """Empty lines, Windows line ends and a last line without an end are no different."""
    found = of_bytes(tmp_path, b"\n" + line("a") + b"\r\n  \n" + line("b") + b"\n" + line("c"))

    assert keys(found) == [(2, "a"), (4, "b"), (5, "c")]
    assert [each.key for each in found if isinstance(each, GivenRecord)] == [b"b:a", b"b:b", b"b:c"]


def test_documents_on_a_line_are_taken_apart(tmp_path: Path) -> None:
    """Their records are sent one by one, so that each can go the way of its key."""
    document = json.dumps({"Records": [record("b"), record("c")]}).encode()

    found = of_bytes(tmp_path, line("a") + b"\n" + document + b"\n" + line("d"))

    assert keys(found) == [(1, "a"), (2, "b"), (2, "c"), (3, "d")]
    assert all(json.loads(each.record)["s3"]["object"]["key"] for each in found if isinstance(each, GivenRecord))


def test_documents_over_several_lines_are_understood(tmp_path: Path) -> None:
    """One after the other, with the line where each begins, and their records on one line each."""
    first = json.dumps({"Records": [record("a"), record("b")]}, indent=2)
    second = json.dumps(record("c"), indent=2)

    found = of_bytes(tmp_path, f"\n{first}\n\n{second}{second}\n".encode())

    after = first.count("\n") + 4
    assert keys(found) == [(2, "a"), (2, "b"), (after, "c"), (after + second.count("\n"), "c")]
    assert not any(b"\n" in each.record for each in found if isinstance(each, GivenRecord))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"oops", "not valid JSON: Expecting value at character 0"),
        (b"{}", "eventName: is missing"),
        (b"[]", "expected an object, not a list"),
        (b'{"Records":[]}', "Records: is empty"),
        (b'{"Records":[{}]}', "eventName: is missing"),
        (b'{"Records":[%b,5]}' % line("x"), "Records[1]: expected an object, not a number"),
        (b'{"Records":[%b],"Records":[]}' % line("x"), "Records stands twice in its object"),
        (b'{"eventName":"\xff"}', "not valid UTF-8 at byte 14"),
        (line("x") + line("y"), "not valid JSON: Extra data at character"),
        (line("k" * 1025), "s3.object.key: has 1025 bytes, more than 1024"),
    ],
)
def test_what_is_no_record_is_told_with_its_line(tmp_path: Path, bad: bytes, reason: str) -> None:
    """Reasons are the server's; what stands on other lines is found all the same."""
    found = of_bytes(tmp_path, line("a") + b"\n\n" + bad + b"\n" + line("b"))

    told = [each for each in found if isinstance(each, Bad)]
    assert [each.line for each in told] == [3]
    assert told[0].reason.startswith(reason)
    assert [key for key in keys(found) if key[0] != 3] == [(1, "a"), (4, "b")]


def test_a_document_that_breaks_off_ends_the_reading(tmp_path: Path) -> None:
    """What stands before it is found; it is told with the line where it is wrong."""
    whole = json.dumps({"Records": [record("a")]}, indent=1).encode()

    found = of_bytes(tmp_path, whole + b'\n{\n"Records": [\n{"eventName": }')

    assert keys(found)[0] == (1, "a")
    assert keys(found)[1:] == [(whole.count(b"\n") + 4, "not valid JSON: Expecting value")]


def test_malformed_records_of_a_large_document_are_named(tmp_path: Path) -> None:
    """A document over several lines has one line number; the index tells which record is meant."""
    document = json.dumps({"Records": [record("a"), {}, record("b")]}, indent=1).encode()

    found = of_bytes(tmp_path, document)

    assert keys(found) == [(1, "a"), (1, "in the document from here: Records[1]: eventName: is missing"), (1, "b")]


def test_an_empty_input_has_no_records(tmp_path: Path) -> None:
    """Nothing, or nothing but blanks, is no error."""
    assert of_bytes(tmp_path, b"") == []
    assert of_bytes(tmp_path, b"\n \n") == []


def test_a_line_without_end_is_not_collected_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound it is told, and ends the reading; lines before it are found."""
    monkeypatch.setattr(records, "MOST_LINE_BYTES", 3 << 20)

    found = of_bytes(tmp_path, line("a") + b"\n" + b"x" * (5 << 20) + b"\n" + line("b"))

    assert keys(found) == [(1, "a"), (2, "longer than 3 MiB")]


def test_documents_are_not_collected_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has to be read as a whole may have this many bytes and no more."""
    monkeypatch.setattr(records, "MOST_DOCUMENT_BYTES", 1 << 20)

    found = of_bytes(tmp_path, b"{\n" + b" " * (2 << 20))

    assert keys(found) == [(1, "documents over several lines may have 1 MiB in all")]


inputs = st.lists(
    st.sampled_from([line("a"), line("é" * 9), b"", b"oops", json.dumps({"Records": [record("b")] * 2}).encode()]),
    max_size=6,
)


@given(inputs, st.integers(1, 400))
def test_it_does_not_matter_how_the_bytes_arrive(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], n: int
) -> None:
    """However small the pieces that are read, the same is found."""
    file = tmp_path_factory.getbasetemp() / "pieces"
    file.write_bytes(b"\n".join(parts))
    expected = found_in(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "READ_BYTES", n)
        assert found_in(file) == expected


async def test_records_are_found_as_soon_as_they_are_there() -> None:
    """A pipe that stays open gives the lines that are complete."""
    source, sink = os.pipe()
    try:
        async with aclosing(read_records(source)) as pieces:
            os.write(sink, line("a") + b"\n" + line("b")[:9])
            first = await anext(pieces)
            os.write(sink, line("b")[9:] + b"\n")
            second = await anext(pieces)
            assert keys([*first.found]) == [(1, "a")]
            assert keys([*second.found]) == [(2, "b")]
    finally:
        os.close(sink)
        os.close(source)
