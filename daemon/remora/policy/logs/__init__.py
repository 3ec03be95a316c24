"""The states of shared logs and of their epochs."""
