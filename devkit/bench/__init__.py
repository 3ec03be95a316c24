"""What scripts/bench is made of. Start with `drain.py`."""
