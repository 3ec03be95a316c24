"""Adds the licences that a list of packages lacks (CycloneDX, JSON); scripts/build runs it in the packages' own Python.

cyclonedx-py knows licences by their SPDX name and by a classifier. What a package calls its licence in its own words,
in the field License of its metadata, it leaves out.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import metadata
from pathlib import Path


def main() -> None:
    """Complete `FILE`; fails where a package names no licence at all."""
    path = Path(sys.argv[1])
    bill = json.loads(path.read_text())
    for each in bill["components"]:
        if not each.get("licenses"):
            name = " ".join(metadata(each["name"]).get_all("License", []))
            if not name:
                sys.exit(f"{each['name']} names no licence")
            each["licenses"] = [{"license": {"acknowledgement": "declared", "name": name}}]
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
