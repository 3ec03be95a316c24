"""Of what use a host is now, for those who ask before they send something to it, or before they replace the next one.

Three questions. Whether it is ready at all: its workers run and reach their store, which has room, and it does not
drain. Whether it takes events in. Whether it delivers, which a full disk does not end: a topic whose own endpoint fails
is no answer to that, since another host would fare no better; it has a metric and a line in the status. A part of the
store that is lost, a directory or a file, costs its own topics only: each answer names it, and none is no for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remora.model.health import Health, Use, Waiting

STALLED_AFTER_S = 15.0
"""Entries that wait for longer without any progress say something of the host, or of what it delivers to."""

MOST_REASONS = 10


@dataclass(frozen=True, slots=True)
class HostReadiness:
    """What a supervisor knows: whether all workers were there once, whether it ends (`stops`) or gives its queues away
    (`drains`), and what each worker says of itself; None for one that says nothing in time."""

    has_started: bool
    workers: Sequence[Use | None]
    stops: bool = False
    drains: bool = False


def ready(host: HostReadiness) -> Health:
    """Whether the host is of use: it is to be, and all its workers work and reach their store, which has room."""
    return _health(host, [*_unready(host, drains=host.drains), *_full(host)])


def ready_to_ingest(host: HostReadiness) -> Health:
    """Whether it takes events in. A host that drains gives its queues away, and takes events in nevertheless."""
    reasons = [*_unready(host, drains=False), *_full(host)]
    known = [each for each in host.workers if each is not None and each.has_started]
    if known and not any(each.takes_events for each in known):
        reasons.append("ingest.listen is empty: no events are taken in")
    return _health(host, reasons)


def ready_to_deliver(host: HostReadiness) -> Health:
    """Whether it delivers, or would if anything waited."""
    return _health(host, [*_unready(host, drains=host.drains), *_stall(host)])


def _unready(host: HostReadiness, *, drains: bool) -> Iterator[str]:
    if host.stops or drains:
        yield "draining"
    if not host.has_started:
        yield "starting"
    elif not host.workers:
        yield "no worker runs"
    for each in host.workers:
        if each is None:
            yield "a worker is silent"
        else:
            if each.store:
                yield f"store: {each.store}"
            if not each.has_started:
                yield "starting"


def _full(host: HostReadiness) -> Iterator[str]:
    for each in host.workers:
        if each is not None and each.full:
            yield f"store: {each.full}"


def _stall(host: HostReadiness) -> Iterator[str]:
    """Why it is the host's affair, or may be, that entries wait and nothing gets on.

    Either something waits that no failure of its endpoint explains. Or several destinations cannot be reached and none
    works or as much as answers: then it may be this host that is cut off.
    """
    known = [each for each in host.workers if each is not None]
    waiting = [waits for each in known for waits in each.waiting]
    age_s = min((each.progress_age_s for each in waiting), default=0.0)
    if age_s <= STALLED_AFTER_S:
        return
    unexplained = [each for each in waiting if each.cause == ""]
    away = {each.destination for each in waiting if each.cause == "away"}
    answers = any(each.has_way for each in known) or any(each.cause == "refused" for each in waiting)
    if unexplained:
        yield f"nothing was delivered for {age_s:.0f} s although entries wait"
        yield from _reasons(unexplained)
    elif len(away) > 1 and not answers:
        yield f"nothing was delivered for {age_s:.0f} s: no destination that entries wait for can be reached"
        yield from _reasons(waiting)


def _reasons(waiting: Sequence[Waiting]) -> list[str]:
    return sorted({reason for each in waiting for reason in each.reasons})[:MOST_REASONS]


def _health(host: HostReadiness, reasons: Sequence[str]) -> Health:
    """No where there are reasons. Behind them is what is lost, unless the store as a whole is one of them."""
    lost = [f"store: {why}" for each in host.workers if each and not each.store for why in each.lost[:MOST_REASONS]]
    return Health(ok=not reasons, reasons=tuple(dict.fromkeys([*reasons, *lost])))
