"""The ingest server: events come in over HTTP and are answered when they are stored durably."""

from remora.servers.ingest.server import IngestServer, serve_ingest

__all__ = ["IngestServer", "serve_ingest"]
