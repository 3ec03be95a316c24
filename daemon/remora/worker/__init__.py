"""One worker process under a supervisor: a store, the endpoints, the delivery of its shards, and the ingest server."""

from remora.worker.process import run

__all__ = ["run"]
