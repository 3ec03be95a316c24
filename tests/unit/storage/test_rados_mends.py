"""What is sent to an OSD to mend a queue, and before anything of ours reaches an old head; the contract suite has real
OSDs for the same."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from devkit.clock import in_virtual_time
from remora.codec.queue_ops import encode_abort, encode_reserve
from remora.model.entry import Time
from remora.model.errors import QueueFull, StoreError, StoreUnavailable
from remora.model.shard import LockToken, Shard
from remora.ports.credit import NO_TRAFFIC
from remora.storage.librados import operations
from remora.storage.librados.operations import ObjectBytes, ObjectOperation, WriteOp, Xattrs
from remora.storage.rados.cluster.osds import OsdReleases, Osds
from remora.storage.rados.cluster.refusals import ChangedError
from remora.storage.rados.queues import old_heads as old_heads_module
from remora.storage.rados.queues.old_heads import OldHeads, RadosMends
from support.librados_steps import Step, StepRecorder
from unit.codec.samples import queue_head, reservation

Q = Shard("q")
TOKEN = LockToken(Q, "cookie", "incarnation")
OLD, FIXED = OsdReleases({(16, 2, 15): 3}), OsdReleases({(20, 2, 4): 3})
MIXED = OsdReleases({(16, 2, 15): 2, (20, 2, 4): 1})


class Osd(StepRecorder):
    """An object at one OSD, as a connection has it: what it is asked is kept, and answered with a head that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.head = b""
        self.version = 7
        self.osds = Osds()
        self.refuses: Callable[[list[Step]], StoreError | None] = lambda _: None
        self.writes: list[list[Step]] = []
        self.reads = 0
        self.session = SimpleNamespace(placement=SimpleNamespace(notif="pool", own="own"))
        self.traffic = NO_TRAFFIC

    async def run(self, operation: ObjectOperation, *_: object) -> int:
        steps = self.taken()
        if isinstance(operation, WriteOp):
            self.writes.append(steps)
            if error := self.refuses(steps):
                raise error
            return self.version
        self.reads += 1
        for cell in operation._cells:
            if isinstance(cell, ObjectBytes):
                cell.data = self.head
            elif isinstance(cell, Xattrs):
                cell.values = {}
        return self.version


@pytest.fixture
def osd(monkeypatch: pytest.MonkeyPatch) -> Osd:
    found = Osd()
    monkeypatch.setattr(operations, "load", lambda: found)
    return found


def called(steps: list[Step]) -> list[Step]:
    """The steps without what they answer into: the method and request of class calls, all of others."""
    return [(each[1].decode(), each[2].decode(), each[3]) if each[0] == "exec" else each for each in steps]


async def test_a_mend_is_written_over_what_was_read_only(osd: Osd) -> None:
    """The write demands the version and the bytes up to the sum that were read, and replaces these 8 bytes alone."""
    osd.head = queue_head(reserved=5000, reservations=[reservation(3, 100, Time(1, 2), 2)], urgent_version=2)

    await RadosMends(osd).mend_unheld(Q)  # type: ignore[arg-type]

    head = osd.head[:102]
    assert osd.writes == [
        [("assert_exists",), ("assert_version", 7), ("cmpext", head, 102, 0, None),
         ("write", struct.pack("<Q", 120), 8, 94)],
    ]  # fmt: skip


async def test_a_holder_shows_its_lock(osd: Osd) -> None:
    """A holder's write demands the queue's incarnation and its lock as well."""
    osd.head = queue_head(reserved=5000)

    await RadosMends(osd).mend(TOKEN)  # type: ignore[arg-type]

    (steps,) = osd.writes
    assert [each[0] for each in steps] == ["assert_exists", "cmpxattr", "exec", "assert_version", "cmpext", "write"]
    assert called(steps)[2][:2] == ("lock", "assert_locked")


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (queue_head(reserved=5000, urgent_version=4), "does not know"),
        (queue_head(reserved=5000)[:80], "cannot be read"),
        (b"\0" * 2048, "cannot be read"),
    ],
    ids=["later", "cut", "no queue"],
)
async def test_what_is_not_understood_is_not_written(osd: Osd, head: bytes, error: str) -> None:
    """A head of a later form, a cut one, and an object that is no queue are refused before anything is sent."""
    osd.head = head

    with pytest.raises(StoreError, match=error):
        await RadosMends(osd).mend_unheld(Q)  # type: ignore[arg-type]

    assert osd.writes == []


async def test_a_mend_that_loses_looks_again(osd: Osd) -> None:
    """After a write that was refused comes another look; where others always come first, it is given up, unharmed."""
    osd.head = queue_head(reserved=5000)

    def changed(_: list[Step]) -> StoreError:
        osd.version += 1
        osd.head = queue_head(reserved=5000, last_id=osd.version)
        return ChangedError("others came first")

    osd.refuses = changed
    done = await RadosMends(osd).mend_unheld(Q)  # type: ignore[arg-type]

    assert (done.after, done.is_busy) == (None, True)
    assert [steps[1] for steps in osd.writes] == [("assert_version", 7 + number) for number in range(20)]


# ------------------------------------------------------------------------------------------------ releases


class Cluster:
    """Monitors that answer with this epoch and these releases, or not at all."""

    def __init__(self) -> None:
        self.epoch, self.release, self.is_away = 7, "16.2.15", False
        self.asked: list[str] = []

    async def ask_monitors(self, prefix: str) -> bytes:
        self.asked.append(prefix)
        if self.is_away:
            raise StoreUnavailable("no monitor answers")
        answers = {
            "osd stat": {"epoch": self.epoch, "num_osds": 2},
            "osd versions": {f"ceph version {self.release}": 2},
        }
        return json.dumps(answers[prefix]).encode()


@in_virtual_time
async def test_the_releases_are_asked_for_when_other_osds_are_up() -> None:
    """The monitors are asked for the epoch every five seconds, and for the releases when it has changed; what they said
    last stands while they are away."""
    cluster, osds = Cluster(), Osds()
    await osds.ask(cluster)
    asking = asyncio.ensure_future(osds.keep_asking(cluster))
    await asyncio.sleep(21)
    assert cluster.asked == ["osd stat", "osd versions", *["osd stat"] * 4]

    cluster.is_away, cluster.epoch, cluster.release = True, 8, "20.2.4"
    await asyncio.sleep(10)
    assert (osds.releases, osds.changes) == (OsdReleases({(16, 2, 15): 2}), 1)

    cluster.is_away = False
    await asyncio.sleep(5)
    assert (osds.releases, osds.changes) == (OsdReleases({(20, 2, 4): 2}), 2)
    asking.cancel()


# ---------------------------------------------------------------------------------------------- old heads


def heads(osd: Osd, *, may_write: bool = True) -> OldHeads:
    return OldHeads(osd, RadosMends(osd), may_write=may_write)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("releases", "version", "touched"),
    [(OLD, 1, False), (OLD, 2, False), (FIXED, 1, True), (FIXED, 2, True), (FIXED, 3, False), (MIXED, 2, True),
     (OsdReleases(), 1, True), (OsdReleases(), 3, False)],
)  # fmt: skip
@in_virtual_time
async def test_old_heads_are_counted_by_osds_that_can(
    osd: Osd, releases: OsdReleases, version: int, touched: bool
) -> None:
    """Where OSDs may have the fix and the head is old, a byte is reserved at the version that was read, and aborted."""
    osd.osds.note(releases)
    osd.head = queue_head(last_id=2**32 - 1, urgent_version=version)

    await heads(osd).settle(Q)

    expected = [
        [("assert_exists",), ("assert_version", 7), ("2pc_queue", "2pc_queue_reserve", encode_reserve(1, 1))],
        [("assert_exists",), ("2pc_queue", "2pc_queue_abort", encode_abort(0))],
    ]
    assert [called(each) for each in osd.writes] == (expected if touched else [])


@in_virtual_time
async def test_a_queue_is_looked_at_again_when_its_osd_may_be_another(osd: Osd) -> None:
    """Not while the cluster stays as it is, but when other OSDs are up, and every ten seconds while both kinds are."""
    osd.osds.note(FIXED)
    osd.head = queue_head(urgent_version=3)
    old_heads, looks = heads(osd), []

    for releases, pause_s in ((FIXED, 0.0), (FIXED, 100.0), (OsdReleases({(20, 2, 4): 2}), 0.0), (MIXED, 0.0),
                              (MIXED, 9.0), (MIXED, 1.0), (OLD, 100.0)):  # fmt: skip
        osd.osds.note(releases)
        await asyncio.sleep(pause_s)
        await old_heads.settle(Q)
        looks.append(osd.reads)

    assert looks == [1, 1, 2, 3, 3, 4, 4]


@in_virtual_time
async def test_a_bounded_number_of_old_heads_is_known(osd: Osd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more queues than are known the one that was looked at longest ago is looked at once more."""
    monkeypatch.setattr(old_heads_module, "MOST_SETTLED", 2)
    osd.osds.note(FIXED)
    osd.head = queue_head(urgent_version=3)
    old_heads, looks = heads(osd), []

    for name in ("a", "b", "c", "b", "c", "a", "c"):
        await old_heads.settle(Shard(name))
        looks.append(osd.reads)

    assert looks == [1, 2, 3, 3, 3, 4, 4]
    assert len(old_heads._settled) == 2


@in_virtual_time
async def test_a_gateway_that_comes_between_has_done_it(osd: Osd) -> None:
    """Where our byte is refused since another client came first, the next look sees what that has made of the head."""
    osd.osds.note(FIXED)
    osd.head = queue_head(urgent_version=2)

    def changed(_: list[Step]) -> StoreError:
        osd.head = queue_head(urgent_version=3)
        return ChangedError("others came first")

    osd.refuses = changed
    await heads(osd).settle(Q)

    assert (osd.reads, len(osd.writes)) == (2, 1)


@pytest.mark.parametrize("may_write", [True, False])
@pytest.mark.parametrize("cause", ["full", "id taken"])
@in_virtual_time
async def test_a_queue_that_takes_no_byte_is_mended(osd: Osd, cause: str, may_write: bool) -> None:
    """Where no byte can be reserved, or librados would repeat that until another reservation ends, the sum is written;
    unless the operator wants no mends."""
    osd.osds.note(FIXED)
    taken = [reservation(8, 100, Time(1, 2), 1)] if cause == "id taken" else []
    osd.head = queue_head(last_id=7, reserved=5000, reservations=taken, urgent_version=2)
    osd.refuses = lambda steps: QueueFull("no room") if steps[-1][0] == "exec" else None

    await heads(osd, may_write=may_write).settle(Q)

    sent = [steps[-1][0] for steps in osd.writes]
    assert sent == (["exec"] if cause == "full" else []) + (["write"] if may_write else [])
