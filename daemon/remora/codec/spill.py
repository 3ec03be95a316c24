"""Runs of spilled entries as they are stored: the object of a run, and what names it in the omap of its queue."""

from __future__ import annotations

import hashlib
import sys

import msgspec

from remora.model.errors import CodecError
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken, Origin, Shard
from remora.model.spill import SpilledRun

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RUN_KEY = "remora.run."
"""The beginning of the omap keys that name runs; a run's first position follows."""

RUN_BYTES = 4 << 20
"""The payload bytes of a run at most, unless its only entry is larger."""

RUN_ENTRIES = 4096

MOST_RUNS = 65_536
"""The runs of a queue are read in one operation."""

_PLAIN, _PACKED = b"0", b"1"


class _StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """A run under its key. A newer version may add fields, which are skipped, but never change these."""

    version: int
    name: str
    end: str
    entries: int
    nbytes: int
    stored_bytes: int
    digest: str
    pool: str


class RunOwner(msgspec.Struct, frozen=True, array_like=True):
    """What `remora.runs` says of a run: whose it is, how many bytes of the pool it takes, and where the queue lies.

    Zones may share a pool, and keep their queues in namespaces of their own.
    """

    version: int
    queue: str
    origin: str
    incarnation: str
    nbytes: int
    pool: str
    place: str

    @property
    def shard(self) -> Shard:
        """The queue."""
        return Shard(self.queue, Origin(self.origin))


_decode_run = msgspec.msgpack.Decoder(_StoredRun).decode
_decode_owner = msgspec.msgpack.Decoder(RunOwner).decode
_decode_page = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes]]).decode


def encode_page(page: Page) -> bytes:
    """The bytes of a run's object: a letter for the form, then positions and entries, by zstd where that is less."""
    plain = msgspec.msgpack.encode((page.positions, page.entries))
    packed = zstd.compress(plain, level=1)
    return _PACKED + packed if len(packed) < len(plain) else _PLAIN + plain


def decode_page(data: bytes, run: SpilledRun) -> Page:
    """The entries of a run, with their positions. Raises CodecError where these are not the bytes that were stored."""
    if len(data) != run.stored_bytes or digest_of(data) != run.digest:
        raise CodecError(f"run {run.name}", 0, "its bytes are not those that were stored")
    try:
        plain = zstd.decompress(data[1:]) if data[:1] == _PACKED else data[1:]
        positions, entries = _decode_page(plain)
    except (zstd.ZstdError, msgspec.MsgspecError) as exc:
        raise CodecError(f"run {run.name}", 0, str(exc)) from exc
    if len(entries) != run.entries or len(positions) != run.entries + 1:
        raise CodecError(f"run {run.name}", 0, f"{len(entries)} entries instead of {run.entries}")
    return Page(positions, entries, True)


def digest_of(data: bytes) -> str:
    """The checksum of a run's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def run_key(run: SpilledRun) -> str:
    """The key that names a run in the omap of its queue."""
    return f"{RUN_KEY}{run.first}"


def encode_run(run: SpilledRun) -> bytes:
    """What stands under a run's key."""
    return msgspec.msgpack.encode(
        _StoredRun(1, run.name, str(run.end), run.entries, run.nbytes, run.stored_bytes, run.digest, run.pool)
    )


def decode_run(key: str, value: bytes) -> SpilledRun:
    """The run that a key names. Raises CodecError."""
    try:
        stored = _decode_run(value)
        first, end = Position.parse(key.removeprefix(RUN_KEY)), Position.parse(stored.end)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CodecError(key, 0, str(exc)) from exc
    entries, nbytes, stored_bytes = stored.entries, stored.nbytes, stored.stored_bytes
    return SpilledRun(stored.name, first, end, entries, nbytes, stored_bytes, stored.digest, stored.pool)


def encode_owner(token: LockToken, run: SpilledRun, place: str) -> bytes:
    """What `remora.runs` says of a run of this queue, which lies in a place."""
    shard = token.shard
    owner = RunOwner(1, shard.queue, str(shard.origin), token.incarnation, run.stored_bytes, run.pool, place)
    return msgspec.msgpack.encode(owner)


def decode_owner(name: str, value: bytes) -> RunOwner:
    """Whose a run is. Raises CodecError."""
    try:
        owner = _decode_owner(value)
        Origin(owner.origin)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CodecError(f"run {name} in remora.runs", 0, str(exc)) from exc
    return owner
