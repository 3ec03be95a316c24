"""Print the software bill of materials of an image: image_sbom.py FOLDER VERSION, where FOLDER is its root.

CycloneDX 1.6, with the packages of Debian and those of Python and their licences, sorted, without a serial number or a
time. cyclonedx-py, which lists the environment of the Debian package, knows Python's packages alone.

A package of Debian says its licences in its file `copyright`, most in the form that machines read
(https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/), the others in prose that names texts of
/usr/share/common-licenses. One field of the form is all that is needed of it, so python-debian is not.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]


def debian_components(root: Path) -> list[Component]:
    """The installed packages in dpkg's status."""
    entries = (root / "var/lib/dpkg/status").read_text().strip().split("\n\n")
    packages = [each for each in map(HeaderParser().parsestr, entries) if each["Status"].endswith(" installed")]
    return [
        component("deb/debian", each["Package"], each["Version"], f"?arch={each['Architecture']}")
        | named(debian_licences(root / "usr/share/doc" / each["Package"] / "copyright"))
        for each in packages
    ]


def debian_licences(copyright_file: Path) -> set[str]:
    """The licences that a package of Debian names, or whose common texts it refers to; else where they stand."""
    text = copyright_file.read_text(errors="replace")
    if text.lstrip().lower().startswith("format"):
        found = {" ".join(each.split()) for each in re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)}
    else:
        found = {each.rstrip(".") for each in re.findall(r"/usr/share/common-licenses/([\w.+-]+)", text)}
    return found or {f"as in /usr/share/doc/{copyright_file.parent.name}/copyright"}


def python_components(root: Path) -> list[Component]:
    """The packages in remora's environment, itself included."""
    (folder,) = (root / "opt/remora/lib").glob("python3.*/site-packages")
    return [
        component("pypi", each.name, each.version) | python_licences(each.name, each.metadata)
        for each in metadata.distributions(path=[str(folder)])
    ]


def python_licences(name: str, about: metadata.PackageMetadata) -> Component:
    """The licence that a package of Python declares, in SPDX or its own words; fails where there is none."""
    for expression in about.get_all("License-Expression", []):
        return {"licenses": [{"acknowledgement": "declared", "expression": expression}]}
    kinds = [each for each in about.get_all("Classifier", []) if each.startswith("License ::")]
    words = [each.partition("\n")[0] for each in about.get_all("License", [])]
    found = {each.rpartition(" :: ")[2] for each in kinds} or {*words} - {"", "UNKNOWN"}
    if not found:
        sys.exit(f"{name} names no licence")
    return named(found)


def named(licences: Iterable[str]) -> Component:
    """The member of a component that says its licences by their names."""
    return {"licenses": [{"license": {"acknowledgement": "declared", "name": each}} for each in sorted(licences)]}


def component(kind: str, name: str, version: str, qualifier: str = "") -> Component:
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
