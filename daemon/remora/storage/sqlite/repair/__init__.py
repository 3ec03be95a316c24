"""Whole files: checked, salvaged, copied and restored."""
