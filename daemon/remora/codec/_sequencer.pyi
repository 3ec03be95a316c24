"""What `_sequencer.pyx` holds when it was built."""

from remora.codec import sequencer

class Core(sequencer.Core): ...
