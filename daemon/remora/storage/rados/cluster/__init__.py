"""The session with a cluster, and what all parts of the store do with it."""
