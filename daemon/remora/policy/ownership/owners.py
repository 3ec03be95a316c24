"""Who delivers to a destination that fails some workers: those that it does not fail, while there are any.

Numbers stay fair meanwhile: a worker that gives such shards away gets others for them, as far as there are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.balance import BUSY_AT_ONCE, counts
from remora.policy.ownership.quarantine import owners
from remora.policy.ownership.view import View


def avoids(view: View, shard: Shard) -> bool:
    """Whether this worker leaves a shard to others, since its destination fails this worker and not all of them."""
    name = view.quarantined.get(shard)
    return name is not None and name in _avoided(view, [name])


def _avoided(view: View, names: Iterable[str]) -> dict[str, list[str]]:
    """Those of these destinations whose shards this worker leaves to others, with who may have them."""
    owners_of = {name: _owners(view, name) for name in names if name in view.members.quarantined}
    return {name: found for name, found in owners_of.items() if view.members.cookie not in found}


def is_unwelcome(view: View, shard: Shard, to: Member) -> bool:
    """Whether another worker would not take a shard: it drains, or has the shard's destination in quarantine."""
    if to.draining:
        return True
    name = view.quarantined.get(shard)
    return name is not None and name in to.quarantined and to.cookie not in _owners(view, name)


def welcome(view: View, given: Sequence[tuple[str, int]]) -> Sequence[Shard]:
    """The shards of this worker that all those would take which it is to give some."""
    others = [view.members.others[to] for to, _ in given]
    if not view.quarantined and not any(each.draining for each in others):
        return list(view.owned)
    return [shard for shard in view.owned if not any(is_unwelcome(view, shard, each) for each in others)]


def leaving(view: View, on_offer: Collection[Shard]) -> dict[Shard, str]:
    """Which shards to offer now since this worker avoids them, a few at a time, each to who has the fewest."""
    if view.members.draining:
        return {}
    places = _avoided(view, {*view.quarantined.values()})
    avoided = sorted(
        shard
        for shard, name in view.quarantined.items()
        if name in places and shard in view.owned and not view.owned[shard].is_leaving and shard not in on_offer
    )
    if not avoided:
        return {}
    held = counts(view.members.rows(view.owned.keys()))
    offers: dict[Shard, str] = {}
    for shard in avoided[: max(0, BUSY_AT_ONCE - len(on_offer))]:
        to = min(places[view.quarantined[shard]], key=lambda cookie: (held[cookie], cookie))
        held[to] += 1
        offers[shard] = to
    return offers


def quarantining_part(rows: Collection[Member]) -> float:
    """The part of all workers that quarantine a destination, of the one that most of them do; 0 where none does."""
    workers = Counter(name for each in rows for name in each.quarantined)
    return max(workers.values(), default=0) / max(1, len(rows))


def _owners(view: View, name: str) -> list[str]:
    """The workers that may have the shards of a destination. One that drains takes none."""
    has_it = {each.cookie: name in each.quarantined for each in view.members.active}
    if not view.members.draining:
        has_it[view.members.cookie] = name in view.members.quarantined
    return owners(has_it, 0) or owners(has_it, len(has_it))
