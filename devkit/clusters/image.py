"""The image of remora, built by `scripts/dev/image`, and containers of it that run as hardened as a chart runs them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.paths import SCRIPTS
from devkit.processes.daemon import Ended
from devkit.processes.ports import free_port
from devkit.processes.programs import program
from devkit.waits import until

_DEV_IMAGE = SCRIPTS / "dev/image"

HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
MEMORY_BYTES = 512 << 20

_LIMITED = ("--memory", str(MEMORY_BYTES), "--pids-limit", "100", "--tmpfs", "/tmp")

HERE = ("--network", "host", "--no-healthcheck", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
"""Health checks need systemd. The limits are named, since podman asks for more than some hosts may give."""


@dataclass(frozen=True)
class Image:
    """An image in a folder of podman's."""

    folder: Path
    name: str

    async def podman(self, *args: str, stdin: bytes = b"") -> Ended:
        """Run podman on the folder; crun takes no hybrid cgroups, runc takes all."""
        own = ["--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run", "--cgroup-manager", "cgroupfs"]
        own += ["--events-backend", "file", "--runtime", "/usr/sbin/runc"]
        process = await asyncio.create_subprocess_exec(
            *(["sudo"] if os.geteuid() else []), "env", "STORAGE_DRIVER=vfs", "podman", *own, *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate(stdin)
        return Ended(process.returncode or 0, out, err.decode())


@dataclass(frozen=True)
class Container:
    """A running container of a daemon."""

    image: Image
    name: str
    admin: str

    async def command(self, *args: str, stdin: bytes = b"") -> Ended:
        """Run a command of remora in the container."""
        return await self.image.podman("exec", "-i", self.name, "remora", *args, stdin=stdin)

    async def python(self, script: str) -> str:
        """What a script prints that runs with the container's Python."""
        done = await self.image.podman("exec", self.name, "/opt/remora/bin/python", "-c", script)
        assert done.code == 0, done.err
        return done.out.decode()

    async def field(self, name: str) -> str:
        """A field of `podman inspect`, such as State.Pid."""
        return (await self.image.podman("inspect", "--format", f"{{{{.{name}}}}}", self.name)).out.decode().strip()

    async def log(self) -> str:
        """What the daemon wrote to its standard error."""
        return (await self.image.podman("logs", self.name)).err

    async def stop(self) -> int:
        """End it with the image's stop signal, as a kubelet does; its exit code."""
        done = await self.image.podman("stop", "--time", "60", self.name)
        assert done.code == 0, done.err
        return int(await self.field("State.ExitCode"))

    def is_ready(self) -> bool:
        """Whether it takes events in."""
        host, _, port = self.admin.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"GET /-/ready/ingest HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(100)
        return False


@contextlib.asynccontextmanager
async def running_container(
    image: Image, user: str, volumes: Mapping[Path, str], *options: str, environment: Mapping[str, str]
) -> AsyncIterator[Container]:
    """A hardened container that takes events in, removed afterwards. It has one worker, and a port of its own."""
    name, port = f"remora-test-{uuid.uuid4().hex[:12]}", free_port()
    given = {"REMORA_SUPERVISOR_WORKERS": "1", "REMORA_ADMIN_LISTEN": f"0.0.0.0:{port}", **environment}
    container = Container(image, name, f"127.0.0.1:{port}")
    done = await image.podman(
        "run", "--detach", "--name", name, *HARDENED, *_LIMITED, *HERE, "--user", user, *options,
        *_each("--volume", [f"{path}:{place}" for path, place in volumes.items()]),
        *_each("--env", [f"{variable}={value}" for variable, value in given.items()]), image.name,
    )  # fmt: skip
    try:
        assert done.code == 0, done.err
        try:
            await until(container.is_ready, "the container is ready", 240)
        except AssertionError as error:
            raise AssertionError(f"{error}: {await container.log()}") from None
        yield container
    finally:
        await image.podman("rm", "--force", "--time", "5", "--volumes", name)


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def memory_limit(pid: int) -> int:
    """Bytes that the control group of a process may take, by either version of control groups."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").read_text())
        unified = Path(f"/sys/fs/cgroup{path}/memory.max")
        if number == "0" and unified.exists():
            return int(unified.read_text())
    raise AssertionError(f"process {pid} has no control group of memory")


def _built(name: str, *options: str) -> Image:
    """An image of the Dockerfile as it stands."""
    for tool in ("buildah", "podman", "runc", "debootstrap"):
        program(tool, tool)
    done = subprocess.run([_DEV_IMAGE, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Image(Path(done.stdout.strip()), f"localhost/{name}:bookworm")


@pytest.fixture(scope="session")
def image() -> Image:
    """The daemon's image."""
    return _built("remora")


@pytest.fixture(scope="session")
def pipeline_image() -> Image:
    """The image with Spark."""
    return _built("remora-pipeline", "--pipeline")
