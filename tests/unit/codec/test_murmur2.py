"""Keys go to the partitions that every other Kafka client would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as plain_murmur2
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import murmur2 as in_python
from remora.codec import speedups
from remora.codec.murmur2 import murmur2, partition

Way = Callable[[Sequence[bytes], int], Sequence[int]]

each_way = pytest.mark.parametrize(
    "way", dict.fromkeys([in_python.partitions, speedups.partitions]), ids=lambda way: way.__module__.rpartition(".")[2]
)


@given(st.binary(max_size=64) | st.binary(max_size=1400))
def test_the_hash_is_kafkas(key: bytes) -> None:
    """Any key has the hash that aiokafka's own, slow implementation gives."""
    assert murmur2(key) == plain_murmur2(key) & 0xFFFF_FFFF


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 1195, 1196, 1199, 1200, 1201, 5003])
def test_the_hash_is_kafkas_at_every_seam(length: int) -> None:
    """Keys around the sizes at which the code changes its way agree too."""
    key = bytes(i * 7 & 0xFF for i in range(length))

    assert murmur2(key) == plain_murmur2(key) & 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("key", "known"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_the_hash_has_the_values_of_kafkas_own_tests(key: bytes, known: int) -> None:
    """The values that the Java client's tests expect."""
    assert murmur2(key) == known & 0xFFFF_FFFF


@given(st.binary(min_size=1, max_size=40), st.integers(1, 100))
def test_the_partition_is_that_of_the_default_partitioner(key: bytes, count: int) -> None:
    """For every key and number of partitions, aiokafka's default partitioner chooses the same."""
    every = list(range(count))

    assert partition(key, count) == DefaultPartitioner()(key, every, every)


@each_way
@given(st.lists(st.binary(max_size=12) | st.binary(min_size=40, max_size=1400), max_size=40), st.integers(1, 100))
def test_many_keys_go_where_each_would_go_alone(way: Way, keys: list[bytes], count: int) -> None:
    """Whatever keys are asked for together, each has the partition that it has by itself."""
    assert list(way(keys, count)) == [partition(key, count) for key in keys]


@each_way
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x80"])
def test_neighbours_do_not_touch_each_other(way: Way, fill: bytes) -> None:
    """Keys of one length and the largest or smallest words carry nothing over to the key beside them."""
    keys = [fill * 23, b"a" * 23, fill * 23, bytes(range(23)), fill * 23]

    assert list(way(keys, 1 << 31)) == [partition(key, 1 << 31) for key in keys]
