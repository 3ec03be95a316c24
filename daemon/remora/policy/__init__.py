"""Pure decisions: values and `now` in, a decision out. No clock, no chance, no waiting."""
