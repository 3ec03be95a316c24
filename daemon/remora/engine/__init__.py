"""The loops: the only place that decides when to await."""
