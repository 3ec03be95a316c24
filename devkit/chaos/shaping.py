"""Limits of traffic at random: scopes of all kinds, by host and by cluster, some without credit, some switched off."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

METERS = ("max", "client_high", "client_normal", "client_low", "background", "idle", "priority_queue")
KINDS = ("host", "destination", "tenant", "topic")


def scopes(chance: random.Random) -> Sequence[Mapping[str, object]]:
    """Some scopes, or none; no two of them are of one kind."""
    return [_scope(chance, kind) for kind in KINDS if chance.random() < 0.5]


def _scope(chance: random.Random, kind: str) -> Mapping[str, object]:
    return {
        "name": f"of-{kind}",
        "of": kind,
        "each": chance.random() < 0.7,
        "across": "cluster" if kind != "host" and chance.random() < 0.5 else "host",
        "enabled": chance.random() < 0.8,
        "adaptive": chance.random() < 0.5,
        "meters": {name: _meter(chance) for name in METERS if chance.random() < 0.9},
    }


def _meter(chance: random.Random) -> Mapping[str, object]:
    """A rate between nothing and more than a run sends."""
    rate = chance.choice([0, 1_000, 20_000, 200_000, 5_000_000])
    meter = {"guaranteed": f"{rate}B", "burst": f"{chance.choice([1_000, 50_000, 1_000_000])}B"}
    return meter | ({"max": f"{chance.choice([2, 4]) * rate}B"} if chance.random() < 0.3 else {})
