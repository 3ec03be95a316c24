"""What has to be done before a shard's first record may be sent in a transaction.

1. The route is entered. That fences the shard's earlier owner: it commits nothing from then on.
2. Only then the position is read that was committed last.
3. The queue is trimmed up to it. The store checks the lock in that operation, also when there is nothing to trim.
4. Only when that succeeded may anything be sent.

The third step is what keeps two owners from fencing each other in turn. The worker that owned the lock between the
first step and the third is the rightful owner, and has read everything that was ever committed; one that takes the lock
later fences it, and reads what it committed. One that has lost the lock is refused, and lets the shard go. So the
order is the same at a take-over, after every failure, and after being fenced.
"""

from __future__ import annotations

from remora.engine.delivery.reader import Reader
from remora.engine.delivery.scope import DeliveryScope, WorkerContext
from remora.engine.delivery.shard_state import Redelivery
from remora.engine.lease import Lease
from remora.model.errors import EndpointMisconfigured
from remora.model.ledger import Cause, Tally
from remora.model.position import Position
from remora.ports.endpoint import ExactRoute


class Astray(EndpointMisconfigured):
    """The endpoint has a position for the shard that is none of its queue: an operator must act.

    A queue that was restored from a backup without a new incarnation looks like this.
    """


async def catch_up(scope: DeliveryScope, reader: Reader, route: ExactRoute) -> tuple[bytes, int]:
    """Steps 2 and 3, right after the route was entered; returns the queue's front and how many entries were removed.

    Raises StoreError, among them LeaseUncertain where the lock is not to be trusted, and Astray.
    """
    context, lease, redelivery = scope.context, scope.lease, scope.state.redelivery
    token = lease.token
    lease.require_trust()
    front = (await context.store.queue.read(token, b"", 1)).positions[0]
    upto, count = front, 0
    if route.reached is not None and _position(route.reached, lease) > _position(front, lease):
        upto, count = route.reached, await _count(context, lease, reader, front, route.reached)
    lease.require_trust()
    await context.store.queue.remove(token, upto, count, _tally(redelivery, front, upto, count))
    redelivery.drop_before(upto)
    return upto, count


def _position(marker: bytes, lease: Lease) -> Position:
    try:
        return Position.parse(marker.decode())
    except ValueError:
        raise Astray(f"the position kept for {lease.shard} cannot be read: {marker[:40]!r}") from None


async def _count(context: WorkerContext, lease: Lease, reader: Reader, front: bytes, reached: bytes) -> int:
    """How many entries stand before a position. They are listed, so that it is known to be one of this queue."""
    count, start, end = 0, front, _position(reached, lease)
    while True:
        limit = reader.flow().page_entries
        room = await reader.take_room(limit)
        try:
            lease.require_trust()
            page = await context.store.queue.read(lease.token, start, limit)
        finally:
            reader.held.hold(-room)
        if reached in page.positions:
            return count + page.positions.index(reached)
        start = page.positions[-1]
        count += len(page.entries)
        if not page.truncated or _position(start, lease) > end:
            raise Astray(
                f"the position {reached.decode()} kept for {lease.shard} is none of its queue, which goes up to"
                f" {start.decode()}: was it restored without a new incarnation?"
            )


def _tally(redelivery: Redelivery, front: bytes, upto: bytes, count: int) -> Tally:
    """What became of the entries between two positions: those with a dead letter, and the delivered ones."""
    total = Tally()
    if count:
        begin, end = Position.parse(front.decode()), Position.parse(upto.decode())
        for letter in redelivery.letters.values():
            if begin <= Position.parse(letter.position) < end and redelivery.is_stored(letter):
                total += Tally.of(Cause.of_letter(letter.cause))
    return total + Tally(delivered=count - total.total)
