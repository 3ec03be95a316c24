"""Changes of shaping by command: the lines that they print, what they change, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from devkit.readers.samples import sample_value
from remora.cli import group
from remora.cli.shaping import change_of
from remora.config import MetersSettings, ScopeSettings, ShapingSettings
from remora.metrics import Telemetry
from remora.model.caller import Caller
from remora.model.errors import ConfigError
from remora.policy.shaping.credit_flows import CreditFlow
from remora.supervisor.shaping import HostShaping
from remora.supervisor.shaping_changes import Change, reshaped
from support.credit import Host, a_host, a_meter, shaping
from support.scripted_daemon import SHAPING, answer, scripted_daemon

MB = 10**6
TWO = shaping(
    a_host(client_high=a_meter(10 * MB, 2 * MB), client_low=a_meter(MB, MB, 5 * MB)),
    ScopeSettings(name="eu", of="destination", enabled=False, meters=MetersSettings(client_low=a_meter(MB, MB))),
)
BUCKETS = ("max", "client_high", "client_normal", "client_low", "background", "idle", "priority_queue")


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (Change(scope="uplink", enabled=False), ["shaping::uplink enabled => disabled"]),
        (Change(scope="eu", enabled=False), ["shaping::eu disabled => disabled"]),
        (
            Change(scope="ALL", enabled=True),
            ["shaping::uplink enabled => enabled", "shaping::eu disabled => enabled"],
        ),
        (
            Change(scope="UPLINK", priority="Client_High", rate=100 * MB),
            ["shaping::uplink::client_high::rate 10MB => 100MB"],
        ),
        (
            Change(scope="uplink", priority="client_low", rate=7 * MB),
            [
                "shaping::uplink::client_low::rate 7MB is above its max, and is cut to it",
                "shaping::uplink::client_low::rate 1MB => 5MB",
            ],
        ),
        (
            Change(scope="uplink", priority="client_low", unlimited=True, burst=2 * MB),
            ["shaping::uplink::client_low::max 5MB => none", "shaping::uplink::client_low::burst 1MB => 2MB"],
        ),
        (
            Change(scope="eu", priority="client_low", max=3 * MB),
            ["shaping::eu::client_low::max none => 3MB"],
        ),
        (Change(default_class="Backlog"), ["shaping::default_class tail => backlog"]),
    ],
)
def test_a_change_says_what_it_changes(change: Change, lines: list[str]) -> None:
    """A line for each value that is named, in the file's order, also where it stays as it is."""
    assert reshaped(TWO, change)[1] == lines


def test_all_priorities_are_changed_in_their_order() -> None:
    """ALL goes from max to the spare, in each scope."""
    settings, lines = reshaped(TWO, Change(scope="all", priority="ALL", rate=2 * MB, burst=MB))

    assert [each.split("::")[2] for each in lines if "::rate" in each][:7] == list(BUCKETS)
    assert [list(each.by_bucket) for each in settings.scope] == [list(BUCKETS)] * 2
    assert settings.scope[0].meters.client_low == a_meter(2 * MB, MB, 5 * MB)


def test_only_the_scope_that_is_named_changes() -> None:
    """Every other scope, and every other value, stays as it is."""
    settings, _ = reshaped(TWO, Change(scope="uplink", priority="client_low", burst=2 * MB))

    assert settings.scope[1] == TWO.scope[1]
    assert settings.scope[0].meters == replace(TWO.scope[0].meters, client_low=a_meter(MB, 2 * MB, 5 * MB))


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (Change(scope="uplnk", enabled=True), "shaping.scope", 'did you mean "uplink"?'),
        (Change(scope="uplink", priority="client_lo", rate=1), "shaping.scope.uplink.meters", '"client_low"?'),
        (
            Change(scope="uplink", priority="idle", rate=MB),
            "shaping.scope.uplink.meters.idle.burst",
            "must be above 0",
        ),
        (Change(default_class="relief"), "shaping.default_class", 'there is no "relief"'),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused(change: Change, key: str, message: str) -> None:
    """The refusal has the path of the option, and the nearest name."""
    with pytest.raises(ConfigError) as caught:
        reshaped(TWO, change)

    assert caught.value.key == key
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scope", "a", "--enable", "--disable"], "exclude each other"),
        (["--scope", "a", "--priority", "max"], "needs --rate"),
        (["--scope", "a", "--rate", "1MB"], "need --priority"),
        (["--enable"], "--scope is missing"),
        ([], "--scope is missing"),
        (["--scope", "a"], "is missing"),
        (["--scope", "a", "--enable", "--default-class", "tail"], "without --scope"),
        (["--scope", "a", "--priority", "max", "--rate", "1"], "a size with a unit"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str) -> None:
    """Nothing is asked of the daemon, and the exit code is 2."""
    done = CliRunner().invoke(group, ["shaping", "set", *options])

    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_options_are_a_change() -> None:
    """`--max none` takes the limit away; what is not named stays as it is."""
    given = dict.fromkeys(("scope", "priority", "rate", "most", "burst", "default_class"), None)
    flags = {"enable": False, "disable": False}

    assert change_of({**given, **flags, "scope": "a", "priority": "max", "most": -1}) == Change(
        scope="a", priority="max", unlimited=True
    )
    assert change_of({**given, **flags, "scope": "a", "disable": True}) == Change(scope="a", enabled=False)
    with pytest.raises(click.UsageError):
        change_of({**given, **flags})


class Desk:
    """The shaping of a host, whose workers say that two listings wait."""

    def __init__(self, settings: ShapingSettings) -> None:
        self.host = Host(shaping())
        self.told = 0
        self.telemetry = Telemetry()
        self.shaping = HostShaping(self.host.shaper, settings, (), 1, self, self.telemetry)
        self.shaping.on_change = self._count
        self.charged: list[tuple[int, str, int]] = []
        self.shaping.on_use = lambda place, use: self.charged.append((place, use.priority, use.nbytes))

    async def waiting_for_credit(self) -> dict[tuple[str, str], int]:
        return {("uplink", "client_low"): 2}

    async def flows(self) -> dict[int, list[CreditFlow] | None]:
        return {
            1: [CreditFlow(group="uplink", priority="client_low", at_once=3, deferred=2, waited=1, waits={20: 1})],
            2: None,
            3: [
                CreditFlow(group="uplink", priority="client_low", at_once=4, deferred=1, waited=1, waits={20: 1, 30: 2})
            ],
        }

    async def addresses(self) -> dict[str, tuple[str, ...]]:
        return {"a.example.com": ("10.1.2.3", "fd00::1"), "b.example.com": ("10.1.2.4", "192.0.2.1")}

    def _count(self) -> None:
        self.told += 1


async def test_a_change_lasts_until_the_next_reload() -> None:
    """It counts for the workers at once, is shown, and is gone after a reload of the same file, or a reset."""
    desk = Desk(TWO)
    for undo in (lambda: desk.shaping.reload(TWO, ()), lambda: desk.shaping.change(b'{"reset":true}')):
        assert not (await desk.shaping.show())["changed"]
        body = json.dumps({"scope": "uplink", "priority": "client_low", "rate": 2 * MB}).encode()
        assert desk.shaping.change(body) == ["shaping::uplink::client_low::rate 1MB => 2MB"]
        assert (await desk.shaping.show())["changed"]
        assert desk.host.shaper.groups["uplink"].meters["client_low"].guaranteed == 2 * MB
        undo()
        assert desk.host.shaper.groups["uplink"].meters["client_low"].guaranteed == MB
    assert desk.told == 3


async def test_what_became_of_requests_is_of_all_workers() -> None:
    """The counters of the workers are added up by group and priority, with what the shaper moved of each; who does not
    answer is said."""
    shown: dict[str, Any] = dict(await Desk(TWO).shaping.show())

    (flow,) = shown["flows"]
    assert (flow["at_once"], flow["deferred"], flow["waited"], flow["waits"]) == (7, 3, 2, {20: 2, 30: 2})
    assert (flow["donated_bytes"], flow["transferred_bytes"], flow["group_lost_bytes"]) == (0, 0, 0)
    assert (shown["ticks"], shown["late_ticks"]) == (0, 0)
    assert [(each["number"], each["answers"]) for each in shown["workers"]] == [(1, True), (2, False), (3, True)]


async def test_hosts_are_shown_beside_the_networks_of_a_scope() -> None:
    """A scope with networks has the hosts that were looked up, each with its addresses and whether all of these lie in
    its networks; other scopes have none."""
    site = ScopeSettings(name="site", of="destination", match=("10.0.0.0/8", "fd00::/8", "c"))
    by_name = ScopeSettings(name="names", of="destination", match=("*.example.com",))

    shown: dict[str, Any] = dict(await Desk(shaping(site, by_name)).shaping.show())

    assert [each.get("hosts") for each in shown["scopes"]] == [
        [
            {"name": "a.example.com", "addresses": ("10.1.2.3", "fd00::1"), "inside": True},
            {"name": "b.example.com", "addresses": ("10.1.2.4", "192.0.2.1"), "inside": False},
        ],
        None,
    ]


def test_a_line_for_each_host_beside_the_networks_of_a_scope() -> None:
    """`remora shaping show` says which addresses a host has and whether they lie in the networks, those first that do;
    after twenty it says how many more there are."""
    hosts = [{"name": f"h{i}", "addresses": [f"10.0.0.{i}", "fd00::1"], "inside": i > 0} for i in range(22)]
    scope = {"name": "site", "of": "destination", "enabled": True, "limit": 0, "burst": 0, "lost": 0, "meters": []}
    body = answer({**SHAPING, "workers": [], "scopes": [{**scope, "groups": [], "hosts": hosts}]})
    with scripted_daemon(answers={"GET /-/shaping": body}) as address:
        done = CliRunner().invoke(group, ["shaping", "show", "--admin", address])

    told = [each for each in done.output.splitlines() if each.startswith("  ")]
    assert told[0] == "  h1 is 10.0.0.1, fd00::1: in its networks"
    assert told[20:] == ["  and 2 more (--json)"]
    with scripted_daemon(
        answers={
            "GET /-/shaping": answer(
                {**SHAPING, "workers": [], "scopes": [{**scope, "groups": [], "hosts": hosts[:1]}]}
            )
        }
    ) as address:
        done = CliRunner().invoke(group, ["shaping", "show", "--admin", address])
    assert "  h0 is 10.0.0.0, fd00::1: not in its networks" in done.output.splitlines()


OF_STORE = ScopeSettings(
    name="osds", of="store", enabled=True, meters=MetersSettings(idle=a_meter(MB, MB), background=a_meter(0, MB))
)


async def test_what_a_command_does_with_the_store_is_charged_to_a_worker() -> None:
    """It is charged in its own class, and the answer says when that is paid back; a question charges nothing. For a
    class without a guaranteed rate, and without credit, nobody knows when."""
    desk = Desk(shaping(a_host(), OF_STORE))
    desk.host.tick()

    assert desk.shaping.use_store(b'{"priority":"idle","nbytes":2010000}') == pytest.approx(2.0, abs=0.001)
    assert desk.shaping.use_store(b'{"priority":"background","nbytes":1}') is None
    assert desk.shaping.use_store(b'{"priority":"idle","nbytes":0}') == 0.0
    assert desk.charged == [(0, "idle", 2_010_000), (0, "background", 1)]


async def test_uses_of_a_store_that_is_not_shaped_pass() -> None:
    """Without a scope of the store nothing is charged, and nothing waits where that is disabled."""
    desk = Desk(TWO)
    assert desk.shaping.use_store(b'{"priority":"idle","nbytes":5}') == 0.0
    assert desk.charged == []

    desk = Desk(shaping(replace(OF_STORE, enabled=False)))
    assert desk.shaping.use_store(b'{"priority":"idle","nbytes":5000000}') == 0.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"priority":"max","nbytes":1}',
        b'{"priority":"idle","nbytes":-1}',
        b'{"nbytes":1}',
        b'{"priority":"idle","nbytes":1,"nbytes":9}',
    ],
)
async def test_a_use_that_is_none_is_refused(body: bytes) -> None:
    """A command can charge neither the classes of deliveries nor less than nothing."""
    desk = Desk(shaping(OF_STORE))
    with pytest.raises(ConfigError, match="no use of the store"):
        desk.shaping.use_store(body)
    assert desk.charged == []


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Mapping[str, object]]:
    """The fields of each line of an event so far, which are then forgotten."""
    found = [each.__dict__["fields"] for each in caplog.records if each.__dict__.get("event") == event]
    caplog.clear()
    return found


async def test_a_change_leaves_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Each value that a command changes has a line with old and new value and who asked; so has its end, by a reload or
    a reset. A value that stays as it is has none."""
    caplog.set_level(logging.INFO, "remora")
    desk, ada = Desk(TWO), Caller(uid=1000, pid=4711)
    of_ada = {"by": "command", "uid": 1000, "pid": 4711}
    body = json.dumps({"scope": "uplink", "priority": "client_low", "rate": 0, "burst": MB}).encode()

    desk.shaping.change(body, ada)
    assert lines(caplog, "shaping_changed") == [
        {"value": "uplink::client_low::rate", "old": "1MB", "new": "0B", **of_ada}
    ]
    desk.shaping.change(b'{"default_class":"idle"}', ada)
    assert lines(caplog, "shaping_changed") == [{"value": "default_class", "old": "tail", "new": "idle", **of_ada}]

    desk.shaping.reload(TWO, ())
    assert lines(caplog, "shaping_changed") == [
        {"value": "default_class", "old": "idle", "new": "tail", "by": "reload"},
        {"value": "uplink::client_low::rate", "old": "0B", "new": "1MB", "by": "reload"},
    ]
    desk.shaping.reload(replace(TWO, default_class="idle"), ())
    assert lines(caplog, "shaping_changed") == [], "a reload of what no command had changed says so by itself"

    desk.shaping.change(b'{"scope":"uplink","enabled":false}', ada)
    desk.shaping.change(b'{"reset":true}', ada)
    assert [(each["old"], each["new"]) for each in lines(caplog, "shaping_changed")] == [
        ("enabled", "disabled"),
        ("disabled", "enabled"),
    ]


async def test_a_metric_tells_what_commands_have_changed() -> None:
    """It is 1 for each scope that is not what the file says, and for the default class, and 0 when that is over."""
    desk = Desk(TWO)

    def told() -> list[float | None]:
        registry, name = desk.telemetry.registry, "remora_shaping_overridden"
        return [sample_value(registry, name, {"scope": each}) for each in ("uplink", "eu", "default_class")]

    assert told() == [0, 0, 0]
    desk.shaping.change(b'{"scope":"uplink","priority":"client_low","rate":0}')
    assert told() == [1, 0, 0]
    desk.shaping.change(b'{"default_class":"idle"}')
    assert told() == [1, 0, 1]
    desk.shaping.change(b'{"scope":"uplink","priority":"client_low","rate":1000000}')
    assert told() == [0, 0, 1], "the scope is what the file says again"
    desk.shaping.reload(shaping(), ())
    assert told() == [None, None, 0]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"scop":"x"}', b'{"scope":"uplink","rate":"1MB"}', b"\xff"])
async def test_a_body_that_is_no_change_is_refused(body: bytes) -> None:
    """Nothing changes, and no worker is told."""
    desk = Desk(TWO)
    with pytest.raises(ConfigError):
        desk.shaping.change(body)

    assert not (await desk.shaping.show())["changed"]
    assert desk.told == 0


async def test_what_is_in_force_is_shown_with_its_credit() -> None:
    """Each scope has its meters with level, who waits and what was granted; its groups have levels of their own."""
    desk = Desk(TWO)
    desk.host.tick(3)
    desk.host.account().charge("client_low", 5_000)
    desk.host.tick()

    shown = json.loads(json.dumps(await desk.shaping.show()))

    uplink, eu = shown["scopes"]
    low = next(each for each in uplink["meters"] if each["bucket"] == "client_low")
    assert (low["level"], low["waiting"], low["granted"]) == (35_000, 2, 5_000)
    assert (low["guaranteed"], low["max"], low["burst"]) == (MB, 5 * MB, MB)
    assert (uplink["limit"], uplink["enabled"], eu["enabled"]) == (11 * MB, True, False)
    assert [each["name"] for each in uplink["groups"]] == ["uplink"]
    assert any("no credit for max" in each for each in shown["remarks"])
