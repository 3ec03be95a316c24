"""Which logs a sequencer serves, and with which epochs: registration, locks, bounds."""
