"""Any bytes at all give a value or one CodecError, and cost no more memory than they are long."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.errors import CodecError
from unit.codec.decoders import Decoder, all_decoders
from unit.codec.samples import mutated

pytestmark = pytest.mark.guarantee("radosgws-bytes")

DECODERS = all_decoders()
every_decoder = pytest.mark.parametrize("decoder", DECODERS, ids=[d.name for d in DECODERS])


def check(decoder: Decoder, data: bytes) -> bool:
    """Whether the bytes were accepted; fails for anything but a value or a CodecError that says where."""
    error = refusal(decoder, data)
    assert error is None or (error.field and error.reason and 0 <= error.offset <= len(data))
    return error is None


def refusal(decoder: Decoder, data: bytes) -> CodecError | None:
    """The error that the decoder gives for these bytes."""
    try:
        decoder.decode(data)
    except CodecError as error:
        return error
    return None


@every_decoder
def test_valid_bytes_are_accepted(decoder: Decoder) -> None:
    """Each decoder takes its samples; otherwise the tests below would only ever see refusals."""
    assert all(check(decoder, data) for data in decoder.valid)


@every_decoder
@given(st.data())
@settings(max_examples=60)
def test_random_bytes_do_no_harm(decoder: Decoder, data: st.DataObject) -> None:
    """Bytes without any structure give a value or a CodecError."""
    check(decoder, data.draw(st.binary(max_size=200)))


@every_decoder
@given(st.data())
@settings(max_examples=300)
def test_damaged_bytes_do_no_harm(decoder: Decoder, data: st.DataObject) -> None:
    """Valid input with flipped bits, overwritten lengths, and parts cut out or doubled does neither."""
    check(decoder, data.draw(mutated(decoder.valid)))


@every_decoder
def test_no_prefix_does_harm(decoder: Decoder) -> None:
    """Input cut off after any byte gives a value or a CodecError."""
    for data in decoder.valid[:3]:
        for cut in range(len(data)):
            check(decoder, data[:cut])


@every_decoder
@pytest.mark.parametrize("word", [0x10_0000, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_no_length_allocates_more_than_the_input(decoder: Decoder, word: int) -> None:
    """With any four bytes turned into a huge number, a decoder needs some kilobytes at most.

    Each input is measured by itself: when Python collects what the errors of others have left differs by process.
    """
    data = decoder.valid[0]
    changed = [data[:at] + word.to_bytes(4, "little") + data[at + 4 :] for at in range(len(data) - 3)]
    for each in changed:
        check(decoder, each)  # what is made once and kept, such as code and caches, is made here

    most = 0
    tracemalloc.start()
    try:
        for each in changed:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            check(decoder, each)
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()

    assert most < 64 * 1024
