"""Where a dev cluster keeps its files, how its ports are chosen, and what it tells its clients.

One folder per cluster: `<cache>/<kind>/<name>/`. `env.json` in it is written last, so a folder without it is
the remainder of an `up` that did not finish.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import shlex
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PORTS = range(20000, 30000)  # below the range that the kernel hands out to clients by itself


class DevError(Exception):
    """Something a person can act on; printed as one line."""


def cache_home() -> Path:
    """The folder for everything that is downloaded or runs; never inside the repository."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remora-dev"
    return Path(os.environ.get("REMORA_DEV_HOME") or fallback).resolve()


class State:
    """The folder of one named cluster."""

    def __init__(self, kind: str, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise DevError(f"{name!r} is not a usable name: letters, digits, '-', '_' and '.' only")
        self.kind, self.name = kind, name
        self.path = cache_home() / kind / name

    def __truediv__(self, part: str) -> Path:
        return self.path / part

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one command at a time changes this cluster; the others wait here."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.parent / f".{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_complete(self) -> bool:
        return (self / "env.json").exists()

    def env(self) -> dict[str, Any]:
        """What `up` wrote for the clients of this cluster."""
        try:
            values: dict[str, Any] = json.loads((self / "env.json").read_text())
        except FileNotFoundError:
            raise DevError(f"there is no {self.kind} cluster {self.name!r}: `scripts/dev-{self.kind} up`") from None
        return values

    def write_env(self, values: dict[str, Any]) -> None:
        """Write env (for a shell) and then env.json, each in one step."""
        lines = [f"export {name}={shlex.quote(text)}\n" for name, text in shell_variables(self.kind, values)]
        _replace(self / "env", "".join(lines))
        _replace(self / "env.json", json.dumps(values, indent=2) + "\n")

    def remove(self) -> None:
        """Removes the folder; $DEVKIT_LOGS names another one that keeps its logs, for whoever looks into a failure."""
        if self.path.exists():
            if (kept := os.environ.get("DEVKIT_LOGS")) and (self / "log").exists():
                shutil.copytree(self / "log", Path(kept) / self.kind / self.name, dirs_exist_ok=True)
            shutil.rmtree(self.path)

    def reserve_ports(self, names: list[str]) -> dict[str, int]:
        """Free ports that no other cluster of this machine's user has been given, stopped ones included."""
        home = cache_home()
        with open(home / "ports.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken = {port for file in home.glob("*/*/ports.json") for port in _reserved(file)}
            candidates = (p for p in random.sample(PORTS, len(PORTS)) if p not in taken and _is_free(p))
            ports = dict(zip(names, candidates, strict=False))
            _replace(self / "ports.json", json.dumps(ports) + "\n")
        return ports

    def ports(self) -> dict[str, int]:
        """The ports that were reserved when the cluster was made."""
        ports: dict[str, int] = json.loads((self / "ports.json").read_text())
        return ports


def _reserved(file: Path) -> Iterable[int]:
    """The ports of a cluster; none where it is just being removed."""
    try:
        ports: dict[str, int] = json.loads(file.read_text())
    except FileNotFoundError:
        return ()
    return ports.values()


def shell_variables(kind: str, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """{"s3": {"port": 1}} becomes DEV_CEPH_S3_PORT=1. `REMORA_...` would be options of the daemon."""
    for key, value in values.items():
        name = re.sub(r"\W", "_", f"{kind}_{key}")
        if isinstance(value, dict):
            yield from shell_variables(name, value)
        else:
            text = " ".join(value) if isinstance(value, list) else value
            yield f"DEV_{name.upper()}", "" if text is None else str(text)


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def _replace(path: Path, text: str) -> None:
    """The file appears with all of its content, readable by its owner only: it may hold keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)
