"""The store contract: a file of topics that several hosts apply at the same moment is applied once."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

from remora.cli.apply_topics import ApplyPlan, carry_out, plan
from remora.cli.declared import Declared
from remora.ports.store import ShardStore
from support.stores import Bench, own_topic


async def planned(store: ShardStore, declared: list[Declared], names: set[str], *, prune: bool = False) -> ApplyPlan:
    """What is to be done to these topics."""
    present = [topic for topic in (await store.catalog.topics()).values() if topic.name in names]
    return plan(present, declared, prune=prune)


async def test_several_hosts_apply_the_same_file_at_once(bench: Bench) -> None:
    """Topics are made, changed and removed by several stores side by side: no step fails, and nothing is left to do."""
    stores = [bench.store, await bench.another(), await bench.another()]
    asked = [own_topic(f"t-{uuid.uuid4().hex[:8]}", shards) for shards in (1, 3, 5)]
    names = {topic.name for topic in asked}
    made = [Declared(topic, True if topic.shards == 3 else None, []) for topic in asked]
    changed = [Declared(replace(topic, max_retries=7), False, []) for topic in asked[:2]]

    for declared, prune in ((made, False), (changed, False), (changed, True), ([], True)):
        plans = [await planned(store, declared, names, prune=prune) for store in stores]
        assert all(each.steps for each in plans)
        failures = await asyncio.gather(
            *(carry_out(store, each.steps) for store, each in zip(stores, plans, strict=True))
        )

        assert failures == [[], [], []]
        for store in stores:
            assert not (await planned(store, declared, names, prune=prune)).steps
    assert not [each for each in await bench.store.catalog.shards() if each.queue.partition(".")[0] in names]
