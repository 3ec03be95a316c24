"""The process of `remora sequencer`."""
