"""Shared logs."""
