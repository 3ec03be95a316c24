"""Model `fleet`: its script's form, its steps, and what a run answers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.model.shard import Origin, Shard
from remora_pipeline.simulate import shed
from remora_pipeline.simulate.checks import at_least, not_negative, one_of, within
from remora_pipeline.simulate.fleet.offered import Offered, Zipf
from remora_pipeline.simulate.fleet.outages import Troubles
from remora_pipeline.simulate.fleet.trace import recorded
from remora_pipeline.simulate.fleet.worker import FleetSettings
from remora_pipeline.simulate.fleet.world import FleetTally, World
from remora_pipeline.simulate.form import Optional, members, number, or_null, text, whole
from remora_pipeline.simulate.quarantine import options_form, options_of
from remora_pipeline.simulate.script import Form

STRATEGIES = ("threshold", "overload", "count")
MOST_WORKERS = 20_000
MOST_SHARDS = 1_000_000
MOST_DESTINATIONS = 100_000
MOST_SKEW = 20
"""With this exponent the second shard already has a millionth of what the first one has."""
LEAST_INTERVAL_S = 1
MOST_SECONDS = 31 * 86_400
"""A run of a month; what is longer is a slip, and would hardly end."""


class FleetModel:
    """A fleet that has been up for a while."""

    def __init__(self, config: SimpleNamespace) -> None:
        _check(config)
        self._workers_of_a_host = config.workers
        chance = random.Random(config.seed)  # noqa: S311  (a script's own chance, which is to repeat)
        shards = [Shard(f"s{place:07}", Origin.REMORA) for place in range(config.shards)]
        troubles = Troubles(config.destinations, options_of(config.quarantine), config.quarantine.interval)
        balance = None if config.strategy == "count" else shed.options_of(config)
        settings = FleetSettings(balance, config.weights, config.interval, config.worker_bytes_per_s)
        self.world = World(shards, settings, _offered(config, shards, chance), troubles, chance)
        self.world.begin(config.hosts, config.workers)

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Time goes by, or something happens."""
        world = self.world
        not_negative(**vars(given))
        match op:
            case "run":
                within(0, MOST_SECONDS, seconds=given.seconds)
                return self._answer(world.run(given.seconds), given.seconds)
            case "join":
                within(0, MOST_WORKERS, hosts=given.hosts)
                world.add(given.hosts, self._workers_of_a_host)
            case "leave":
                world.remove(given.hosts)
            case "drain":
                world.drain(given.hosts)
            case "fail":
                world.fail(given.destinations, given.seconds)
            case _:
                if not given.factor:
                    raise ConfigError("factor", "must be above 0")
                world.burst(given.shards, given.factor, given.seconds)
        return {}

    def _answer(self, tally: FleetTally, seconds: float) -> dict[str, Any]:
        world, outages = self.world, self.world.outages
        workers = list(world.workers.values())
        held = [len(each.owned) for each in workers]
        return {
            "moves": {"count": tally.by_number, "load": tally.by_load},
            "twice_in_grace": tally.twice_in_grace,
            "beyond_giver": tally.beyond_giver,
            "unowned": world.unowned(),
            "held": {"min": min(held, default=0), "max": max(held, default=0)},
            "usage": spread([100 * each.offered_ratio for each in workers]),
            "skipped": dict(sorted(tally.skipped.items())),
            "members": {
                "rows": len(world.board.rows),
                "read_bytes_per_s": tally.read_bytes / seconds if seconds else 0.0,
            },
            "quarantine": {
                "entered": outages.tally.entered,
                "most_entered_in_a_window": max(outages.tally.by_window.values(), default=0),
                "most_released_in_a_second": max(outages.tally.released_at.values(), default=0),
                "still_quarantined": outages.in_quarantine(world.workers),
            },
        }


def spread(figures: Sequence[float]) -> dict[str, float]:
    """The least, mean and largest of the figures, and how far they are from the mean."""
    if not figures:
        return dict.fromkeys(("min", "mean", "max", "stddev"), 0.0)
    mean = math.fsum(figures) / len(figures)
    stddev = math.sqrt(math.fsum((each - mean) ** 2 for each in figures) / len(figures))
    return {"min": min(figures), "mean": mean, "max": max(figures), "stddev": stddev}


def _check(config: SimpleNamespace) -> None:
    one_of(config.strategy, STRATEGIES, "strategy")
    shed.check_weights(config)
    not_negative(**{name: value for name, value in vars(config).items() if name != "seed"})
    at_least(1, workers=config.workers)
    within(1, MOST_DESTINATIONS, destinations=config.destinations)
    within(0, MOST_SKEW, skew=config.skew)
    if config.load is not None:
        at_least(1, shards=config.shards)
        not_negative("load.", **vars(config.load))
    if config.quarantine.interval < LEAST_INTERVAL_S:
        raise ConfigError("quarantine.interval", f"must be at least {LEAST_INTERVAL_S}")
    within(0, MOST_WORKERS, hosts=config.hosts * config.workers)
    within(0, MOST_SHARDS, shards=config.shards)
    shed.check_history(config)
    at_least(LEAST_INTERVAL_S, interval=config.interval)
    if not config.worker_bytes_per_s:
        raise ConfigError("worker_bytes_per_s", "must be above 0")


def _offered(config: SimpleNamespace, shards: Sequence[Shard], chance: random.Random) -> Offered:
    if config.load is None:
        return Zipf(shards, config.bytes, config.skew, chance)
    if not config.load.speed:
        raise ConfigError("load.speed", "must be above 0")
    return recorded(config.load.trace, shards, config.load.event_bytes, config.load.speed)


_QUARANTINE = options_form(ratio=0.3)

_LOAD = members(trace=text, event_bytes=Optional(number, 1000), speed=Optional(number, 1))

FORM = Form(
    config=members(
        hosts=whole,
        workers=Optional(whole, 1),
        shards=whole,
        destinations=Optional(whole, 1),
        strategy=Optional(text, "threshold"),
        interval=Optional(number, 60),
        **shed.OPTIONS,
        quarantine=Optional(_QUARANTINE, _QUARANTINE({}, "quarantine")),
        bytes=Optional(number, 0),
        skew=Optional(number, 0),
        load=Optional(or_null(_LOAD), None),
        worker_bytes_per_s=Optional(number, 100_000_000),
        seed=Optional(whole, 1),
    ),
    ops={
        "run": members(seconds=number),
        "join": members(hosts=whole),
        "leave": members(hosts=whole),
        "drain": members(hosts=whole),
        "fail": members(destinations=whole, seconds=number),
        "burst": members(shards=whole, factor=number, seconds=number),
    },
    begin=FleetModel,
)
