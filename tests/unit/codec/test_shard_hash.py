"""Events go into the shards that Ceph would choose."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.shard_hash import shard, shard_hash, shards


@pytest.fixture(scope="module")
def libstdcxx() -> Callable[[bytes], int]:
    """What `std::hash<std::string>` calls, from the library that Ceph runs with."""
    name = ctypes.util.find_library("stdc++")
    if name is None:
        pytest.skip("no libstdc++ here")
    hash_bytes = ctypes.CDLL(name)._ZSt11_Hash_bytesPKvmm
    hash_bytes.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    hash_bytes.restype = ctypes.c_size_t
    return lambda key: int(hash_bytes(key, len(key), 0xC70F6907))


@pytest.mark.parametrize(
    ("key", "known", "of_eleven"),
    [
        (b"", 0x553E93901E462A6E, 6),
        (b"a", 0x454DDEE488C1ED6B, 7),
        (b"bkt:key1", 0x990EE78008A40517, 9),
        (b"b:12345678", 0x11BF932E42F2170D, 6),
        (b"mybucket:photos/2024/01/01/img.jpg", 0x31A6886D9AAE9794, 4),
    ],
)
def test_keys_have_the_hashes_that_a_cxx_program_prints(key: bytes, known: int, of_eleven: int) -> None:
    """Values of `std::hash<std::string>` in a program made by g++, and the shard of eleven that follows."""
    assert (shard_hash(key), shard(key, 11)) == (known, of_eleven)


@given(key=st.binary(max_size=1100) | st.text(max_size=40).map(str.encode))
def test_the_hash_is_that_of_libstdcxx(libstdcxx: Callable[[bytes], int], key: bytes) -> None:
    """Any key has the hash that the library itself computes."""
    assert shard_hash(key) == libstdcxx(key)


@given(
    st.lists(st.binary(max_size=12) | st.binary(min_size=30, max_size=60) | st.binary(max_size=1100), max_size=60),
    st.integers(1, 1024),
)
def test_many_keys_go_where_each_would_go_alone(keys: list[bytes], count: int) -> None:
    """Whatever keys are asked for together, each has the shard that it has by itself."""
    assert list(shards(keys, count)) == [shard(key, count) for key in keys]


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x80"])
@pytest.mark.parametrize("length", [7, 8, 15, 16, 23])
def test_neighbours_do_not_touch_each_other(fill: bytes, length: int) -> None:
    """Keys of the largest or smallest words carry nothing over to the key beside them, with a tail and without."""
    keys = [fill * length, b"a" * length, fill * length, bytes(range(length)), fill * length]

    assert list(shards(keys, 1 << 63)) == [shard(key, 1 << 63) for key in keys]
