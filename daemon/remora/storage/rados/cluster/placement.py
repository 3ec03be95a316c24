"""The placement of a zone's queues and topics: which pools and namespaces hold them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import dataclass
from typing import NamedTuple

from remora.config.stores import RadosSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable

_ADMIN = "radosgw-admin"


class Locator(NamedTuple):
    """A pool and one of its namespaces; the default namespace is empty."""

    pool: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.pool}:{self.namespace}" if self.namespace else self.pool

    @classmethod
    def parse(cls, text: str) -> Locator:
        """Read `pool` or `pool:namespace`, as radosgw writes them."""
        pool, _, namespace = text.partition(":")
        return cls(pool, namespace)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where queues (`notif`), topics of version 1 (`log`) and 2 (`topics`) lie, and the `source` of that."""

    notif: Locator
    log: Locator
    topics: Locator
    source: str

    @property
    def own(self) -> Locator:
        """Where remora's own objects lie: in the queues' pool, in a namespace that no radosgw reads."""
        return Locator(self.notif.pool, "remora")


_DEFAULTS = Placement(
    Locator("default.rgw.log", "notif"),
    Locator("default.rgw.log"),
    Locator("default.rgw.meta", "topics"),
    "the default zone's names",
)


async def find_placement(settings: RadosSettings, timeout_s: float) -> Placement:
    """The placement that the settings name; what they leave out comes from the zone, else from the default zone.

    Raises StoreMisconfigured when the zone that the settings name cannot be read, and StoreUnavailable when
    radosgw-admin does not answer within `timeout_s`: a guess could serve the wrong pool.
    """
    if settings.pool and settings.log_pool and settings.topics_pool:
        return _named(settings, _DEFAULTS, "the configuration")
    zone, remark = await _read_zone(settings, timeout_s)
    if zone is None and settings.zone:
        raise StoreMisconfigured(f"zone {settings.zone} cannot be read: {remark}")
    found = _DEFAULTS if zone is None else _of_zone(zone)
    source = f"{found.source}, because {remark}" if remark else found.source
    return _named(settings, found, f"the configuration and {source}" if settings.pool else source)


def _named(settings: RadosSettings, others: Placement, source: str) -> Placement:
    notif = Locator.parse(settings.pool) if settings.pool else others.notif
    return Placement(
        notif=notif._replace(namespace=settings.namespace) if settings.namespace else notif,
        log=Locator.parse(settings.log_pool) if settings.log_pool else others.log,
        topics=Locator.parse(settings.topics_pool) if settings.topics_pool else others.topics,
        source=source,
    )


def _of_zone(zone: dict[str, object]) -> Placement:
    def locator(name: str, default: Locator) -> Locator:
        text = zone.get(name)
        return Locator.parse(text) if isinstance(text, str) and text else default

    return Placement(
        locator("notif_pool", _DEFAULTS.notif),
        locator("log_pool", _DEFAULTS.log),
        locator("topics_pool", _DEFAULTS.topics),  # releases before 19 have none
        f"zone {zone.get('name') or 'default'}",
    )


async def _read_zone(settings: RadosSettings, timeout_s: float) -> tuple[dict[str, object] | None, str]:
    """The zone's parameters, or None and the reason."""
    command = [_ADMIN, "--conf", settings.conf, "--name", settings.name, "zone", "get", "--format", "json"]
    command += ["--keyring", settings.keyring] if settings.keyring else []
    command += ["--rgw-zone", settings.zone] if settings.zone else []
    try:
        process = await asyncio.to_thread(_run, command, timeout_s)
    except FileNotFoundError:
        return None, f"{_ADMIN} is not installed"
    except OSError as exc:
        return None, f"{_ADMIN} cannot be run: {exc.strerror}"
    except subprocess.TimeoutExpired as exc:
        raise StoreUnavailable(f"{_ADMIN} zone get did not answer within {timeout_s:g} s") from exc
    if process.returncode != 0:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        return None, f"{_ADMIN} zone get failed: {lines[-1].strip() if lines else process.returncode}"
    try:
        zone = json.loads(process.stdout)
    except ValueError:
        return None, f"{_ADMIN} zone get printed no JSON"
    return (zone, "") if isinstance(zone, dict) else (None, f"{_ADMIN} zone get printed no zone")


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end, without asyncio, which complains of a child that somebody else has waited for."""
    return subprocess.run(  # noqa: S603 - no shell
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
    )
