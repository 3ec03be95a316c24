"""Which worker owns which shard, and what each knows of the others."""
