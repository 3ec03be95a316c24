"""Durations and sizes: what is read, what is shown, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.config import parse_duration, parse_size, show_duration, show_size

DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


@given(number=st.integers(0, 999_999), unit=st.sampled_from(sorted(DURATION_UNITS)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    """A whole number of any unit is read as exactly that many milliseconds."""
    assert parse_duration(f"{number}{unit}") == number * DURATION_UNITS[unit] / 1000


@given(ms=st.integers(0, 10_000_000_000).map(lambda n: n // 11))
def test_a_shown_duration_reads_back(ms: int) -> None:
    """Whole milliseconds survive being shown and read."""
    assert parse_duration(show_duration(ms / 1000)) == ms / 1000


@given(nbytes=st.integers(0, 10**14))
def test_a_shown_size_reads_back(nbytes: int) -> None:
    """Any number of bytes survives being shown and read."""
    assert parse_size(show_size(nbytes)) == nbytes


@given(number=st.integers(0, 999_999), unit=st.sampled_from(sorted(SIZE_UNITS)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    """A whole number of any unit is read as that many bytes."""
    assert parse_size(f"{number}{unit}") == number * SIZE_UNITS[unit]


@given(text=st.text(alphabet="0123456789.smhdBKMGi -+e_\n\0٣", max_size=12))
def test_any_text_is_read_or_refused_by_one_error(text: str) -> None:
    """No text makes a parser raise anything but ValueError, or give a negative number."""
    for parse in (parse_duration, parse_size):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value >= 0


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "+1s", "1 s", "1S", "1e3s", "٣s", "1m30s", "64MiB", "1s\n", "nan"]
)
def test_a_duration_without_exactly_one_unit_is_refused(text: str) -> None:
    """What is not a plain number with one unit is no duration, and the message shows one that is."""
    with pytest.raises(ValueError, match='such as "30s"'):
        parse_duration(text)


@pytest.mark.parametrize(
    ("parse", "text", "limit"),
    [
        (parse_duration, "1000000000s", "at most 9 digits"),
        (parse_duration, "1.0000000001s", "at most 9 digits"),
        (parse_size, "1000000000000000B", "at most 15 digits"),
    ],
)
def test_a_value_that_is_too_long_is_refused_with_the_limit(
    parse: Callable[[str], float], text: str, limit: str
) -> None:
    """A number with its unit and a digit too many is not said to lack the unit."""
    with pytest.raises(ValueError, match=limit) as refused:
        parse(text)
    assert "unit" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "64", "64mb", "64M", "1.5MiB", "-1B", "1 KiB", "1kib", "30s", "١KiB"])
def test_a_size_without_a_binary_unit_is_refused(text: str) -> None:
    """What is not a whole number with one binary unit is no size, and the message shows one that is."""
    with pytest.raises(ValueError, match='such as "64MiB"'):
        parse_size(text)


def test_a_tenth_of_a_second_is_exact() -> None:
    """Milliseconds are not blurred on their way to seconds."""
    assert parse_duration("100ms") == 0.1
    assert parse_duration("1.5s") == 1.5
