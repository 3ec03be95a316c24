"""The policies run in virtual time, from scripts: what would they do? No clock, and no chance but a given seed."""
