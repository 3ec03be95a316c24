"""Where the pools' names come from: the configuration, the zone, the default, in this order; never a guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora.config import RadosSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable
from remora.storage.rados.cluster.placement import Locator, find_placement

ZONE = {"name": "z1", "notif_pool": "z1.rgw.log:notif", "log_pool": "z1.rgw.log", "topics_pool": "z1.rgw.meta:topics"}


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands in for radosgw-admin: a shell script that the test writes."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "radosgw-admin"


def says(admin: Path, script: str) -> None:
    admin.write_text(f"#!/bin/sh\n{script}\n")
    admin.chmod(0o755)


async def test_zone_names_the_pools(admin: Path) -> None:
    """Without any configured pool all three pools are the zone's."""
    says(admin, f"echo '{json.dumps(ZONE)}'")

    placement = await find_placement(RadosSettings(), timeout_s=60)

    assert placement.notif == Locator("z1.rgw.log", "notif")
    assert placement.log == Locator("z1.rgw.log")
    assert placement.topics == Locator("z1.rgw.meta", "topics")
    assert placement.own == Locator("z1.rgw.log", "remora")
    assert "zone z1" in placement.source


async def test_zone_of_an_old_release(admin: Path) -> None:
    """A zone that names no pool for topics, as before Squid, leaves that at its default."""
    says(admin, f"echo '{json.dumps({k: v for k, v in ZONE.items() if k != 'topics_pool'})}'")

    assert (await find_placement(RadosSettings(), timeout_s=60)).topics == Locator("default.rgw.meta", "topics")


async def test_asked_for_the_right_cluster(admin: Path, tmp_path: Path) -> None:
    """radosgw-admin is called with the store's own configuration, user, keyring and zone."""
    says(admin, f"echo \"$@\" > {tmp_path}/args; echo '{json.dumps(ZONE)}'")

    await find_placement(RadosSettings(conf="/c", name="client.x", keyring="/k", zone="z1"), timeout_s=60)

    args = (tmp_path / "args").read_text()
    for expected in ("--conf /c", "--name client.x", "--keyring /k", "--rgw-zone z1", "zone get"):
        assert expected in args


async def test_configuration_comes_first(admin: Path) -> None:
    """What is configured is never overruled by the zone, and the source says which is which."""
    says(admin, f"echo '{json.dumps(ZONE)}'")

    placement = await find_placement(RadosSettings(pool="mine", namespace="ns"), timeout_s=60)

    assert placement.notif == Locator("mine", "ns")
    assert placement.log == Locator("z1.rgw.log")
    assert "configuration" in placement.source
    assert "zone z1" in placement.source


async def test_nobody_is_asked_needlessly(admin: Path) -> None:
    """With all three pools configured radosgw-admin is not called; `pool:namespace` is read as radosgw writes it."""
    says(admin, "exec sleep 60")

    placement = await find_placement(RadosSettings(pool="a:b", log_pool="c", topics_pool="d:e"), timeout_s=0.1)

    assert (placement.notif, placement.log, placement.topics) == (Locator("a", "b"), Locator("c"), Locator("d", "e"))


@pytest.mark.parametrize("script", ["echo nonsense", "echo why not >&2; exit 1", "echo '[]'"])
async def test_default_zone_where_none_can_be_read(admin: Path, script: str) -> None:
    """Where the zone cannot be read the default names are taken, and the source says why."""
    says(admin, script)

    placement = await find_placement(RadosSettings(), timeout_s=60)

    assert placement.notif == Locator("default.rgw.log", "notif")
    assert "radosgw-admin" in placement.source


async def test_without_radosgw_admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program is not installed the default names are taken."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "not installed" in (await find_placement(RadosSettings(), timeout_s=60)).source


async def test_named_zone_must_be_readable(admin: Path) -> None:
    """A zone that was asked for by name is never replaced by a default."""
    says(admin, "echo no such zone >&2; exit 2")

    with pytest.raises(StoreMisconfigured, match=r"z9.*no such zone"):
        await find_placement(RadosSettings(zone="z9"), timeout_s=60)


async def test_silence_is_no_answer(admin: Path) -> None:
    """Where nobody answers in time nothing is assumed, and the program is ended."""
    says(admin, "exec sleep 60")

    with pytest.raises(StoreUnavailable):
        await find_placement(RadosSettings(), timeout_s=0.2)
