"""Attempts as a store keeps them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.codec.attempts import decode_attempts, encode_attempts
from remora.model.record import Attempt

attempts = st.dictionaries(
    st.binary(max_size=30), st.builds(Attempt, st.integers(0, 1 << 32), st.floats(0, 1e10)), max_size=20
)


@given(attempts)
def test_round_trip(noted: dict[bytes, Attempt]) -> None:
    """What was encoded is decoded again, in the same order."""
    assert list(decode_attempts(encode_attempts(noted)).items()) == list(noted.items())


@given(st.binary(max_size=40))
def test_any_bytes(value: bytes) -> None:
    """Whatever stands there is read as attempts or as none, and never fails."""
    assert isinstance(decode_attempts(value), dict)


@given(attempts, st.integers(0, 8))
def test_cut_short(noted: dict[bytes, Attempt], missing: int) -> None:
    """A value that lost its end counts as none."""
    value = encode_attempts(noted)

    assert decode_attempts(value[: len(value) - 1 - missing]) == {}
