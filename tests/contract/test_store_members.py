"""The store contract: workers announce themselves, and the locks of dead ones are broken together."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from devkit.waits import until
from engine.fakes import FakeEndpoint
from engine.runs import a_worker
from remora.config import Settings, SupervisorSettings
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost
from remora.model.member import HandOverRequest, Member, Offer
from remora.model.shard import LockHolder, LockToken, Origin, Shard
from remora.ports.store import ShardStore
from remora.process.pipe import Start
from remora.storage.rados import members as rados_members
from remora.storage.sqlite import members as sqlite_members
from remora.worker.dead_owner_sweep import DeadOwnerSweep
from support.stores import QUIET_S, Bench, renew

LONG_S, SHORT_S = 60.0, 0.3


def a_member(worker: str, shards: int = 0) -> Member:
    return Member(f"remora/h/{uuid.uuid4().hex}/{worker}", "h", shards)


async def known(store: ShardStore, *of: Member) -> Sequence[Member]:
    """Those of these workers that count; one cluster's other tests may have workers too."""
    cookies = {each.cookie for each in of}
    return [each for each in await store.members.live() if each.cookie in cookies]


async def test_workers_know_each_other(bench: Bench) -> None:
    """What one worker announces another reads as it was, the newest of each, in the order of the cookies."""
    other = await bench.another()
    offer = Offer("remora/h/b/two", (Shard("tenant:q", Origin.RADOSGW), Shard("ünïcode.3", Origin.REMORA)))
    one = Member("remora/h/a/one", "h", 7, True, (offer,), (Shard("t"),))
    two = Member("remora/h/b/two", "h")

    await other.members.announce(two, LONG_S)
    await bench.store.members.announce(Member(one.cookie, "h", 1), LONG_S)
    await bench.store.members.announce(one, LONG_S)

    assert list(await known(bench.store, one, two)) == [one, two]
    assert list(await known(other, one, two)) == [one, two]
    await bench.store.members.withdraw(one.cookie)
    await other.members.withdraw(two.cookie)


@dataclass(frozen=True, slots=True)
class FormerOffer:
    """An offer as releases wrote it that knew no balance by load."""

    to: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A row as such releases wrote it."""

    cookie: str
    host: str
    shards: int = 0
    draining: bool = False
    offers: tuple[FormerOffer, ...] = ()
    expects: tuple[Shard, ...] = ()


class FormerRow(msgspec.Struct, frozen=True):
    """What they read of a row in RADOS."""

    number: int
    ttl_s: float
    member: FormerMember


def a_loaded_member() -> Member:
    """A row that says all that a row can say."""
    offers = (
        Offer("remora/h/b/two", (Shard("t.1"), Shard("t.2")), 0.25, 1.5e6),
        Offer("remora/h/b/two", (Shard("t.3", Origin.REMORA),)),
    )
    return Member(
        f"remora/h/b/{uuid.uuid4().hex}",
        "h",
        9,
        True,
        offers,
        (Shard("u"),),
        usage=0.875,
        history=0.5,
        bytes=3.25e7,
        skew=-2,
        quarantined=("kafka://b1:9092,b2:9092",),
        wants=((17, 4_096), (4_294_967_295, None)),
        asks=(HandOverRequest(Shard("t.4"), "remora/h/b/two"),),
    )


async def test_what_a_worker_says_of_its_load_is_read_as_it_was(bench: Bench) -> None:
    """Usage, history, bytes, skew, what an offer takes along, and what a command asks for reach the other workers."""
    other, member = await bench.another(), a_loaded_member()

    await bench.store.members.announce(member, LONG_S)

    assert list(await known(other, member)) == [member]
    await bench.store.members.withdraw(member.cookie)


async def test_rows_of_older_releases_are_read(bench: Bench) -> None:
    """A worker that says nothing of its load counts all the same, without usage and skew, and its offers even out."""
    offers = (FormerOffer("remora/h/b/two", (Shard("t.1"),)),)
    former = FormerMember(f"remora/h/b/{uuid.uuid4().hex}", "h", 4, offers=offers, expects=(Shard("u"),))

    await bench.store.members.announce(former, LONG_S)  # type: ignore[arg-type]  # an older row

    expected = Member(former.cookie, "h", 4, offers=(Offer("remora/h/b/two", (Shard("t.1"),)),), expects=(Shard("u"),))
    assert list(await known(bench.store, expected)) == [expected]
    assert expected.usage is None
    await bench.store.members.withdraw(former.cookie)


async def test_older_releases_read_rows_of_this_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an older release finds in a row what it knows, with all shards on offer, and skips the rest."""
    other, member = await bench.another(), a_loaded_member()
    await bench.store.members.announce(member, LONG_S)
    monkeypatch.setattr(rados_members, "_decoder", msgspec.msgpack.Decoder(FormerRow))
    monkeypatch.setattr(sqlite_members, "_decoder", msgspec.msgpack.Decoder(FormerMember))

    row: object = (await known(other, member))[0]

    assert row == FormerMember(
        member.cookie,
        "h",
        9,
        draining=True,
        offers=(
            FormerOffer("remora/h/b/two", (Shard("t.1"), Shard("t.2"))),
            FormerOffer("remora/h/b/two", (Shard("t.3", Origin.REMORA),)),
        ),
        expects=(Shard("u"),),
    )
    await bench.store.members.withdraw(member.cookie)


async def test_who_withdraws_counts_no_more(bench: Bench) -> None:
    """A worker that withdrew, or that another withdrew, is gone at once for all; doing it again is no error."""
    other, one, two = await bench.another(), a_member("1"), a_member("2")
    await bench.store.members.announce(one, LONG_S)
    await bench.store.members.announce(two, LONG_S)
    assert list(await known(other, one, two)) == sorted([one, two], key=lambda each: each.cookie)

    await bench.store.members.withdraw(one.cookie)
    await other.members.withdraw(two.cookie)
    await other.members.withdraw(two.cookie)

    assert await known(other, one, two) == await known(bench.store, one, two) == []


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_silent_worker_counts_no_more(bench: Bench) -> None:
    """A worker that announces nothing for its time to live is dropped, one that goes on counts, and may come back."""
    other, silent, lively = await bench.another(), a_member("1"), a_member("2")
    await bench.store.members.announce(silent, SHORT_S)
    await bench.store.members.announce(lively, LONG_S)

    async def dropped() -> bool:
        return list(await known(other, silent, lively)) == [lively]

    await until(dropped)
    await bench.store.members.announce(silent, LONG_S)

    assert len(await known(other, silent, lively)) == 2
    await bench.store.members.withdraw(silent.cookie)
    await bench.store.members.withdraw(lively.cookie)


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_locks_of_the_dead_are_broken(bench: Bench) -> None:
    """Of all locks exactly those of dead cookies are broken, and the queues that are free now are named."""
    other = await bench.another()
    shards = [await bench.queue() for _ in range(5)]
    dead = f"remora/h/b/{uuid.uuid4().hex}"
    for number in (0, 2, 4):
        await bench.held(shards[number], dead)
    await bench.held(shards[1], f"remora/h/b/{uuid.uuid4().hex}")

    freed = await other.locks.evict_all(lambda cookie: cookie == dead)

    assert sorted(freed) == sorted(shards[number] for number in (0, 2, 4))
    answers = [await other.locks.acquire(shard, "w2", QUIET_S) for shard in shards]
    assert [type(answer) for answer in answers] == [LockToken, LockHolder, LockToken, LockToken, LockToken]
    assert await other.locks.evict_all(lambda cookie: cookie == dead) == []


async def test_who_announces_itself_keeps_its_locks(bench: Bench, tmp_path: Path) -> None:
    """A worker of another host with this host's name keeps its lock while it announces itself, and not when silent."""
    shard, other, host = await bench.queue(), await bench.another(), uuid.uuid4().hex
    clone = Member(f"remora/{host}/other-boot/w", host)
    token = await bench.held(shard, clone.cookie)
    await bench.store.members.announce(clone, LONG_S)
    settings = Settings(supervisor=SupervisorSettings(run_directory=str(tmp_path / "run")))
    start = Start(
        number=1,
        cookie=f"remora/{host}/boot/w",
        settings=settings,
        listeners={},
        load=-1,
        workers=1,
        dead=(),
        sweeps=True,
        drains=False,
    )
    worker, clearing = a_worker(other, FakeEndpoint(), cookie=start.cookie), DeadOwnerSweep(start, Telemetry())

    await worker.clear(clearing.is_dead)
    await renew(bench.store, token, QUIET_S)
    await bench.store.members.withdraw(clone.cookie)
    await worker.clear(clearing.is_dead)

    with pytest.raises(OwnershipLost):
        await renew(bench.store, token, QUIET_S)


async def test_no_lock_is_broken_where_nobody_is_dead(bench: Bench) -> None:
    """Where no cookie is dead nothing is broken, and every holder was asked about."""
    other, cookie = await bench.another(), f"remora/h/b/{uuid.uuid4().hex}"
    token = await bench.held(await bench.queue(), cookie)
    asked: list[str] = []

    def nobody(of: str) -> bool:
        asked.append(of)
        return False

    assert await other.locks.evict_all(nobody) == []

    assert cookie in asked
    await bench.store.queue.read(token, b"", 1)
