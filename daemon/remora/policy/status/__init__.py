"""How things are, why, and what to do about it."""
