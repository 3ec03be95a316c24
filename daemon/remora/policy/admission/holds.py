"""Which topics are held now, and what a hold says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remora.model.member import Member, is_workers
from remora.model.shard import Shard
from remora.model.topic import Topic, TopicHold
from remora.model.words import moment
from remora.policy.ownership.hosts import host_text, names_of


def in_force(stored: Mapping[Shard, TopicHold], topics: Mapping[Shard, Topic], now: float) -> Mapping[Shard, TopicHold]:
    """The holds that count, by their topic's first shard: those that have not ended, of the topic that they name.

    A topic whose metadata cannot be read is held as what is stored of it says.
    """
    found = {}
    for shard, hold in stored.items():
        topic = topics.get(shard)
        if hold.lasts(now) and (topic is None or topic.id == hold.topic_id):
            found[shard] = hold
    return found


def hold_text(hold: TopicHold) -> str:
    """Until when, and why, as status and page say it."""
    until = "until it is resumed" if hold.until is None else f"until {moment(hold.until)}"
    return f"held by an operator {until}" + (f": {hold.reason}" if hold.reason else "")


def deaf_hosts(rows: Iterable[Member]) -> list[str]:
    """The hosts on which a worker runs that knows of no holds: an earlier release says no release in its row."""
    members = list(rows)
    names = names_of(members)
    hosts = {each.host for each in members if is_workers(each.cookie) and not each.release}
    return sorted(host_text(each, names) for each in hosts)
