"""What is kept of the queues that went with their layouts: object `remora.former.<topic's id>`, a key for each queue.

A queue's ledger is written before the queue is removed, when it is final; so a repeat writes the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from remora.model.errors import StoreError
from remora.model.ledger import FormerQueue, Tally
from remora.model.topic import number_of
from remora.storage.librados import WriteOp
from remora.storage.rados.omap import all_values
from remora.storage.rados.part import RadosPart
from remora.storage.rados.refusals import OWN, MissingError

_OBJECT = "remora.former."


class _StoredFormerQueue(msgspec.Struct, frozen=True):
    """A queue that went, as it is stored. Fields may be added."""

    generation: int
    incarnation: str
    end: str
    committed: int
    removed: dict[str, int]


_decode = msgspec.msgpack.Decoder(_StoredFormerQueue).decode


class FormerQueues(RadosPart):
    """Keeps and reads them, and forgets them with their topic."""

    async def keep(self, topic_id: str, queues: Sequence[FormerQueue]) -> None:
        """Keep what is known of queues that are about to go."""
        values = {}
        for each in queues:
            removed = {str(cause): count for cause, count in each.removed.items() if count}
            stored = _StoredFormerQueue(each.generation, each.incarnation, each.end, each.committed, removed)
            values[each.name] = msgspec.msgpack.encode(stored)
        await self._run(WriteOp().create(exclusive=False).set_omap(values), topic_id)

    async def kept(self, topic_id: str) -> list[FormerQueue]:
        """All queues of a topic that went, by generation and number."""
        found = await all_values(self._connection, _OBJECT + topic_id, self._own)
        queues = []
        try:
            for name, raw in found.items():
                each = _decode(raw)
                ended = each.generation, each.incarnation, each.end, each.committed
                queues.append(FormerQueue(name, *ended, Tally(**each.removed)))
        except (msgspec.MsgspecError, TypeError) as exc:
            raise StoreError(f"what is kept of former queues cannot be read: {exc}") from exc
        return sorted(queues, key=lambda each: (each.generation, number_of(each.name)))

    async def forget(self, topic_id: str) -> None:
        """Forget them all, as their topic goes; no error where there are none."""
        with contextlib.suppress(MissingError):
            await self._run(WriteOp().assert_exists().remove(), topic_id)

    async def _run(self, operation: WriteOp, topic_id: str) -> None:
        oid = _OBJECT + topic_id
        await self._connection.run(operation, oid, f"writing to {oid}", OWN, self._own)
