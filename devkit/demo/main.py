"""Starts the demo of a store. Called by scripts/demo, which has looked at the options."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from devkit.demo.show import run_to_the_end


def main() -> int:
    """Run it; the exit code."""
    options = argparse.ArgumentParser()
    options.add_argument("store", choices=["sqlite", "rados"])
    options.add_argument("--release", type=int, default=16)
    options.add_argument("--trace", type=Path)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--keep", action="store_true")
    given = options.parse_args()
    if given.store == "rados":
        from devkit.demo.radosgw import Demo as RadosgwDemo  # needs Debian's binding, which a host without Ceph lacks

        return asyncio.run(run_to_the_end(RadosgwDemo(given.release, given.keep).run()))
    from devkit.demo.embedded import Demo

    return asyncio.run(run_to_the_end(Demo(given.trace, given.seconds, given.keep).run()))


if __name__ == "__main__":
    sys.exit(main())
