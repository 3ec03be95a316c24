"""Load by remora's own client of the sequencer: tasks that each await one position after the other.

    python -m devkit.bench.seqclient ADDRESS POOL NAME TASKS SECONDS

Prints one JSON object. Every position must be new; otherwise it ends with exit code 1, and there is no figure.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from remora.client import SequencerClient
from remora.model.log import LogName


async def main(address: str, pool: str, name: str, tasks: int, seconds: float) -> dict[str, float]:
    """How many positions came."""
    log, found = LogName(pool.encode(), name.encode()), []
    async with SequencerClient([address]) as client:
        await client.tail(log)
        began, cpu_began = time.monotonic(), time.process_time()
        ends = began + seconds

        async def ask() -> None:
            while True:  # once at least, however late it gets its turn
                found.append((await client.next(log)).position)
                if time.monotonic() >= ends:
                    return

        await asyncio.gather(*(ask() for _ in range(tasks)))
        took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    if len(set(found)) != len(found):
        sys.exit("seqclient: a position was handed out twice")
    return {"positions": len(found), "took_s": took_s, "client_cpu_s": cpu_s}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        _, address, pool, name, tasks, seconds = sys.argv
        print(json.dumps(runner.run(main(address, pool, name, int(tasks), float(seconds)))))
