"""Who may read and hold how much, and who waits for it."""
