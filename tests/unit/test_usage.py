"""What a process uses of its host: processor and memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from devkit.clock import ClockLoop, in_virtual_time
from remora.config import AUTO, BalanceSettings
from remora.policy.ownership.loads import HostLimits
from remora.process import usage as module
from remora.process.loop import PROBE_S, Kept
from remora.process.usage import PAGE_BYTES, Card, Usage, default_card, default_workers, memory_limit, usable_cores


def host(proc: Path, ticks: str, pages: int = 0) -> Path:
    """A folder like /proc with these columns of the processor line, and this many resident pages."""
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu  {ticks}\ncpu0 1 1 1 1\nintr 5\n")
    (proc / "self" / "statm").write_text(f"1000 {pages} 0 0 0 0 0\n")
    return proc


def test_percents_are_of_the_time_since_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a core is 50 % of `cpu`; waiting for a disk is no use of the host; memory is of the configured limit."""
    clock, process = iter([100.0, 110.0, 120.0]), iter([5.0, 10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "process_time", lambda: next(process))
    settings, idle = BalanceSettings(memory_limit=64 << 20), {"host_network_in": 0.0, "host_network_out": 0.0}
    used = Usage(1, host(tmp_path, "100 0 100 700 100 0 0 0 50 50", pages=0))

    host(tmp_path, "150 0 125 760 165 0 0 0 90 50", pages=(16 << 20) // PAGE_BYTES)
    assert used.percents(used.limits(settings)) == {"cpu": 50.0, "host_cpu": 37.5, "memory": 25.0, **idle}
    host(tmp_path, "250 0 125 760 165 0 0 0 90 50", pages=(32 << 20) // PAGE_BYTES)
    assert used.percents(used.limits(settings)) == {"cpu": 20.0, "host_cpu": 100.0, "memory": 50.0, **idle}


@pytest.mark.parametrize(("used_s", "cpu"), [(0.0, 30.0), (1.0, 30.0), (3.0, 30.0), (4.0, 40.0)])
@in_virtual_time
async def test_time_that_a_process_is_kept_from_running_counts_as_used(
    monkeypatch: pytest.MonkeyPatch, used_s: float, cpu: float
) -> None:
    """Where the loop wakes up 3 of 10 s late, its process has used these or was kept from running for the rest."""
    loop, process_s = asyncio.get_running_loop(), itertools.count(0.0, 0.0)
    assert isinstance(loop, ClockLoop)
    monkeypatch.setattr(time, "monotonic", loop.time)
    monkeypatch.setattr(time, "process_time", lambda: next(process_s))
    kept = Kept()
    used = Usage(1, kept_s=lambda: kept.seconds)

    def stand_still() -> None:
        nonlocal process_s
        loop.pass_by(3.0)
        process_s = itertools.count(used_s, 0.0)

    loop.call_later(PROBE_S / 2, stand_still)
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(kept.run())
        await asyncio.sleep(10.0)
        counting.cancel()

    assert used.percents(used.limits(BalanceSettings()))["cpu"] == pytest.approx(cpu, abs=0.3)


def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, or without a limit, those resources are 0."""
    monkeypatch.setattr(module, "memory_limit", lambda **_: 0)
    used = Usage(2, tmp_path / "none")

    percents = used.percents(used.limits(BalanceSettings()))

    assert (percents["host_cpu"], percents["memory"], percents["host_network_in"]) == (0.0, 0.0, 0.0)
    assert used.limits(BalanceSettings()) == HostLimits()
    assert percents["cpu"] >= 0.0


@pytest.mark.parametrize(
    ("own", "above", "limit"),
    [("max", "max", 0), ("1048576", "max", 1048576), ("4194304", "2097152", 2097152), ("nonsense", "max", 0)],
)
def test_the_smallest_limit_of_memory_counts(tmp_path: Path, own: str, above: str, limit: int) -> None:
    """That of the process's control group, or of one that it lies in; 0 where there is none."""
    group = tmp_path / "system.slice" / "remora.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(own + "\n")
    (group.parent / "memory.max").write_text(above + "\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/remora.service\n")

    assert memory_limit(tmp_path / "cgroup", tmp_path) == limit


UNLIMITED = 9223372036854771712
"""What a group of version 1 says that has no limit, where a page has 4 KiB."""


@pytest.mark.parametrize(
    ("own", "above", "limit"),
    [
        (UNLIMITED, UNLIMITED, 0),
        (1048576, UNLIMITED, 1048576),
        (4194304, 2097152, 2097152),
    ],
)
def test_a_limit_of_version_1_counts_alike(tmp_path: Path, own: int, above: int, limit: int) -> None:
    """Where a host has a tree of groups for each controller, that of memory says what is granted."""
    group = tmp_path / "memory" / "remora"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{own}\n")
    (group.parent / "memory.limit_in_bytes").write_text(f"{above}\n")
    (tmp_path / "cgroup").write_text("4:memory:/remora\n1:cpu:/elsewhere\n0::/\n")

    assert memory_limit(tmp_path / "cgroup", tmp_path) == limit


def test_a_group_of_the_host_that_a_container_does_not_see_says_nothing(tmp_path: Path) -> None:
    """There the container's own part of the tree is what is mounted, and counts."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1048576\n")
    (tmp_path / "cgroup").write_text("4:memory:/docker/4711\n0::/\n")

    assert memory_limit(tmp_path / "cgroup", tmp_path) == 1048576


@pytest.mark.parametrize(
    ("configured", "granted", "limit"),
    [
        (1 << 30, 0, (1 << 30, "balance.memory_limit")),
        (AUTO, 512 << 20, (256 << 20, "control group")),
        (AUTO, 0, (2 << 30, "host")),
        (0, 512 << 20, (256 << 20, "control group")),
        (0, 0, (0, "")),
    ],
)
def test_what_memory_is_measured_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: int, granted: int, limit: tuple[int, str]
) -> None:
    """A configured limit is one worker's; a control group's, or with auto the host's, is divided by the workers."""
    monkeypatch.setattr(module, "memory_limit", lambda **_: granted)
    (tmp_path / "meminfo").write_text("MemFree: 17 kB\nMemTotal:        4194304 kB\n")

    limits = Usage(2, tmp_path).limits(BalanceSettings(memory_limit=configured))

    assert (limits.memory, limits.memory_from) == limit


def test_a_unit_s_high_mark_counts_for_auto_alone(tmp_path: Path) -> None:
    """systemd's MemoryHigh= is memory.high: beyond it a worker is throttled, so that is what it can use."""
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.high").write_text("1048576\n")
    (tmp_path / "cgroup").write_text("0::/\n")

    assert memory_limit(tmp_path / "cgroup", tmp_path) == 0
    assert memory_limit(tmp_path / "cgroup", tmp_path, ("memory.max", "memory.high")) == 1048576


def test_the_card_s_traffic_is_of_what_it_can_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 1 Gbit/s that receives 62.5 MB in a second is half used that way."""
    clock = iter([100.0, 101.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    cards, (proc, sys) = {"eth0": (1000, 0, 0)}, (tmp_path / "proc", tmp_path / "sys")
    network(proc, sys, cards, route="eth0")
    used = Usage(1, proc, sys)
    network(proc, sys, {"eth0": (1000, 62_500_000, 12_500_000)}, route="eth0")

    percents = used.percents(used.limits(BalanceSettings()))

    assert (percents["host_network_in"], percents["host_network_out"]) == (50.0, 10.0)
    assert used.limits(BalanceSettings()).network == 125_000_000


def network(proc: Path, sys: Path, cards: Mapping[str, tuple[int, int, int]], route: str) -> None:
    """Folders like /proc and /sys/class/net: of each card speed in Mbit/s, bytes received and sent."""
    (proc / "net").mkdir(parents=True, exist_ok=True)
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    others = "far 00000000 01000A0A 0003 0 0 600 00000000 0 0 0\ndown 00000000 01000A0A 0002 0 0 0 00000000 0 0 0\n"
    own = (
        f"{route} 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n{route} 00000000 0100A8C0 0003 0 0 100 00000000 0 0 0\n"
    )
    (proc / "net" / "route").write_text(head + others + own)
    lines = [f"{name}:{came} 5 0 0 0 0 0 0 {went} 5 0 0 0 0 0 0" for name, (_, came, went) in cards.items()]
    (proc / "net" / "dev").write_text("Inter-| Receive | Transmit\n face |bytes\n" + "\n".join(lines) + "\n")
    for name, (speed, _, _) in cards.items():
        (sys / name).mkdir(parents=True, exist_ok=True)
        (sys / name / "speed").write_text(f"{speed}\n")


def test_a_bond_that_tells_no_speed_has_that_of_its_cards(tmp_path: Path) -> None:
    """A virtual card over others adds up theirs, and one over none is of unknown speed and named."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    network(proc, sys, {"bond0": (-1, 7, 9), "a": (10_000, 0, 0), "b": (10_000, 0, 0)}, route="bond0")

    assert default_card(proc, sys) == Card("bond0", 0, 7, 9)
    for below in ("a", "b"):
        (sys / "bond0" / f"lower_{below}").symlink_to(sys / below)
    assert default_card(proc, sys) == Card("bond0", 2_500_000_000, 7, 9)
    assert default_card(tmp_path / "none") is None


def test_the_default_route_may_be_of_ipv6(tmp_path: Path) -> None:
    """A host without a default route of IPv4 goes by that of IPv6."""
    network(tmp_path, tmp_path / "sys", {"six": (100, 1, 2)}, route="six")
    (tmp_path / "net" / "route").write_text("Iface Destination\n")
    zeros = "0" * 32
    nowhere = f"{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200 lo\n"
    way = f"{zeros} 00 {zeros} 00 fd{zeros[2:]} 00000400 3 0 00000003 six\n"
    (tmp_path / "net" / "ipv6_route").write_text(nowhere + way)

    assert default_card(tmp_path, tmp_path / "sys") == Card("six", 12_500_000, 1, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own needs root")
def test_a_real_card_in_a_network_namespace(tmp_path: Path) -> None:
    """In a namespace whose default route is a veth the speed is what the kernel says of it, and its traffic counts."""
    script = """
        mount -t sysfs none /sys && ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up
        ip addr add 10.9.0.1/24 dev v0 && ip route add default via 10.9.0.2
        python3 -c '
from remora.process.usage import default_card
card = default_card()
print(card.name, card.bytes_per_second, card.sent > 0)'
    """
    ran = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"},
    )

    assert ran.stdout.split() == ["v0", "1250000000", "True"]


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "350000 100000", 3),
        ("50000 100000", "max 100000", 1),
        ("nonsense", "max 100000", 8),
        ("1600000 100000", "max 100000", 8),
    ],
)
def test_the_smallest_bound_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, above: str, cores: int
) -> None:
    """A quota of the group or of one that it lies in bounds the affinity, and at least one core is used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    group = tmp_path / "system.slice" / "remora.service"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(own)
    (group.parent / "cpu.max").write_text(above)
    (tmp_path / "cgroup").write_text("1:cpu:/elsewhere\n0::/system.slice/remora.service\n")

    assert usable_cores(tmp_path / "cgroup", tmp_path) == cores


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [(-1, -1, 8), (200_000, -1, 2), (-1, 350_000, 3), (50_000, -1, 1), (200_000, 100_000, 1)],
)
def test_a_quota_of_version_1_counts_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int, above: int, cores: int
) -> None:
    """Where a host has a tree of groups for each controller, that of the processors has a quota and a period."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    group = tmp_path / "cpu" / "remora"
    group.mkdir(parents=True)
    for folder, quota in ((group, own), (group.parent, above)):
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cgroup").write_text("9:memory:/\n4:cpu,cpuacct:/remora\n0::/\n")

    assert usable_cores(tmp_path / "cgroup", tmp_path) == cores


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    """A missing file is no bound."""
    assert usable_cores(tmp_path / "none", tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_there_are_as_many_workers_as_cores_up_to_four(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    """A large host does not start a worker for each of its cores, most of which would only take memory."""
    monkeypatch.setattr("remora.process.usage.usable_cores", lambda: cores)

    assert default_workers() == workers
