"""Which queues remora delivers, and why it leaves the others alone."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.shard import Origin
from remora.model.topic import Topic


@dataclass(frozen=True, slots=True)
class Schemes:
    """URI schemes of endpoints: those that are `built_in`, and those that are taken over `from_radosgw`.

    The second are the operator's choice, because a release that knows more schemes must not take queues that were left
    to radosgw on purpose; None stands for all that are built in. In remora's own topics every built-in scheme works.
    """

    built_in: frozenset[str]
    from_radosgw: frozenset[str] | None = None


def reason_to_leave(topic: Topic | None, schemes: Schemes) -> str | None:
    """Why a queue stays with its gateway; None when it is ours to deliver."""
    if topic is None:
        return "its topic is unknown: no readable metadata, and no entry that names an endpoint"
    if not topic.target.uri:
        return "its topic has no push-endpoint"
    scheme = topic.target.scheme
    if scheme not in schemes.built_in:
        return f"{scheme or 'schemeless'} endpoints stay with radosgw"
    if topic.origin is Origin.RADOSGW and schemes.from_radosgw is not None and scheme not in schemes.from_radosgw:
        return f"{scheme} endpoints stay with radosgw: {scheme} is not among ownership.schemes"
    return None
