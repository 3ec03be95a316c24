"""Queues: locks, entries, dead letters, ledgers."""
