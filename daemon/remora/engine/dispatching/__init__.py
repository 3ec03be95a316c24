"""The parts of a dispatcher: where a shard's entries go, how it is doing, what it waits for, and whose turn it is."""
