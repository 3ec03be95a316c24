"""How entries are read, sent, tried again, given up and removed."""
