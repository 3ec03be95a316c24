"""What scripts/chaos is made of. Start with `rounds.py`; what counts as wrong stands in `verdict.py`."""
