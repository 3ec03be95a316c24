"""Opening the RADOS store: what can never work is refused in one sentence that names it."""

from __future__ import annotations

import base64
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.ceph import Ceph, reached_logs
from devkit.processes.daemon import remora, write_config
from devkit.waits import until
from remora.config import RadosSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable
from remora.model.exits import Exit
from remora.storage.rados import RadosStore

pytestmark = pytest.mark.ceph


async def refused(settings: RadosSettings) -> str:
    """What opening says, or the first call where the cluster took its time to answer."""
    try:
        async with RadosStore(settings) as store:
            return await until(lambda: _said(store))
    except StoreMisconfigured as refusal:
        return str(refusal)


async def _said(store: RadosStore) -> str:
    try:
        await store.catalog.shards()
    except StoreMisconfigured as refusal:
        return str(refusal)
    except StoreUnavailable:
        return ""
    pytest.fail("the store works")


async def refused_at_once(settings: RadosSettings) -> str:
    """What opening says without asking the cluster."""
    with pytest.raises(StoreMisconfigured) as refusal:
        await RadosStore(settings).__aenter__()
    return str(refusal.value)


async def connected(store: RadosStore) -> bool:
    return store.connected


def keyring(path: Path, user: str, key: str) -> str:
    path.write_text(f"[{user}]\n\tkey = {key}\n")
    return str(path)


async def test_missing_conf(settings: RadosSettings) -> None:
    """A configuration file that does not exist is named."""
    assert "/nowhere/ceph.conf" in await refused_at_once(replace(settings, conf="/nowhere/ceph.conf"))


async def test_a_command_says_that_it_waits_for_a_silent_monitor(tmp_path: Path) -> None:
    """A line says so within the command's first seconds, and the last one which monitor did not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keys = "\n".join(f"auth_{each}_required = none" for each in ("client", "cluster", "service"))
        conf, config = tmp_path / "ceph.conf", tmp_path / "remora.toml"
        conf.write_text(f"[global]\nmon_host = 127.0.0.1:{silent.getsockname()[1]}\n{keys}\n")
        write_config(config, {"store": {"kind": "rados"}, "rados": {"conf": str(conf), "mount_timeout": "3s"}})

        done = await remora("topic", "list", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert done.err.splitlines() == [
        "remora: 00:00 waiting for the Ceph cluster to answer, for up to 4 s",
        "remora: no monitor answered within 3 s",
    ]


async def test_missing_keyring(settings: RadosSettings) -> None:
    """A keyring that does not exist is named, with the user it is for."""
    words = await refused_at_once(replace(settings, keyring="/nowhere/keyring"))

    assert "/nowhere/keyring" in words
    assert settings.name in words


async def test_user_without_key(settings: RadosSettings) -> None:
    """A keyring without this user's key names both."""
    words = await refused_at_once(replace(settings, name="client.nobody"))

    assert "client.nobody" in words
    assert settings.keyring in words


async def test_broken_key(settings: RadosSettings, tmp_path: Path) -> None:
    """A key that is none is refused before anybody is asked."""
    path = keyring(tmp_path / "k", settings.name, "no key at all")

    assert "no cephx key" in await refused_at_once(replace(settings, keyring=path))


async def test_key_of_a_newer_type(settings: RadosSettings, tmp_path: Path) -> None:
    """A key that this librados cannot use is refused with what helps: a newer librados, or an aes key."""
    key = base64.b64encode(struct.pack("<HIIH", 2, 1_700_000_000, 0, 32) + bytes(32)).decode()
    path = keyring(tmp_path / "k", settings.name, key)

    words = await refused(replace(settings, keyring=path))

    assert "aes256k" in words
    assert "--key-type aes" in words
    assert key not in words


async def test_real_key_of_a_newer_type(ceph: Ceph, settings: RadosSettings) -> None:
    """So is the key that a cluster of Ceph 20 made for itself."""
    if ceph.env["release"] < 20:
        pytest.skip("older clusters make keys that every librados can use")

    native = replace(settings, name=ceph.env["native_client"], keyring=ceph.env["native_keyring"])

    assert "aes256k" in await refused(native)


async def test_wrong_key(settings: RadosSettings, tmp_path: Path) -> None:
    """A user whom the cluster does not let in is named, and the key is not shown."""
    key = base64.b64encode(struct.pack("<HIIH", 1, 1_700_000_000, 0, 16) + b"0123456789abcdef").decode()
    path = keyring(tmp_path / "k", settings.name, key)

    words = await refused(replace(settings, keyring=path))

    assert settings.name in words
    assert key not in words


def named(settings: RadosSettings, option: str) -> RadosSettings:
    """The settings with a pool that is not there."""
    missing: dict[str, Any] = {option: "no.such.pool"}
    return replace(settings, **missing)


@pytest.mark.parametrize("option", ["pool", "log_pool", "topics_pool"])
async def test_missing_pool(settings: RadosSettings, option: str) -> None:
    """A pool that does not exist is named, with where its name was learnt, be it that of queues or of topics."""
    words = await refused(named(settings, option))

    assert words == "there is no pool no.such.pool (named by the configuration)"


@pytest.mark.parametrize("option", ["log_pool", "topics_pool"])
async def test_logs_need_no_pool_of_topics(settings: RadosSettings, option: str) -> None:
    """A sequencer, which reads no topics, works without the pools that have them."""
    async with reached_logs(named(settings, option)) as store:
        assert store.connected


async def test_pools_of_the_zone(ceph: Ceph) -> None:
    """Without configured pools they are read from the zone, and the description tells so."""
    asking = replace(ceph.least, pool="", namespace="", log_pool="", topics_pool="")
    async with RadosStore(asking) as store:
        await until(lambda: connected(store))
        assert "default.rgw.log:notif" in store.description
        assert "zone" in store.description
        assert "client.remora" in store.description


async def test_unknown_zone(ceph: Ceph) -> None:
    """A zone that is asked for by name and cannot be read is refused, and no other pool is guessed."""
    asking = replace(ceph.admin, pool="", namespace="", log_pool="", topics_pool="", zone="atlantis")

    assert "atlantis" in await refused(asking)


async def test_description_before_and_after(settings: RadosSettings) -> None:
    """The state is told when it changes: once connected, with pool, user and where the pool's name is from."""
    told: list[tuple[bool, str]] = []
    async with RadosStore(settings, lambda there, text: told.append((there, text))) as store:
        await until(lambda: connected(store))
        assert [there for there, _ in told] == [True]
        assert told[0][1] == store.description
        assert f"default.rgw.log:{settings.namespace}" in store.description
        assert "the configuration" in store.description
