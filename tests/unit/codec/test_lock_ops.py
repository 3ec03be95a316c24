"""What is sent to and read from the lock class, against known bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import lock_ops
from remora.codec.ceph import FieldWriter
from remora.codec.lock_ops import LockFlags, LockInfo, LockType, decode_lock_info
from remora.model.entry import Time
from remora.model.errors import CodecError
from unit.codec.samples import LockerSample, framed, lock_info, times

COOKIE = "abcdefghijklmnop"


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (
            lock_ops.encode_lock("q_lock", COOKIE, Time(90, 0), LockFlags.MAY_RENEW),
            "01013000000006000000715f6c6f636b01100000006162636465666768696a6b6c6d6e6f7000000000000000005a0000000000000001",
        ),
        (
            lock_ops.encode_assert_locked("q_lock", COOKIE),
            "01012300000006000000715f6c6f636b01100000006162636465666768696a6b6c6d6e6f7000000000",
        ),
        (
            lock_ops.encode_unlock("q_lock", COOKIE),
            "01011e00000006000000715f6c6f636b100000006162636465666768696a6b6c6d6e6f70",
        ),
        (
            lock_ops.encode_break("q_lock", "client.4116", COOKIE),
            "01012700000006000000715f6c6f636b081410000000000000100000006162636465666768696a6b6c6d6e6f70",
        ),
        (lock_ops.encode_get_info("q_lock"), "01010a00000006000000715f6c6f636b"),
        (
            lock_ops.encode_lock(
                "l", "c", Time(1, 2), LockFlags.MUST_RENEW, kind=LockType.SHARED, tag="t", description="d"
            ),
            "01011e000000010000006c02010000006301000000740100000064010000000200000002",
        ),
    ],
)
def test_requests_are_the_known_bytes(made: bytes, known: str) -> None:
    """Each request equals the bytes that a real OSD accepted, renewals being the last flag."""
    assert made.hex() == known


@pytest.mark.parametrize("entity", ["", "client", "client.", "client.x", "nobody.1", ".1"])
def test_an_entity_that_cannot_hold_a_lock_is_refused(entity: str) -> None:
    """Only what a lock's state can have named can be evicted."""
    with pytest.raises(ValueError):
        lock_ops.encode_break("q_lock", entity, COOKIE)


def test_a_held_lock_is_read() -> None:
    """Entity, cookie, end of the lease, address and description of each holder are told."""
    info = decode_lock_info(lock_info([LockerSample(description="d\xe9")], tag="tag"))

    (locker,) = info.lockers
    assert (locker.entity, locker.cookie, locker.expiration) == ("client.4116", COOKIE, Time(1_700_000_090, 5))
    assert (locker.address, locker.description) == ("127.0.0.1:0/3141592", "d\xe9")
    assert (info.type, info.tag) == (LockType.EXCLUSIVE, "tag")


def test_a_lock_that_nobody_holds_is_read() -> None:
    """No lockers and type 0, as the class answers for a lock that was never taken."""
    assert decode_lock_info(lock_info([], kind=0)) == LockInfo((), LockType.NONE, "")


@pytest.mark.parametrize(
    ("sockaddr", "text"),
    [
        (bytes.fromhex("0200 1a90 0a000102 0000000000000000"), "10.0.1.2:6800/3141592"),
        (
            bytes.fromhex("0a00 1a90 00000000 20010db8000000000000000000000001 00000000"),
            "[2001:db8::1]:6800/3141592",
        ),
        (b"", ""),
        (b"\2\0\0\0\x7f", ""),
        (b"\x0a\0" + bytes(21), ""),
        (b"\1\0/unix", ""),
    ],
)
def test_addresses_are_shown_as_far_as_they_are_known(sockaddr: bytes, text: str) -> None:
    """IPv4 and IPv6 have a text; other or cut-off ones have none and do no harm."""
    if text.startswith("["):  # in sockaddr_in6 the flow label stands between port and address
        sockaddr = sockaddr[:4] + sockaddr[4:8] + sockaddr[8:]

    assert decode_lock_info(lock_info([LockerSample(address=sockaddr)])).lockers[0].address == text


def test_the_address_form_of_old_clients_is_read() -> None:
    """The form before the ADDR2 feature holds a whole sockaddr_storage."""
    storage = bytes.fromhex("0002 1a90 7f000001").ljust(128, b"\0")
    locker_id = framed(lambda w: w.u8(8).s64(7).text("c"))
    info = framed(lambda w: w.time(Time(1, 2)).u8(0).raw(bytes(3)).u32(9).raw(storage).text("old"))
    data = framed(lambda w: w.u32(1).raw(locker_id).raw(info).u8(1).text(""))

    (locker,) = decode_lock_info(data).lockers

    assert (locker.address, locker.description) == ("127.0.0.1:6800/9", "old")


def test_an_unknown_form_of_address_is_refused() -> None:
    """A marker that no release writes is named with its place."""
    data = bytearray(lock_info([LockerSample()]))
    at = data.index(bytes.fromhex("010101")) if b"\1\1\1" in data else -1
    assert at > 0
    data[at] = 9

    with pytest.raises(CodecError, match=r"address.marker at byte \d+: unknown form 9"):
        decode_lock_info(bytes(data))


samples = st.builds(
    LockerSample,
    kind=st.sampled_from([1, 2, 4, 8, 16, 32, 77]),
    number=st.integers(-(2**63), 2**63 - 1),
    cookie=st.text(max_size=20),
    expiration=times,
    address=st.binary(max_size=32),
    nonce=st.integers(0, 2**32 - 1),
    description=st.text(max_size=20),
)


@given(st.lists(samples, max_size=4), st.integers(0, 255), st.text(max_size=5))
def test_any_lock_is_read_and_its_holders_can_be_named(lockers: list[LockerSample], kind: int, tag: str) -> None:
    """Every holder comes back, and breaking its lock encodes the same entity and cookie."""
    info = decode_lock_info(lock_info(lockers, kind, tag))

    assert (len(info.lockers), info.type, info.tag) == (len(lockers), kind, tag)
    for sample, locker in zip(lockers, info.lockers, strict=True):
        named = FieldWriter().u8(sample.kind).s64(sample.number).text(sample.cookie).encoded()
        assert lock_ops.encode_break("n", locker.entity, locker.cookie)[6 + 5 :] == named
        assert (locker.expiration, locker.description) == (sample.expiration, sample.description)


def test_a_cookie_that_is_not_utf8_can_still_be_broken() -> None:
    """Any bytes in another client's cookie survive being read and sent back."""
    cookie = b"\xff\xfe".decode("utf-8", "surrogateescape")

    (locker,) = decode_lock_info(lock_info([LockerSample(cookie=cookie)])).lockers

    assert lock_ops.encode_break("n", locker.entity, locker.cookie).endswith(b"\2\0\0\0\xff\xfe")
