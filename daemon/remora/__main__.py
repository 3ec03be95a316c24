"""The `remora` command, and each worker's process, which starts without the parser of the command line."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

COLLECT_AFTER = 50_000
"""Python looks for garbage in cycles after this many new objects. A listing makes thousands, which are freed without
that, and the imports of a start make only what stays. After 700, Python's default, that took a tenth of the processor
time of a start, and of a busy worker."""

OTHER = "remora"
"""A distribution of the package index that has nothing to do with this one, and whose import package has the same name.

This one is called remorad there. Release 0.1.0, which was on no index, was called as the other one is.
"""


def main() -> None:
    """Run the command that the arguments name, unless files of another distribution lie among those of this one."""
    gc.set_threshold(COLLECT_AFTER)
    open_streams()
    match [each for each in sys.argv[1:] if each not in ("-v", "--verbose")]:
        case ["worker", channel] if channel.isdecimal():
            _work(int(channel))
        case ["run", *others] if not {"-h", "--help"}.intersection(others):
            from remora.process.program import start_anew

            start_anew()
    if folder := shared_folder(os.path.dirname(__file__)):
        sys.stderr.write(
            f"remora: the distribution {OTHER} is installed beside remorad, and both have files in {folder}: which are"
            " whose depends on what was installed last. Remove both and install one:"
            f" pip uninstall {OTHER} remorad && pip install remorad\n"
        )
        sys.exit(1)
    # Only now, as this may fail in a folder with the files of two.
    from remora import cli

    cli.main()


def open_streams() -> None:
    """Have all three standard streams, those that were closed before the start as if to /dev/null.

    A file that is opened later would get the number of a closed one, and what a library writes to standard error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the least number that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def shared_folder(package: str) -> str | None:
    """Returns the folder of this package where the other distribution has files in it, too; None where it has none."""
    if not any(
        name.startswith(f"{OTHER}-") and name.endswith(".dist-info") for name in os.listdir(os.path.dirname(package))
    ):
        return None  # to ask the installed packages takes each command 20 ms
    from importlib.metadata import distributions

    for each in distributions(name=OTHER):
        if any(os.path.dirname(str(file.locate())) == package for file in each.files or ()):
            return package
    return None


def _work(channel: int) -> NoReturn:
    """Work for the supervisor at the other end of the inherited socket, and end the process."""
    from remora.process.program import end_with

    def work() -> int:
        from remora.worker.process import run

        return run(channel)

    end_with(work)


if __name__ == "__main__":
    main()
