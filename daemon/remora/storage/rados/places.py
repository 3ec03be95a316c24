"""Which pools and namespaces hold a zone's queues and topics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import NamedTuple

from remora.config import RadosSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable

_ADMIN = "radosgw-admin"


class Place(NamedTuple):
    """A namespace of a pool, empty for the default one."""

    pool: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.pool}:{self.namespace}" if self.namespace else self.pool

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `pool` or `pool:namespace`, as radosgw writes them."""
        pool, _, namespace = text.partition(":")
        return cls(pool, namespace)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the queues, version 1 topics and version 2 topics lie, and how that was learnt."""

    notif: Place
    log: Place
    topics: Place
    source: str

    @property
    def own(self) -> Place:
        """What is remora's alone: the queues' pool, in a namespace that no radosgw looks into."""
        return Place(self.notif.pool, "remora")


_DEFAULTS = Places(
    Place("default.rgw.log", "notif"),
    Place("default.rgw.log"),
    Place("default.rgw.meta", "topics"),
    "the default zone's names",
)


async def find_places(settings: RadosSettings, timeout_s: float) -> Places:
    """The places that the settings name; those that they leave open from the zone, else the default zone's.

    Raises StoreMisconfigured when a zone that is asked for by name cannot be read, and StoreUnavailable when
    nobody answers: guessing would then serve the wrong pool.
    """
    if settings.pool and settings.log_pool and settings.topics_pool:
        return _named(settings, _DEFAULTS, "the configuration")
    zone, remark = await _read_zone(settings, timeout_s)
    if zone is None and settings.zone:
        raise StoreMisconfigured(f"zone {settings.zone} cannot be read: {remark}")
    found = _DEFAULTS if zone is None else _of_zone(zone)
    source = f"{found.source}, because {remark}" if remark else found.source
    return _named(settings, found, f"the configuration and {source}" if settings.pool else source)


def _named(settings: RadosSettings, others: Places, source: str) -> Places:
    notif = Place.parse(settings.pool) if settings.pool else others.notif
    return Places(
        notif=notif._replace(namespace=settings.namespace) if settings.namespace else notif,
        log=Place.parse(settings.log_pool) if settings.log_pool else others.log,
        topics=Place.parse(settings.topics_pool) if settings.topics_pool else others.topics,
        source=source,
    )


def _of_zone(zone: dict[str, object]) -> Places:
    def place(name: str, default: Place) -> Place:
        text = zone.get(name)
        return Place.parse(text) if isinstance(text, str) and text else default

    return Places(
        place("notif_pool", _DEFAULTS.notif),
        place("log_pool", _DEFAULTS.log),
        place("topics_pool", _DEFAULTS.topics),  # releases before 19 have none
        f"zone {zone.get('name') or 'default'}",
    )


async def _read_zone(settings: RadosSettings, timeout_s: float) -> tuple[dict[str, object] | None, str]:
    """The zone's parameters, or None and why not."""
    command = [_ADMIN, "--conf", settings.conf, "--name", settings.name, "zone", "get", "--format", "json"]
    command += ["--keyring", settings.keyring] if settings.keyring else []
    command += ["--rgw-zone", settings.zone] if settings.zone else []
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except FileNotFoundError:
        return None, f"{_ADMIN} is not installed"
    except OSError as exc:
        return None, f"{_ADMIN} cannot be run: {exc.strerror}"
    try:
        async with asyncio.timeout(timeout_s):
            output, remarks = await process.communicate()
    except TimeoutError as exc:
        raise StoreUnavailable(f"{_ADMIN} zone get did not answer within {timeout_s:g} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = remarks.decode(errors="replace").strip().splitlines()
        return None, f"{_ADMIN} zone get failed: {lines[-1].strip() if lines else process.returncode}"
    try:
        zone = json.loads(output)
    except ValueError:
        return None, f"{_ADMIN} zone get printed no JSON"
    return (zone, "") if isinstance(zone, dict) else (None, f"{_ADMIN} zone get printed no zone")
