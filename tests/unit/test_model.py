from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.errors import CodecError
from remora.model.position import Position
from remora.model.topic import Target

numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers, numbers, numbers)
def test_positions_order_by_turn_first(gen: int, offset: int, other_gen: int, other_offset: int) -> None:
    """A position of a later turn of the ring is behind any of an earlier one, whatever the offsets."""
    here, there = Position(gen, offset), Position(other_gen, other_offset)

    if gen != other_gen:
        assert (here < there) == (gen < other_gen)
    else:
        assert (here < there) == (offset < other_offset)


@given(numbers, numbers)
def test_a_position_reads_back_from_its_text(gen: int, offset: int) -> None:
    """The text form of a position is read back as the same position."""
    assert Position.parse(str(Position(gen, offset))) == Position(gen, offset)


@pytest.mark.parametrize("text", ["", "1", "/", "1/", "/1", "1/2/3", "-1/2", "1/+2", "1/ 2", "1_0/2", "a/b", "٣/4"])
def test_other_text_is_no_position(text: str) -> None:
    """Anything but two plain decimal numbers around one slash is refused."""
    with pytest.raises(ValueError, match="not a queue position"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("kafka://user:secret@h:9092", "kafka://h:9092"),
        ("kafka://user:se/cret@h:9092", "kafka://h:9092"),
        ("kafka://user:se@cret@h:9092", "kafka://h:9092"),
        ("kafka://h1:9092,h2:9092", "kafka://h1:9092,h2:9092"),
        ("http://h/path?token=secret", "http://h"),
        ("kafka://user:secret", "kafka://user:***"),
        ("kafka://h:9092,user:sec:ret", "kafka://h:9092,user:***"),
        ("kafka://[::1]:9092,[::2]", "kafka://[::1]:9092,[::2]"),
        ("secret", ""),
    ],
)
def test_a_target_never_shows_its_secret(uri: str, shown: str) -> None:
    """Neither the redacted form nor the repr of a target holds what came before the host or behind it."""
    target = Target(uri, "password=secret", "t")

    assert target.redacted == shown
    assert "secret" not in target.redacted
    assert "secret" not in repr(target)
    assert "se@cret" not in repr(target)


def test_a_codec_error_survives_a_process_boundary() -> None:
    """A CodecError that was pickled has its field, offset and reason yet."""
    error = pickle.loads(pickle.dumps(CodecError("event.key", 17, "truncated")))

    assert (error.field, error.offset, error.reason) == ("event.key", 17, "truncated")
    assert str(error) == "event.key at byte 17: truncated"
