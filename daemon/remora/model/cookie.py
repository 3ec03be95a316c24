"""What a worker writes into the locks that it holds: `remora/<host id>/<boot id>/<worker uuid>`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerCookie:
    """A worker process: on which host, in which of its boots, and which one."""

    host: str
    boot: str
    worker: str

    @classmethod
    def parse(cls, text: str) -> WorkerCookie | None:
        """The worker behind a cookie; None for everybody else's, those of claims by hand included."""
        match text.split("/"):
            case ["remora", host, boot, worker] if host and boot and worker:
                return cls(host, boot, worker)
        return None

    def __str__(self) -> str:
        return f"remora/{self.host}/{self.boot}/{self.worker}"
