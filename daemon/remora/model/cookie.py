"""The cookie that a worker writes into its locks: `remora/<host id>/<boot id>/<worker uuid>`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerCookie:
    """A worker process: its host, the host's boot and the worker's id."""

    host: str
    boot: str
    worker: str

    @classmethod
    def parse(cls, text: str) -> WorkerCookie | None:
        """The worker of a cookie; None for every other cookie, such as a gateway's or that of a claim by hand."""
        match text.split("/"):
            case ["remora", host, boot, worker] if host and boot and worker:
                return cls(host, boot, worker)
        return None

    def __str__(self) -> str:
        return f"remora/{self.host}/{self.boot}/{self.worker}"
