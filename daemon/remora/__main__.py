"""The `remora` command."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

__all__ = ["main"]

OTHER = "remora"
"""A distribution of the package index that has nothing to do with this one, and whose import package has the same name.

This one is called remorad there. Release 0.1.0, which was on no index, was called as the other one is.
"""


def main() -> None:
    """Run the command, unless files of another distribution lie among those of this one."""
    if folder := shared_folder(Path(__file__).parent):
        sys.stderr.write(
            f"remora: the distribution {OTHER} is installed beside remorad, and both have files in {folder}: which are"
            " whose depends on what was installed last. Remove both and install one:"
            f" pip uninstall {OTHER} remorad && pip install remorad\n"
        )
        sys.exit(1)
    # Only now, as this may fail in a folder with the files of two.
    from remora.cli import main as run

    run()


def shared_folder(package: Path) -> Path | None:
    """The folder of this package where the other distribution has files in it, too; None where it has none."""
    for each in distributions(name=OTHER):
        if any(Path(str(file.locate())).parent == package for file in each.files or ()):
            return package
    return None


if __name__ == "__main__":
    main()
