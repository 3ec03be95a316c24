"""Print the software bill of materials of an image: image_sbom.py FOLDER VERSION, where FOLDER is its root.

CycloneDX 1.6, with the packages of Debian and those of Python, sorted, without a serial number or a time. cyclonedx-py,
which lists the environment of the Debian package, knows Python's packages alone.
"""

from __future__ import annotations

import json
import sys
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from urllib.parse import quote


def debian_components(root: Path) -> list[dict[str, str]]:
    """The installed packages in dpkg's status."""
    entries = (root / "var/lib/dpkg/status").read_text().strip().split("\n\n")
    packages = [each for each in map(HeaderParser().parsestr, entries) if each["Status"].endswith(" installed")]
    return [
        component("deb/debian", each["Package"], each["Version"], f"?arch={each['Architecture']}") for each in packages
    ]


def python_components(root: Path) -> list[dict[str, str]]:
    """The packages in remora's environment, itself included."""
    (folder,) = (root / "opt/remora/lib").glob("python3.*/site-packages")
    return [component("pypi", each.name, each.version) for each in metadata.distributions(path=[str(folder)])]


def component(kind: str, name: str, version: str, qualifier: str = "") -> dict[str, str]:
    """A component of CycloneDX with its package URL."""
    url = f"pkg:{kind}/{name.lower().replace('+', '%2B')}@{quote(version, safe='')}{qualifier}"
    return {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url}


def main(root: Path, version: str) -> None:
    """Print the bill of the image at a folder."""
    components = sorted(debian_components(root) + python_components(root), key=lambda each: each["purl"])
    about = {"type": "container", "name": "remora", "version": version, "bom-ref": f"remora-image@{version}"}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": about}}
    sys.stdout.write(json.dumps({**bill, "components": components}, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
