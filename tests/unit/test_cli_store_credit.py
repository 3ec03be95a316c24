"""Commands whose traffic with the store is metered by the daemon of their host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remora.cli.store_credit import PORTION, metered
from remora.cluster_answer import notice
from remora.config import MeterSettings, MetersSettings, ScopeSettings, Settings, StoreSettings, SupervisorSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.model.traffic import Priority
from remora.policy.shaping.credit_flows import CreditFlow
from remora.process.pipe import UseStore
from remora.process.sockets import control_sockets
from remora.servers.control import Control, of_socket, routes_of
from remora.servers.routes import served
from remora.supervisor.shaping import HostShaping
from support.credit import Host, a_meter, shaping

FAST = a_meter(100_000_000, 1_000_000)
"""A portion of this is paid back within 3 ms."""


def settings_of(folder: Path, **meters: MeterSettings) -> Settings:
    """Of a host whose store is shaped by these meters; without any it is not."""
    scope = ScopeSettings(name="osds", of="store", enabled=True, meters=MetersSettings(**meters))
    return Settings(
        store=StoreSettings(kind="rados"),
        shaping=shaping(*([scope] if meters else [])),
        supervisor=SupervisorSettings(run_directory=str(folder)),
    )


@dataclass
class Desk:
    """A daemon's control socket, before the shaping of a host with one worker; each question lets a tick pass."""

    settings: Settings
    host: Host = field(init=False)
    shaping: HostShaping = field(init=False)
    used: list[tuple[Priority, int]] = field(default_factory=list)
    questions: int = 0

    def __post_init__(self) -> None:
        self.host = Host(self.settings.shaping)
        self.shaping = HostShaping(self.host.shaper, self.settings.shaping, (), 1, self, Telemetry())
        self.shaping.on_use = self._charge

    async def waiting_for_credit(self) -> dict[tuple[str, str], int]:
        return {}

    async def flows(self) -> dict[int, list[CreditFlow] | None]:
        return {}

    async def addresses(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _charge(self, place: int, use: UseStore) -> None:
        self.used.append((use.priority, use.nbytes))
        self.host.account(place, "osds").charge(use.priority, use.nbytes)

    def use_store(self, body: bytes) -> float | None:
        self.questions += 1
        self.host.tick()
        return self.shaping.use_store(body)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        def never(*_: object) -> None:
            raise ConfigError("", "only the use of the store is asked for")

        control = Control(never, never, lambda _, __: [], self.use_store, never)
        with ExitStack() as stack:
            sockets = stack.enter_context(control_sockets(self.settings, lambda *why: pytest.fail(f"{why}")))
            async with served(routes_of(control, of_socket), sockets):
                yield


async def test_reads_are_charged_in_portions_and_waited_for(folder: Path) -> None:
    """A walk is charged as idle each time that it has read a portion, looks with it; the rest is charged at the end."""
    desk = Desk(settings_of(folder, idle=FAST, background=FAST))
    async with desk.serving(), metered(desk.settings) as traffic:
        await traffic.walked(PORTION - 10)
        traffic.looked(20)
        assert desk.used == []
        await traffic.walked(5)
        assert desk.used == [(Priority.IDLE, PORTION + 15)]
        traffic.looked(7)
    assert desk.used == [(Priority.IDLE, PORTION + 15), (Priority.IDLE, 7)]


async def test_a_redrive_is_charged_for_what_it_commits_and_removes(folder: Path) -> None:
    """Each of its commits is charged twice its bytes, in the class of replays."""
    desk = Desk(settings_of(folder, idle=FAST, background=FAST))
    async with desk.serving(), metered(desk.settings) as traffic:
        await traffic.redriven(1000)
        await traffic.redriven(500)

    assert desk.used == [(Priority.BACKGROUND, 2000), (Priority.BACKGROUND, 1000)]


async def test_who_is_in_debt_waits_until_it_is_paid_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says for what it waits, asks again meanwhile, charges nothing by that, and goes on where credit came from
    elsewhere, though its class has no rate of its own."""
    desk = Desk(settings_of(folder, idle=a_meter(0, 1_000_000), priority_queue=a_meter(10_000_000, 1_000_000)))
    monkeypatch.setattr("remora.cli.store_credit.AGAIN_S", 0.001)
    desk.host.tick(100)
    told: list[str] = []

    @contextmanager
    def telling(what: str) -> Iterator[None]:
        told.append(what)
        yield

    notice.set(telling)
    async with desk.serving(), metered(desk.settings) as traffic:
        await traffic.walked(PORTION)
        assert told == []
        await traffic.walked(2_000_000)
        desk.host.tick(300)

    assert told == ["waiting for idle of osds, as `remora shaping show` has it"]
    assert [nbytes for _, nbytes in desk.used] == [PORTION, 2_000_000]
    assert desk.questions > 2


async def test_without_a_daemon_nothing_waits(folder: Path) -> None:
    """A command asks once, and goes on where no daemon answers."""
    async with metered(settings_of(folder, idle=FAST)) as traffic:
        for _ in range(3):
            await traffic.walked(100 * PORTION)
            await traffic.redriven(100 * PORTION)


async def test_without_a_scope_of_the_store_no_daemon_is_asked(folder: Path) -> None:
    """What nobody meters costs no question."""
    desk = Desk(settings_of(folder))
    async with desk.serving(), metered(desk.settings) as traffic:
        await traffic.walked(100 * PORTION)
        await traffic.redriven(PORTION)
        traffic.committed(PORTION)
    assert desk.questions == 0
