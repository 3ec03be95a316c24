"""Queues, radosgw's and remora's own: locks, entries, dead letters, ledgers, runs of spilled entries."""
