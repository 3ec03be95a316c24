"""The commands of the documents: each block is run as it stands there, or says here why not."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devkit.processes.daemon import Sections, merged, running_daemon, write_config
from devkit.testing.cases import cases
from devkit.waits import PATIENT_S
from support.blocks import ROOT, blocks

NOT_RUN = {
    "README.md": {
        "python3 -m venv venv": "installs: tests/acceptance/test_demo_command.py tries the demo",
        "docker compose": "needs an engine for containers: tests/unit/test_compose.py",
        "scripts/demo": "takes minutes: tests/acceptance/test_demo.py",
        "apt-get install ./dist": "installs: tests/acceptance/test_packages.py",
    },
    "CONTRIBUTING.md": {"scripts/setup": "runs the tests: .github/workflows/tests.yml"},
    "ceph.md": {
        "ceph auth get-or-create": "needs Ceph: devkit/clusters/ceph.py makes such a user",
        "apt-get install librados2": "installs",
        "systemctl edit": "needs systemd",
        "aws --endpoint-url": "needs radosgw: tests/acceptance/test_radosgw_topics.py",
        "ceph orch apply": "needs cephadm: tests/acceptance/test_cephadm.py",
    },
    "client.md": {"remora send photos": "needs programs that send: tests/acceptance/test_send.py"},
    "dead-letters-and-ledger.md": {"remora dlq list": "needs letters: tests/acceptance/test_daemon_letters.py"},
    "endpoints-nats.md": {"nats stream add": "needs a NATS server: tests/contract/test_nats_endpoint.py"},
    "ingest.md": {
        "curl -i --unix-socket": "names a reservation: tests/acceptance/test_ingest_daemon.py",
        "remora token gateway-1": "needs a certificate: tests/acceptance/test_ingest_daemon.py",
    },
    "install.md": {
        "apt-get install ./dist": "installs: tests/acceptance/test_packages.py",
        "apt-get install python3-venv": "installs: scripts/try-package",
        "podman load": "needs an image: tests/acceptance/test_image.py",
        "docker build": "needs an image: tests/acceptance/test_image.py",
        "docker run": "needs an image: tests/acceptance/test_image.py",
    },
    "kafka-security.md": {"kafka-acls.sh": "needs Kafka: tests/contract/test_kafka_endpoint_security.py"},
    "kubernetes.md": {
        "helm install": "needs Kubernetes: tests/acceptance/test_kubernetes.py",
        "remora token gateway": "needs Kubernetes: tests/acceptance/test_kubernetes.py",
        "kubectl": "needs Kubernetes: tests/acceptance/test_kubernetes.py",
    },
    "operations.md": {"remora shard claim --all": "needs radosgw: tests/acceptance/test_radosgw_ownership.py"},
    "replay.md": {"remora replay prepare": "needs Kafka and Spark: tests/replay/test_end_to_end.py"},
    "sizing.md": {"ceph osd crush": "needs Ceph"},
    "sources.md": {"remora topic create photos --endpoint kafka://broker:9092 --arg": "scripts/try-sources"},
    "spill.md": {"remora spill export": "needs Ceph: tests/acceptance/test_spill.py"},
}
"""Why a block is not run, and what tries it in another way, by document and how it begins."""

SCOPE = {
    "name": "uplink", "of": "host", "enabled": True,
    "meters": {
        name: {"guaranteed": rate, "burst": "5MB"}
        for name, rate in (("max", "5MB"), ("client_normal", "20MB"), ("client_low", "5MB"), ("priority_queue", "50MB"))
    },
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """What a document takes for granted: commands before it and after it, and what stands in the place of names."""

    before: str = ""
    after: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    daemon: Sections | None = None


ORDERS = "remora topic create orders --endpoint kafka://broker:9092"
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")

WORLDS = {
    "cloudevents.md": World(before=f"{ORDERS}; remora topic create hooks --endpoint http://receiver"),
    "directories.md": World(before=ORDERS),
    "embedded-store.md": World(
        before="echo secret >kafka.password; mkdir -p /var/backups",
        named={"--dry-run": "--dry-run || test $? = 3", "remora-2026-11-27": "remora-$(date +%F)"},
        after="remora store check",
    ),
    "holding.md": World(before=ORDERS, named={"2026-11-21T06:00:00+01:00": TOMORROW}),
    "ingest.md": World(daemon={}),
    "notifications.md": World(daemon={}),
    "operations.md": World(
        named={"http://127.0.0.1:9750": "--unix-socket $ADMIN http://localhost"}, after="remora check-config",
        daemon={"admin": {"control_tokens": "/etc/remora/control-tokens"}},
    ),
    "resharding.md": World(before=ORDERS, named={"--advice": "--advice --watch 1s"}),
    "runbooks.md": World(
        named={"config/alerts.yml": f"{ROOT}/config/alerts.yml"}, after="test -s /etc/prometheus/remora.yml"
    ),
    "shaping.md": World(daemon={"shaping": {"scope": [SCOPE]}}),
    "slo.md": World(
        before=f"{ORDERS} --arg 'remora-slo=99% < 5s over 28d'", after="grep -q orders /etc/prometheus/rules/*"
    ),
    "sources.md": World(),
}  # fmt: skip

AT_THE_GATE = ("holding.md", "shaping.md")
"""The gate runs the commands of these documents; the full run those of all."""

PLACES = ("/etc/remora", "/etc/prometheus", "/var/lib/remora", "/var/backups", "/run/remora", "/srv/disk2", "/root")
"""Folders that the documents name, and that lie in the test's own one."""


def why_not(document: str, block: str) -> str | None:
    """Why a block is not run; None where it is."""
    return next((why for begins, why in NOT_RUN.get(document, {}).items() if block.startswith(begins)), None)


SH = [(*where.split(":"), text) for where, text in blocks("sh")]


def test_each_block_is_run_or_says_why_not() -> None:
    """Each block of commands has a world that it is run in, or a reason, and each reason has its block and its test."""
    left = [
        f"{document}:{line}" for document, line, text in SH if document not in WORLDS and not why_not(document, text)
    ]
    unused = [
        (document, begins)
        for document, reasons in NOT_RUN.items()
        for begins in reasons
        if not any(name == document and text.startswith(begins) for name, _, text in SH)
    ]
    named = {word.strip(",") for of in NOT_RUN.values() for why in of.values() for word in why.split() if "/" in word}

    assert (left, unused) == ([], [])
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", cases(*AT_THE_GATE, more=[each for each in WORLDS if each not in AT_THE_GATE]))
async def test_the_commands_of_a_document_run(document: str, tmp_path: Path) -> None:
    """One after the other they end well, in the folders and with the topics that the document takes for granted."""
    world = WORLDS[document]
    for place in (*PLACES, "/etc/prometheus/rules", "/bin"):
        (tmp_path / place[1:]).mkdir(0o700, parents=True, exist_ok=True)
    command = tmp_path / "bin/remora"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m remora "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    topics = [text for where, text in blocks("toml") if where.startswith(f"{document}:") and "[topic." in text]
    (tmp_path / "topics.toml").write_text(topics[0] if topics else "")
    commands = [text for name, _, text in SH if name == document and not why_not(document, text)]
    script = "\n".join([world.before, *map(str.rstrip, commands), world.after])
    for name, real in {**world.named, **{place: f"{tmp_path}{place}" for place in PLACES}}.items():
        script = script.replace(name, real)
    script = script.replace("-o remora -g remora ", "").replace("-o remora ", "")
    sections = merged({"sqlite": {"directory": f"{tmp_path}/var/lib/remora", "files": 2}}, world.daemon or {})

    async with AsyncExitStack() as stack:
        env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        if world.daemon is None:
            env["REMORA_CONFIG"] = str(write_config(tmp_path / "etc/remora/remora.toml", sections))
        else:
            if "admin" in sections:
                sections["admin"] = {name: f"{tmp_path}{value}" for name, value in sections["admin"].items()}
                (tmp_path / "etc/remora/control-tokens").touch(0o600)
            sections = merged(sections, {"ingest": {"listen": f"unix:{tmp_path}/run/remora/ingest.sock"}})
            daemon = await stack.enter_async_context(running_daemon(tmp_path, sections))
            listen = str(daemon.sections["admin"]["listen"])
            env |= {"REMORA_CONFIG": str(daemon.config), "ADMIN": listen.removeprefix("unix:")}
        code, said = await run(script, tmp_path, env)

    assert code == 0, f"{script}\n{said}"


async def run(script: str, folder: Path, env: Mapping[str, str]) -> tuple[int | None, str]:
    """The end of a script in bash, which ends at the first command that fails, and what it said."""
    strict = 'set -aeuo pipefail\ncurl() { command curl --silent --fail-with-body "$@"; }\n'
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        strict + script,
        cwd=folder,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(4 * PATIENT_S):
        said, _ = await process.communicate()
    return process.returncode, said.decode()
