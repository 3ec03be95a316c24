"""What a worker has its store do beside deliveries, in the scope of the store."""

from __future__ import annotations

from remora.engine.admission.gate import Gate
from remora.model.traffic import TrafficClass


class WorkerTraffic:
    """Commits take credit by force. Looks take what there is of theirs, and never wait: by them full queues are known.

    A debt for looks would grow on a host with many queues, and hold back for ever what asks for credit of their class.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def committed(self, nbytes: int) -> None:
        """A commit of events sends so many bytes."""
        self._gate.use_store(TrafficClass.RELIEF.priority, nbytes)

    def looked(self, nbytes: int) -> None:
        """A look at a queue or at a list has read so many bytes."""
        if self._gate.use_store(TrafficClass.IDLE.priority, 0):
            self._gate.use_store(TrafficClass.IDLE.priority, nbytes)

    async def walked(self, nbytes: int) -> None:
        """A worker walks over the first entries of a queue at most, and its own letters: it goes on."""
        self.looked(nbytes)

    async def redriven(self, nbytes: int) -> None:
        """Commands re-drive, and no worker: it goes on."""
        self._gate.use_store(TrafficClass.REPLAY.priority, nbytes)
