"""Names, positions and requests of transactions."""

from __future__ import annotations

import re

import aiokafka.errors as kafka
import pytest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.kafka.batches import CODECS, RecordBatch
from remora.endpoints.kafka.client import writing
from remora.endpoints.kafka.exact import mark_of, position_of, producer_name
from remora.endpoints.kafka.transactions import Sending, _rounds

HEX = st.text("0123456789abcdef", min_size=1, max_size=32)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), HEX)
def test_names(queue: str, incarnation: str) -> None:
    """Every queue has a short name that Kafka's tools take, which begins as permissions want it."""
    name = producer_name(queue, incarnation)

    assert re.fullmatch(r"remora\.[A-Za-z0-9._-]{0,100}\.[0-9a-f]+", name)


@given(st.text(max_size=20), HEX, HEX)
def test_incarnations_have_names_of_their_own(queue: str, one: str, other: str) -> None:
    """A recreated queue shares no producer with the one before."""
    assert (producer_name(queue, one) == producer_name(queue, other)) == (one == other)


@given(HEX, HEX, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_positions(one: str, other: str, gen: int, offset: int) -> None:
    """A position is read back as it was committed, by its own incarnation only."""
    position = b"%d/%d" % (gen, offset)

    mark = mark_of(one, position)

    assert mark.offset == offset
    assert position_of(mark, other) == (position if one == other else None)


@given(st.lists(st.integers(0, 4), max_size=40))
def test_rounds(partitions: list[int]) -> None:
    """Each request has one batch of a partition at most, and every batch is in one, those of a partition in order."""
    sendings = [Sending(TopicPartition("t", each), RecordBatch(CODECS["none"])) for each in partitions]

    rounds = _rounds(sendings)

    assert all(place == sending.place for each in rounds for place, sending in each.items())
    for place in {sending.place for sending in sendings}:
        mine = [each[place] for each in rounds if place in each]
        assert mine == [sending for sending in sendings if sending.place == place]
    assert len(rounds) == max(map(partitions.count, partitions), default=0)


def test_writing_to_a_connection_that_just_broke() -> None:
    """What uvloop says of a closed socket, before aiokafka has heard of it, counts as a broken connection."""
    with pytest.raises(kafka.KafkaConnectionError), writing():
        raise RuntimeError("unable to perform operation; the handler is closed")


def test_a_broker_that_no_longer_knows_our_versions() -> None:
    """A request that aiokafka has in older versions only than the broker takes is a misconfiguration, and no outage."""
    with pytest.raises(kafka.IncompatibleBrokerVersion), writing():
        ProduceRequest(None, -1, 1000, []).prepare({ProduceRequest.API_KEY: (1000, 1001)})
