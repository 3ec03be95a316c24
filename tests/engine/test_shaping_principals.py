"""Traffic shaping by who sends to a topic and who receives from it, while names become known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from devkit.clock import in_virtual_time
from engine.runs import a_topic, drained, until
from engine.shaped import BOTH, MUCH, NOTHING, Shaped
from remora.config import PrincipalSettings, ShapingSettings
from remora.model.topic import Delivery, Topic
from remora.policy.shaping.classes import Introduction
from support.credit import a_host, shaping


@dataclass
class ScriptedIntroductions:
    """Says what a test has it say."""

    tokens: dict[str, tuple[str, ...]] = field(default_factory=dict)
    certificate: str = ""

    def __call__(self, topic: Topic, hosts: Sequence[str]) -> Introduction:
        return Introduction(self.tokens.get(topic.name, ()), self.certificate)


def without_background(*principals: PrincipalSettings) -> ShapingSettings:
    """Credit for all classes but `replay`, which these principals have at most."""
    host = a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH, background=NOTHING)
    return replace(shaping(host), principal=principals)


BULK = PrincipalSettings(name="bulk", of="token", match=("bulk",), max_class="replay")
SITE = PrincipalSettings(name="site", of="certificate", match=("*OU=masses*",), max_class="replay")
OWNER = PrincipalSettings(name="amy", of="owner", match=("amy",), max_class="replay")


@BOTH
@in_virtual_time
async def test_a_topic_is_shaped_by_the_tokens_that_may_send_to_it(mode: Delivery) -> None:
    """A topic of one bulk sender waits in its class while another topic is delivered; it goes on in a higher class as
    soon as a token beside that one may send to it."""
    it = Shaped(without_background(BULK), mode)
    known = it.gate.introduce = ScriptedIntroductions({"bulk": ("bulk",), "both": ("bulk", "live")})
    it.make("bulk", 10)
    it.make("both", 10)
    async with it.running():
        await until(lambda: it.store.queues["both"].waiting == 0 and it.gate.waiting == 1)
        await asyncio.sleep(60)
        assert it.gate.waiting_by_scope() == {("uplink", "background"): 1}
        assert it.store.queues["bulk"].waiting == 10

        known.tokens["bulk"] = ("bulk", "live")
        it.gate.refresh()
        await drained(it.store)

    assert len(it.endpoint.arrived) == 20


@BOTH
@in_virtual_time
async def test_a_topic_is_shaped_by_the_certificate_of_its_endpoint(mode: Delivery) -> None:
    """The class of a topic whose certificate is read later is its principal's from then on, also while it waits."""
    it = Shaped(without_background(SITE), mode)
    known = it.gate.introduce = ScriptedIntroductions(certificate="CN=r,OU=masses")
    it.make("t", 10)
    async with it.running():
        await until(lambda: it.gate.waiting == 1)
        assert it.gate.waiting_by_scope() == {("uplink", "background"): 1}
        known.certificate = "CN=r,OU=others"
        it.gate.refresh()
        await drained(it.store)

    assert it.endpoint.events() == [b"id-%d" % i for i in range(10)]


@BOTH
@in_virtual_time
async def test_a_topic_is_shaped_by_its_owner(mode: Delivery) -> None:
    """Of two topics with equal targets that of the named owner waits, and the other one is delivered."""
    it = Shaped(without_background(OWNER), mode)
    it.make("hers", 10)
    it.make("his", 10)
    it.store.metadata["hers"] = replace(a_topic("hers", to="hers"), owner="amy")
    it.store.metadata["his"] = replace(a_topic("his", to="his"), owner="bob")
    async with it.running():
        await until(lambda: it.store.queues["his"].waiting == 0 and it.gate.waiting == 1)
        await asyncio.sleep(60)
        assert it.store.queues["hers"].waiting == 10
        assert it.gate.waiting_by_scope() == {("uplink", "background"): 1}
