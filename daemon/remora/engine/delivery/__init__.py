"""One shard on its way: what is read, sent, given up and removed."""
