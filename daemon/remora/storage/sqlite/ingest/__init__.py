"""How events enter the queues of one topic, or of several: all or none, and once."""
