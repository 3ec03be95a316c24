"""The files of a store: opened, locked, written by one thread, with room ahead."""
