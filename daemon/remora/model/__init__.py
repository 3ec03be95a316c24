"""Frozen values and errors that every layer shares; nothing here computes or waits."""
