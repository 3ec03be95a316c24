"""Starts the demo of a store. Called by scripts/demo with the store's kind, Ceph's release, and whether to keep all."""

from __future__ import annotations

import asyncio
import sys

from demo_show import run_to_the_end


def main(store: str, release: int, keep: bool) -> int:
    """Run it; the exit code."""
    if store == "rados":
        from demo_radosgw import Demo as RadosgwDemo  # needs Debian's binding, which a host without Ceph lacks

        return asyncio.run(run_to_the_end(RadosgwDemo(release, keep).run()))
    from demo_embedded import Demo

    return asyncio.run(run_to_the_end(Demo(keep).run()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "yes"))
