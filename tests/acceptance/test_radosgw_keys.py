"""Ceph 20 hands out keys that older releases of librados cannot use: refused there, used where they fit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.clusters.kafka import create_topic as create_kafka_topic
from devkit.clusters.s3 import Zone, fresh
from devkit.processes.daemon import remora, running_daemon, write_config
from devkit.readers.consumer import check, read_until
from remora.model.exits import Exit

pytestmark = pytest.mark.ceph

SCRIPTS = Path(__file__).parents[2] / "scripts"


def native(zone: Zone) -> dict[str, dict[str, object]]:
    """A daemon's configuration with a user whose key is of its release's own type."""
    user = {"name": zone.env["native_client"], "keyring": zone.env["native_keyring"]}
    return zone.sections | {"rados": zone.rados | user}


async def venv() -> str:
    """The Python environment inside that release's folder; made when it is not there yet."""
    process = await asyncio.create_subprocess_exec(SCRIPTS / "dev/ceph20-venv", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().strip()


async def test_a_key_that_this_librados_cannot_use(zone20: Zone, tmp_path: Path) -> None:
    """The daemon refuses to start with it: one line that names the key's type and what helps, and its exit code."""
    own: dict[str, dict[str, object]] = {
        "admin": {"listen": "127.0.0.1:0"},
        "supervisor": {"run_directory": str(tmp_path)},
    }
    config = write_config(tmp_path / "remora.toml", native(zone20) | own)

    done = await remora("run", "-c", config)

    assert done.code == Exit.NO_PERMISSION
    (line,) = [each for each in done.err.splitlines() if each.startswith("remora: ")]
    assert "aes256k" in line
    assert "librados 20.2 or newer" in line
    assert "--key-type aes" in line
    assert "Traceback" not in done.err


@pytest.mark.full("the release's own Python is a package's")
@pytest.mark.kafka
async def test_with_the_releases_own_python_and_key(zone20: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """With that release's own Python and librados the same key works, and events are delivered."""
    command = (str(SCRIPTS / "dev-ceph"), "exec", "--name", zone20.name, "--", f"{await venv()}/bin/remora")
    topic = fresh("native")
    queue = zone20.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    async with (
        zone20.user() as user,
        running_daemon(tmp_path, native(zone20), command=command) as daemon,
    ):
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await daemon.own(queue)
        await user.put(await user.bucket(topic, arn), "a", "b", "a")
        records = await read_until(kafka.address, topic, 3)
        assert await daemon.stop() == 0

    verdict = check(records, [("ObjectCreated:Put", key) for key in "aba"])
    assert verdict.is_clean, verdict
