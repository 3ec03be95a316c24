"""One worker process under a supervisor: a store, the endpoints, the delivery of its shards, and the ingest server."""
