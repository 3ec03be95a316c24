"""A supervisor and its workers as real processes, which are killed, frozen, stopped and drained."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import re
import resource
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import START_S, Daemon, complaints, running_daemon
from devkit.processes.processes import children, freeze, gone, state, thaw
from devkit.readers.consumer import read_until
from remora.model.exits import Exit
from remora.model.member import WorkerCookie
from support.ingest import records

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection."""

SHARDS = 4

MOST_STARTS = 5
"""For a test that has to be quicker than a worker is: where it was not, it begins anew."""


def sections(folder: Path, **others: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Two workers on an embedded store, with a lease that no test waits for."""
    found: dict[str, dict[str, object]] = {
        "supervisor": {"workers": 2},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ownership": {"discovery_interval": "500ms"},
        "kafka": {"connect_timeout": "1s", "delivery_timeout": "3s"},
        "delivery": {"drain_timeout": "20s"},
    }
    for name, options in others.items():
        found[name] = found.get(name, {}) | dict(options)
    return found


@asynccontextmanager
async def serving(
    folder: Path, topic: str = "t", endpoint: str = NOBODY, **others: Mapping[str, object]
) -> AsyncIterator[Daemon]:
    """A daemon that holds all shards of a topic."""
    async with running_daemon(folder, sections(folder, **others)) as daemon:
        done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", str(SHARDS))
        assert done.code == Exit.OK, done.err
        await holds_all(daemon)
        yield daemon


async def publish(daemon: Daemon, topic: str, *keys: str) -> None:
    """Have an event for each key stored."""
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://remora/v1/topics/{topic}/events", json=records(*keys)) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def whole(daemon: Daemon) -> bool:
    """Whether both workers are ready."""
    return await daemon.metric("remora_workers") == 2


async def holders(daemon: Daemon) -> dict[str, int]:
    """The pid of the worker that holds each shard."""
    status = await daemon.status()
    pids = {each["number"]: each["pid"] for each in status["workers"]}
    return {each["queue"]: pids[each["worker"]] for each in status["shards"] if each["worker"] in pids}


async def holds_all(daemon: Daemon, *, but: int = 0) -> dict[str, int]:
    """The pid of the worker that holds each shard, as soon as all are held, none of them by the process `but`."""
    found: dict[str, int] = {}

    async def all_held() -> bool:
        nonlocal found
        found = await holders(daemon)
        return len(found) == SHARDS and but not in found.values()

    await daemon.until(all_held, "an owner for each shard")
    return found


def address_space(pid: int) -> int:
    """How many bytes of it a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * mmap.PAGESIZE


@contextlib.asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    """A process that stands still meanwhile; it may end."""
    await freeze([pid])
    try:
        yield
    finally:
        thaw([pid])


# ------------------------------------------------------------------------------------------ replacement


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.kafka
async def test_a_killed_worker_is_replaced_and_its_shards_deliver(kafka: Kafka, folder: Path) -> None:
    """Another worker takes its shards though the lease is long, nothing counted is lost, and the host stays whole."""
    topic = await create_topic(kafka.address, f"sup-{uuid.uuid4().hex[:10]}")
    async with serving(folder, topic, f"kafka://{kafka.address}") as daemon:
        keys = [f"key-{number}" for number in range(20)]
        await publish(daemon, topic, *keys)
        await read_until(kafka.address, topic, len(keys))

        async def all_counted() -> bool:
            delivered = await daemon.metric("remora_delivered_entries_total", topic=topic)
            return delivered == await daemon.metric("remora_removed_entries_total") == len(keys)

        await daemon.until(all_counted, "the count of all deliveries and removals")
        aged = await daemon.metric("remora_event_age_seconds_count", topic=topic)
        victim = next(iter((await holders(daemon)).values()))

        os.kill(victim, signal.SIGKILL)

        await holds_all(daemon, but=victim)
        assert await daemon.metric("remora_delivered_entries_total", topic=topic) == len(keys)
        assert await daemon.metric("remora_event_age_seconds_count", topic=topic) == aged
        later = [f"later-{number}" for number in range(20)]
        await publish(daemon, topic, *later)
        wanted = {f"id-{key}" for key in (*keys, *later)}
        found = await read_until(kafka.address, topic, lambda there: {each.event_id for each in there} >= wanted)
        assert {each.event_id for each in found} == wanted

        await daemon.until(lambda: whole(daemon), "a successor")
        assert victim not in (await daemon.workers()).values()
        assert await daemon.metric("remora_worker_ends_total") == 1
        assert 'reason="killed by SIGKILL"' in daemon.logged()
        assert await daemon.stop() == Exit.OK


async def test_a_worker_without_memory_ends_and_is_replaced(folder: Path) -> None:
    """It says which limit it is, the supervisor says so too, and its queues and events are in the successor's hands."""
    async with serving(folder) as daemon:
        starved = (await holders(daemon)).popitem()[1]
        size = address_space(starved)
        resource.prlimit(starved, resource.RLIMIT_AS, (size, size))

        await daemon.until_logged(f'pid={starved} reason="it could not allocate memory, and said why"')
        await gone([starved])
        await daemon.until(lambda: whole(daemon), "two workers")
        await holds_all(daemon, but=starved)
        await publish(daemon, "t", "a")

        assert f"its address space is limited to {size >> 20} MiB (ulimit -v, LimitAS=)" in daemon.logged()
        assert "Traceback" not in daemon.logged()
        assert await daemon.metric("remora_worker_ends_total") == 1


SMALL_BURSTS = {bucket: {"guaranteed": "100KiB", "burst": "10KiB"} for bucket in ("max", "client_high", "client_low")}

DEALT: dict[str, dict[str, Any]] = {
    "scope": {"shaping": {"scope": [{"name": "uplink", "of": "host", "enabled": True, "meters": SMALL_BURSTS}]}},
    "limit": {"ingest": {"limit": [{"name": "all", "of": "topic", "events": 1000, "burst_events": 100}]}},
}
"""What has the supervisor deal credit out to its workers."""


async def started(daemon: Daemon, number: int) -> int:
    """The pid of the worker process that was started as the `number`th, as soon as it was."""
    async with asyncio.timeout(START_S):
        while len(pids := re.findall(r" worker_started: .* pid=(\d+)", daemon.logged())) < number:  # noqa: ASYNC110  # a log
            await asyncio.sleep(0.005)
    return int(pids[number - 1])


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize(("dealt", "workers"), [("scope", 2), ("limit", 2), ("scope", 1)])
async def test_a_worker_and_its_successor_are_killed_beside_shaped_traffic(
    folder: Path, dealt: str, workers: int
) -> None:
    """The supervisor goes on, all workers come back, and what waits for credit or comes in is served as before."""
    async with serving(folder, supervisor={"workers": workers}, **DEALT[dealt]) as daemon:
        victim = (await daemon.workers())[1]
        before = daemon.logged().count(" worker_started: ")

        os.kill(victim, signal.SIGKILL)
        for number in (before + 1, before + 2):
            os.kill(await started(daemon, number), signal.SIGKILL)

        async def all_ready() -> bool:
            return await daemon.metric("remora_workers") == workers

        await daemon.until(all_ready, "all workers")
        await holds_all(daemon, but=victim)
        await publish(daemon, "t", "a", "b")
        assert await daemon.metric("remora_worker_ends_total") == 3
        assert await daemon.metric("remora_crashes_total") == 0
        assert "Traceback" not in daemon.logged()
        assert await daemon.stop() == Exit.OK


def interpreter(folder: Path) -> Path:
    """A Python of its own for a daemon, with all that this one has."""
    home = folder / "python"
    (home / "bin").mkdir(parents=True)
    for each in ("pyvenv.cfg", "lib"):
        if (Path(sys.prefix) / each).exists():
            (home / each).symlink_to(Path(sys.prefix) / each)
    program = home / "bin" / "python"
    program.symlink_to(Path(sys.executable).resolve())
    return program


@contextlib.contextmanager
def away(program: Path) -> Iterator[None]:
    """An interpreter that is not there meanwhile, as in an upgrade."""
    hidden = program.rename(program.with_name("away"))
    yield
    hidden.rename(program)


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """A process that may open nothing more meanwhile."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest - 3, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("why", "reason"), [("interpreter", "No such file or directory"), ("descriptors", "Too many open files")]
)
async def test_a_worker_that_cannot_be_started_for_a_moment_is_started_later(
    folder: Path, why: str, reason: str
) -> None:
    """The others go on, the log says the reason once, and the worker comes as soon as the host can start one."""
    program = interpreter(folder)
    async with running_daemon(folder, sections(folder), command=[str(program), "-m", "remora"]) as daemon:
        await daemon.until(lambda: whole(daemon), "two workers")
        victim, other = (await daemon.workers()).values()
        with away(program) if why == "interpreter" else no_descriptors(daemon.pid):
            os.kill(victim, signal.SIGKILL)
            await daemon.until_logged("worker_not_started")

        await daemon.until(lambda: whole(daemon), "two workers")
        assert other in (await daemon.workers()).values()
        assert await daemon.metric("remora_worker_start_failures_total") >= 1
        said = [line for line in daemon.logged().splitlines() if " worker_not_started: " in line]
        assert len(said) == 1
        assert reason in said[0]
        assert await daemon.metric("remora_crashes_total") == 0


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_a_frozen_worker_is_killed_and_replaced(folder: Path) -> None:
    """A worker that stands still while its supervisor does not is killed by the watchdog, and its shards move on."""
    async with serving(folder, supervisor={"watchdog": "3s"}) as daemon:
        victim = next(iter((await holders(daemon)).values()))

        async with frozen(victim):
            await gone([victim])

        await holds_all(daemon, but=victim)
        assert "makes no progress and is killed" in daemon.logged()


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_what_freezes_together_thaws_together(folder: Path) -> None:
    """Supervisor and workers that stood still for longer than the watchdog's time go on, and nobody is killed."""
    watchdog_s = 8.0
    async with serving(folder, supervisor={"watchdog": f"{watchdog_s:g}s"}) as daemon:
        before = await daemon.workers()

        await daemon.freeze_all()
        await asyncio.sleep(1.5 * watchdog_s)  # the length of the freeze is what is tested
        daemon.thaw_all()

        for _ in range(2):  # the first look after the thaw would have killed; what answers afterwards was spared
            await holds_all(daemon)
        assert await daemon.workers() == before
        assert "worker_hangs" not in daemon.logged()
        assert "worker_ended" not in daemon.logged()


def environment_and_heap(pid: int) -> tuple[str, list[str]]:
    """What a process was started with, and how its heap is kept: `hg` is in huge pages, if there are some."""
    process = Path(f"/proc/{pid}")
    heap = (process / "smaps").read_text().partition("[heap]")[2].partition("VmFlags:")[2]
    return (process / "environ").read_text(), heap.partition("\n")[0].split()


def has_huge_pages() -> bool:
    """Whether this system has them for this process: the C library does not ask otherwise."""
    state = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return state.exists() and "[madvise]" in state.read_text()


@pytest.mark.parametrize("given", [None, "glibc.malloc.check=1"])
async def test_workers_keep_memory_that_they_need_again(folder: Path, given: str | None) -> None:
    """A worker's C library is told how to keep memory, unless the environment of the daemon says it."""
    env = {} if given is None else {"GLIBC_TUNABLES": given}
    async with running_daemon(folder, sections(folder), env=env) as daemon:
        for pid in children(daemon.process.pid):
            environ, flags = environment_and_heap(pid)
            assert ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in environ) is (given is None)
            assert given is None or f"GLIBC_TUNABLES={given}" in environ
            assert ("hg" in flags) is (given is None and has_huge_pages())


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_workers_end_with_their_supervisor(folder: Path) -> None:
    """No worker goes on without somebody who watches it, and a new daemon takes the shards though the lease is long."""
    async with serving(folder) as daemon:
        workers = list((await daemon.workers()).values())

        daemon.send(signal.SIGKILL)

        assert await daemon.ended() == -signal.SIGKILL
        await gone(workers)
        await daemon.start()
        await holds_all(daemon)


# ------------------------------------------------------------------------------------------ start and stop


async def test_a_worker_that_cannot_start_ends_the_start(folder: Path) -> None:
    """Its reason is said once, its exit code is the daemon's, and no worker stays behind."""
    given = sections(folder, ingest={"tokens": str(folder / "missing")})
    daemon = Daemon(folder, given)
    try:
        with pytest.raises(AssertionError, match=f"remora ended with {Exit.CONFIG.value}"):
            await daemon.start()
        reasons = [line for line in daemon.logged().splitlines() if line.startswith("remora: ")]
        assert len(reasons) == 1
        assert "ingest.tokens" in reasons[0]
    finally:
        await daemon.close()


async def beginning_workers(daemon: Daemon, number: int) -> list[int]:
    """The pids of the workers, as soon as so many have been started: each runs its own program."""
    async with asyncio.timeout(START_S):
        while not (daemon.is_running and daemon.logged().count(" worker_started: ") >= number):  # noqa: ASYNC110  # a log
            await asyncio.sleep(0.005)
    return children(daemon.pid)


def was_ready(daemon: Daemon, pid: int) -> bool:
    """Whether a worker has been ready."""
    return any(" worker_ready: " in line and f" pid={pid} " in line for line in daemon.logged().splitlines())


async def test_a_worker_killed_at_the_start_ends_the_start(folder: Path) -> None:
    """What died before it was ever ready would do so again: the daemon fails, and says by what."""
    for _ in range(MOST_STARTS):
        daemon = Daemon(folder, sections(folder))
        start = asyncio.create_task(daemon.start())
        try:
            victim = (await beginning_workers(daemon, 1))[0]
            os.kill(victim, signal.SIGKILL)
        finally:
            await asyncio.wait([start])
            await daemon.close()
        if not was_ready(daemon, victim):
            break

    with pytest.raises(AssertionError, match=f"remora ended with {Exit.FAILURE.value}"):
        await start
    assert "killed by SIGKILL" in daemon.logged()


async def test_a_ready_worker_that_is_killed_during_the_start_is_replaced(folder: Path) -> None:
    """One that was ready while another still begins does not end the start: its successor and the other serve."""
    daemon = Daemon(folder, sections(folder))
    start = asyncio.create_task(daemon.start())
    try:
        quick, slow = await beginning_workers(daemon, 2)

        async def quick_is_ready() -> bool:
            return was_ready(daemon, quick)

        async with frozen(slow):
            await daemon.until(quick_is_ready, "a worker that is ready")
            os.kill(quick, signal.SIGKILL)
            await daemon.until_logged("worker_ended")

        await start
        assert {quick, slow} & set((await daemon.workers()).values()) == {slow}
    finally:
        await asyncio.wait([start])
        await daemon.close()


async def test_sigterm_ends_all_workers(folder: Path) -> None:
    """Both finish and free their locks, the daemon exits with 0, and nothing of it is left."""
    async with serving(folder) as daemon:
        workers = list((await daemon.workers()).values())

        assert await daemon.stop() == Exit.OK

        assert [state(pid) for pid in workers] == ["", ""]
        listed = (await daemon.command("shard", "list", "--json")).json
        assert [each["owner"] for each in listed] == [None] * SHARDS


async def test_a_worker_that_does_not_finish_is_counted(folder: Path) -> None:
    """One that stands still is killed when the time is over, and the daemon exits with 3."""
    times = {"drain_timeout": "1s"}
    async with serving(folder, delivery=times, kafka={"delivery_timeout": "500ms"}) as daemon:
        victim = (await daemon.workers())[1]
        async with frozen(victim):
            daemon.send(signal.SIGTERM)
            await daemon.until_logged("draining")
            daemon.send(signal.SIGTERM)

            assert await daemon.ended() == Exit.DRAIN_TIMEOUT
        assert state(victim) == ""
        assert f'did not finish number=1 pid={victim} reason="killed by SIGKILL"' in daemon.logged()


async def test_bounds_of_connections_hold_for_all_workers_together(folder: Path) -> None:
    """However the workers share the connections, the next one is refused, and one that was freed is taken again."""
    async with serving(folder, ingest={"max_connections": 8}) as daemon:
        path = daemon.ingest.removeprefix("unix:")
        opened = [await asyncio.open_unix_connection(path) for _ in range(8)]

        async def all_counted() -> bool:
            return await daemon.metric("remora_ingest_connections") == 8

        await daemon.until(all_counted, "8 connections")
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()
        for _, each in opened:
            each.close()

        async def takes() -> bool:
            try:
                await publish(daemon, "t", "a")
            except aiohttp.ClientError:
                return False
            return True

        await daemon.until(takes, "room")


# ------------------------------------------------------------------------------------- reload and drain


async def test_a_reload_reaches_all_workers_and_their_successors(folder: Path) -> None:
    """What can change does in every worker, also in one that starts later; what cannot is named."""
    async with serving(folder) as daemon:
        daemon.rewrite(log={"level": "debug"}, supervisor={"workers": 3})
        daemon.send(signal.SIGHUP)
        await daemon.until_logged("config_reloaded")
        await daemon.until_logged("options=supervisor.workers")

        async def has_reached_workers() -> bool:
            await publish(daemon, "t", "a", "b", "c")
            return "DEBUG ingested" in daemon.logged()

        await daemon.until(has_reached_workers, "a line of a worker")  # which hears of it after the log does

        for number, pid in (await daemon.workers()).items():
            os.kill(pid, signal.SIGKILL)
            await daemon.until_logged(f"worker process ended and is replaced number={number} pid={pid}")

        await daemon.until(lambda: whole(daemon), "a successor")
        said = daemon.logged().count("DEBUG ingested")
        await publish(daemon, "t", "d")
        await daemon.until(lambda: says_more(daemon, said), "a line of a successor")
        assert await daemon.metric("remora_config_reloads_total", result="accepted") == 1
        assert len(await daemon.workers()) == 2


async def says_more(daemon: Daemon, before: int) -> bool:
    return daemon.logged().count("DEBUG ingested") > before


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_a_drained_host_gives_its_shards_away(folder: Path) -> None:
    """`remora drain` waits until another host has them all; after --undo this one takes part again. The log says who
    asked for both; over the admin address nobody can."""
    async with serving(folder, ownership={"host_id": "first"}) as first:
        others = sections(folder, ownership={"host_id": "second"}, supervisor={"workers": 1})
        async with running_daemon(folder, others) as second:
            for change in ("drain", "undrain", "release", "shaping"):
                code, text = await first.get(f"/-/{change}", method="POST")
                assert (code, str(first.sections["admin"]["control_socket"]) in text) == (403, True), text
            done = await first.command("drain", "--timeout", "1m")

            assert (done.code, complaints(done.err)) == (Exit.OK, [])
            assert await holders(first) == {}
            await holds_all(second)
            code, text = await first.get("/-/ready")
            assert (code, "draining" in text) == (503, True)

            assert (await first.command("drain", "--undo")).code == Exit.OK
            asked = re.findall(r' INFO host_drain: .* old="?(.*?)"? new="?(.*?)"? uid=(\d+) pid=\d+\n', first.logged())
            assert asked == [("takes part", "drained", str(os.getuid())), ("drained", "takes part", str(os.getuid()))]
            await first.until(first.is_ready, "a ready host")
            assert await second.stop() == Exit.OK
            await holds_all(first)


async def test_a_drain_that_takes_too_long_says_what_is_left(folder: Path) -> None:
    """A worker that stands still gives nothing away: the command says so and exits with 3."""
    async with serving(folder, supervisor={"watchdog": "80s"}) as daemon:
        held = await holders(daemon)
        victim = next(iter(held.values()))
        async with frozen(victim):
            done = await daemon.command("drain", "--timeout", "5")

        assert done.code == Exit.DRAIN_TIMEOUT
        assert "1 worker does not answer after 5 s" in done.err
        await daemon.until(lambda: gave_all(daemon), "a drain")
        os.kill(victim, signal.SIGKILL)
        await daemon.until_logged("worker_ended")
        await daemon.until(lambda: whole(daemon), "a successor")
        assert await holders(daemon) == {}, "a successor takes nothing either"


async def gave_all(daemon: Daemon) -> bool:
    return not await holders(daemon)


async def test_drain_without_a_daemon_says_so(folder: Path) -> None:
    """Nobody answers: exit code 69."""
    daemon = Daemon(folder, sections(folder))
    try:
        assert (await daemon.command("drain")).code == Exit.UNAVAILABLE
    finally:
        await daemon.close()


# --------------------------------------------------------------------------------------- earlier workers


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_locks_of_killed_workers_need_not_run_out(folder: Path) -> None:
    """A daemon that was killed with its workers holds its shards again at once when it is started anew."""
    async with serving(folder) as daemon:
        cookies = {each["cookie"] for each in (await daemon.status())["workers"]}
        assert all(WorkerCookie.parse(each) for each in cookies)

        await daemon.kill_all()
        await daemon.start()

        await holds_all(daemon)
        assert cookies.isdisjoint(each["cookie"] for each in (await daemon.status())["workers"])


async def test_a_variable_that_stands_for_no_option_is_warned_of(folder: Path) -> None:
    """The daemon starts, takes the options that the environment has, and names the variable that it passes over."""
    environment = {"REMORA_LGO_LEVEL": "debug", "REMORA_SUPERVISOR_WORKERS": "1"}

    async with running_daemon(folder, sections(folder), env=environment) as daemon:
        assert len(await daemon.workers()) == 1
        assert await daemon.stop() == Exit.OK

    (line,) = [line for line in daemon.logged().splitlines() if "config_remark" in line]
    assert "WARNING" in line
    assert "REMORA_LGO_LEVEL is passed over: it stands for no option; did you mean REMORA_LOG_LEVEL?" in line


async def test_a_reload_before_the_daemon_listens_waits(tmp_path: Path) -> None:
    """SIGHUP that comes while the daemon reads its configuration does not end it: it reads it again once it listens."""
    daemon = Daemon(tmp_path, sections(tmp_path))
    text = daemon.config.read_bytes()
    daemon.config.unlink()
    os.mkfifo(daemon.config)  # opening it to write returns when the daemon opens it to read
    starting = asyncio.create_task(daemon.start(ready=False))
    try:
        with await asyncio.to_thread(daemon.config.open, "wb") as file:
            daemon.process.send_signal(signal.SIGHUP)
            daemon.config.unlink()
            os.mkfifo(daemon.config)  # another one, so that the second writer waits for the second reader
            file.write(text)
        ended = asyncio.create_task(daemon.process.wait())
        reading = asyncio.create_task(asyncio.to_thread(daemon.config.open, "wb"))
        await asyncio.wait({ended, reading}, return_when=asyncio.FIRST_COMPLETED)
        is_read_again = not ended.done()
        if not is_read_again:
            os.close(os.open(daemon.config, os.O_RDONLY | os.O_NONBLOCK))  # releases the thread
        with await reading as file, contextlib.suppress(BrokenPipeError):
            file.write(text)
        assert is_read_again
        await starting
        daemon.process.send_signal(signal.SIGTERM)
        assert await ended == Exit.OK
    finally:
        starting.cancel()
        await daemon.close()
