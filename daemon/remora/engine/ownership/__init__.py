"""Which shards this worker owns. Start with `coordinator`; `policy.assignment` decides."""
