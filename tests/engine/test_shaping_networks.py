"""Traffic shaping by the networks in which brokers lie that are named by host names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.runs import a_topic, drained, until
from engine.shaped import BOTH, MUCH, NOTHING, Shaped
from remora.config import MetersSettings, ScopeSettings, ShapingSettings
from remora.model.topic import Delivery, Target, Topic
from remora.policy.shaping.classes import Introduction
from support.credit import shaping


@dataclass
class ScriptedAddresses:
    """Knows the addresses that a test has written down."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, topic: Topic, hosts: Sequence[str]) -> Introduction:
        return Introduction(addresses={each: self.known[each] for each in hosts if each in self.known})


def two_sites() -> ShapingSettings:
    """No credit for what goes to 10.0.0.0/8, and as much as they like for all other destinations."""
    none = dict.fromkeys(("max", "client_high", "client_normal", "client_low"), NOTHING)
    much = dict.fromkeys(none, MUCH)
    return shaping(
        ScopeSettings(
            name="site",
            of="destination",
            match=("10.0.0.0/8",),
            each=False,
            enabled=True,
            meters=MetersSettings(**none),
        ),
        ScopeSettings(name="rest", of="destination", each=False, enabled=True, meters=MetersSettings(**much)),
    )


def made(mode: Delivery, **addresses: tuple[str, ...]) -> tuple[Shaped, ScriptedAddresses]:
    """Two topics with ten entries each, for brokers `near` and `far`."""
    it = Shaped(two_sites(), mode)
    known = it.gate.introduce = ScriptedAddresses(dict(addresses))
    for name in ("near", "far"):
        it.make(name, 10)
        it.store.metadata[name] = replace(a_topic(name, to=name), target=Target(f"kafka://{name}:9092", "", name))
    return it, known


@BOTH
@in_virtual_time
async def test_a_destination_is_shaped_by_the_network_of_its_address(mode: Delivery) -> None:
    """A topic whose broker lies in a network waits there and says by which address; another one is delivered. The one
    that waits goes on as soon as its name is known to lie elsewhere."""
    it, known = made(mode, near=("10.1.2.3",), far=("11.1.2.3",))
    async with it.running():
        await until(lambda: it.store.queues["far"].waiting == 0 and it.gate.waiting == 1)
        await asyncio.sleep(60)
        assert it.store.queues["near"].waiting == 10
        assert it.gate.waiting_by_scope() == {("site", "client_low"): 1}
        (status,) = [each for each in it.worker.shards if each.queue == "near"]
        assert status.reason == "waits for client_low of site (near is 10.1.2.3)"

        known.known["near"] = ("10.1.2.3", "11.1.2.4")
        it.gate.refresh()
        await drained(it.store)

    assert len(it.endpoint.arrived) == 20


@BOTH
@in_virtual_time
async def test_a_name_that_becomes_known_is_shaped_from_the_next_page_on(mode: Delivery) -> None:
    """Until a name is looked up its topic belongs to the next scope; then it is in its network, also while it waits,
    and what was sent before stays sent."""
    it, known = made(mode)
    async with it.running():
        await drained(it.store)
        assert len(it.endpoint.arrived) == 20

        known.known["near"] = ("10.1.2.3",)
        it.gate.refresh()
        it.store.queues["near"].append(*(raw_entry("k", i) for i in range(10, 15)))
        await until(lambda: it.gate.waiting == 1)
        await asyncio.sleep(60)
        assert it.gate.waiting_by_scope() == {("site", "client_normal"): 1}
        assert len(it.endpoint.arrived) == 20


@BOTH
@in_virtual_time
async def test_who_waits_goes_to_the_group_of_a_new_address(mode: Delivery) -> None:
    """A topic that waits for credit of one scope waits in the other one when its address lies there by now."""
    it, known = made(mode, near=("10.1.2.3",), far=("10.1.2.4",))
    async with it.running():
        await until(lambda: it.gate.waiting == 2)
        rest = replace(two_sites().scope[1], meters=two_sites().scope[0].meters)
        it.configure(shaping(two_sites().scope[0], rest))
        await asyncio.sleep(1)
        assert it.gate.waiting_by_scope() == {("site", "client_low"): 2}

        known.known["near"] = ("11.1.2.3",)
        it.gate.refresh()
        assert it.gate.waiting_by_scope() == {("site", "client_low"): 1, ("rest", "client_low"): 1}
