"""Selects the tests that a change may break, nearest first: `python -m devkit.selection [--why] [REF]`.

What changed is what `git diff REF` names, REF being HEAD unless given, and files that git does not know yet.

**Near** are test files that fail first when the change is wrong:

* test files that changed, and those that import a changed module, directly or through modules of tests, `devkit` and
  `scripts`, however many; a fixture that a test takes is an import, too;
* of a module of the daemon or of the pipeline also those that import it through modules of the same layer: at most two
  of them, or any number within its own folder. A chain that leaves the layer says little: nearly all tests import
  nearly all of `policy` and `codec` in the end. A module that is loaded by its name, or as an entry point, counts where
  the test has that name in quotes;
* tests that bear the module's name, `test_NAME.py` or `test_NAME_*.py`, in the folder of its layer;
* of `policy`, `codec`, `model`, `config` and `cli` only those of tests/unit and tests/engine, which need no server:
  they take seconds;
* of files that are no modules (data, configuration, documents, scripts, what is deployed): the tests, and modules of
  tests, that have the file's name or its folder in their text. The same for a Cython module.

**Suites** follow where ownership, delivery or storage changed: all of tests/engine and tests/contract. `SUITES` decides
that; the modules of `policy` that it names are those that may lose, repeat or reorder events. The tests that start the
program follow where a part changed that only a process runs (`PROCESSES`), and for no change of the command line.

**Everything** is selected where a pyproject.toml, setup.py or tests/conftest.py changed, and a folder of tests where
its conftest.py did. Changes in `codec` and `storage/rados` ask for both releases of Ceph (`--ceph-releases`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devkit.imports import Tree, is_test

HOPS = 2
"""This many modules of the changed one's layer may stand between it and a test that is near."""

EVERYTHING = frozenset(
    {"pyproject.toml", "pipeline/pyproject.toml", "setup.py", "tests/conftest.py", "devkit/testing/plugin.py"}
)

PURE = tuple(f"daemon/remora/{layer}/" for layer in ("policy", "codec", "model", "config", "cli"))
SERVERLESS = ("tests/unit/", "tests/engine/")

SUITES = (
    "daemon/remora/engine/ownership/",
    "daemon/remora/engine/delivery/",
    "daemon/remora/engine/dispatching/",
    "daemon/remora/engine/dispatcher.py",
    "daemon/remora/engine/lease.py",
    "daemon/remora/engine/sequencer.py",
    "daemon/remora/storage/",
    "daemon/remora/ports/",
    "daemon/remora/policy/delivery/acks.py",
    "daemon/remora/policy/ownership/assignment.py",
    "daemon/remora/policy/ownership/attempt.py",
    "daemon/remora/policy/ownership/not_owned.py",
    "daemon/remora/policy/ownership/lease.py",
    "daemon/remora/policy/ownership/lease.py",
    "daemon/remora/policy/ownership/membership.py",
    "daemon/remora/policy/ownership/not_owned.py",
    "daemon/remora/policy/logs/sequence.py",
    "daemon/remora/policy/ownership/view.py",
)
SUITE_FOLDERS = ("tests/engine/", "tests/contract/")

PROCESSES = tuple(
    f"daemon/remora/{part}"
    for part in ("supervisor/", "worker/", "process/", "sequencer/", "app.py", "endpoint_kinds.py", "__main__.py")
)
STARTS_THE_PROGRAM = re.compile(r"[\"']-m[\"'], [\"']remora[\"']")

BOTH_CEPH_RELEASES = ("daemon/remora/codec/", "daemon/remora/storage/rados/", "daemon/remora/storage/librados/")
RELEASES = "20 16"
NEWEST = "20"

RELEASED = ("daemon/", "pipeline/")
"""The folders of the distributions."""

CODE_FOLDERS = frozenset({".", "daemon", "daemon/remora", "pipeline", "pipeline/remora_pipeline", "tests", "scripts"})
"""Folders that too many texts name for that to say anything."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A test file, or a folder of them, with the chain or the rule that selects it."""

    file: str
    why: str
    is_near: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to run, nearest first."""

    selected: tuple[Selected, ...]
    needs_both_ceph_releases: bool

    @property
    def files(self) -> list[str]:
        """All of it."""
        return [each.file for each in self.selected]

    @property
    def near(self) -> list[str]:
        """Without the suites."""
        return [each.file for each in self.selected if each.is_near]


def select(root: Path, changed: Iterable[str]) -> Selection:
    """Select tests of the tree below `root` for changed files, which are named relative to it."""
    files = sorted(set(changed))
    both = any(file.startswith(BOTH_CEPH_RELEASES) for file in files)
    everything = next((file for file in files if file in EVERYTHING), None)
    if everything is not None:
        return Selection((Selected("tests", f"{everything} concerns all tests"),), both)
    tree = Tree(root, gone=frozenset(file for file in files if not (root / file).exists()))
    found: dict[str, Selected] = {}
    for selected in _near_and_suites(tree, files):
        if (root / selected.file).exists():
            found.setdefault(selected.file, selected)
    return Selection(tuple(found.values()), both)


def changed_files(root: Path, ref: str) -> list[str]:
    """What differs from a commit: in later commits, in the files, and files that git does not know."""
    named = [["diff", "--name-only", "--no-renames", "-z", ref], ["ls-files", "--others", "--exclude-standard", "-z"]]
    answers = [
        subprocess.run(["git", "-C", str(root), *each], capture_output=True, text=True, check=True).stdout
        for each in named
    ]
    return sorted({file for answer in answers for file in answer.split("\0") if file})


def _near_and_suites(tree: Tree, files: list[str]) -> Iterator[Selected]:
    by_distance = [(distance, selected) for file in files for distance, selected in _near(tree, file)]
    for _, selected in sorted(by_distance, key=lambda each: (each[0], each[1].file)):
        yield selected
    for file in files:
        yield from _suites(tree, file)


def _suites(tree: Tree, file: str) -> Iterator[Selected]:
    """The tests of what a file is part of."""
    if file.startswith(SUITES):
        for test in tree.tests:
            if test.startswith(SUITE_FOLDERS):
                yield Selected(test, f"the suite of what {file} is part of", is_near=False)
    if file.startswith(PROCESSES):
        for starter in tree.files:
            if starter.startswith(("tests/", "devkit/")) and STARTS_THE_PROGRAM.search(tree.text(starter)):
                for _, selected in _importing(tree, starter):
                    yield Selected(selected.file, f"only a process runs {file}; {selected.why}", is_near=False)


def _near(tree: Tree, file: str) -> Iterator[tuple[int, Selected]]:
    """The tests near to one changed file, with the length of the chain."""
    if is_test(file):
        yield 0, Selected(file, "it changed itself")
        return
    if file.startswith("tests/") and Path(file).name == "conftest.py":
        folder = Path(file).parent.as_posix() + "/"
        for test in tree.tests:
            if test.startswith(folder):
                yield 1, Selected(test, f"{file} concerns its folder")
        return
    if tree.is_code(file):
        yield from _importing(tree, file)
        yield from _named_for(tree, file)
    if not file.endswith(".py"):
        yield from _naming(tree, file)


def _importing(tree: Tree, changed: str) -> Iterator[tuple[int, Selected]]:
    """The tests that import a module, with chains as short as there are."""
    waiting = deque([_Chain((changed,))])
    seen: set[tuple[str, str]] = set()
    while waiting:
        chain = waiting.popleft()
        if (chain.end, chain.loaded_as) in seen:
            continue
        seen.add((chain.end, chain.loaded_as))
        if is_test(chain.end):
            if _may_be_near(chain, changed) and chain.is_named_in(tree.text(chain.end)):
                yield len(chain.files), Selected(chain.end, str(chain))
            continue
        longer = [chain.then(importer) for importer in sorted(tree.importers.get(chain.end, ()))]
        longer += [chain.then(loader, Path(chain.end).stem) for loader in sorted(tree.loaders.get(chain.end, ()))]
        waiting += [each for each in longer if each.stays_within_layer()]


def _may_be_near(chain: _Chain, changed: str) -> bool:
    return not changed.startswith(PURE) or chain.end.startswith(SERVERLESS)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A changed file, what imports it, what imports that, and so on."""

    files: tuple[str, ...]
    loaded_as: str = ""
    """The name by which a module of the chain is loaded, which the test must have in quotes."""

    @property
    def end(self) -> str:
        return self.files[-1]

    def then(self, file: str, loaded_as: str = "") -> _Chain:
        return _Chain((*self.files, file), loaded_as or self.loaded_as)

    def is_named_in(self, text: str) -> bool:
        return not self.loaded_as or re.search(rf"[\"']{re.escape(self.loaded_as)}\b", text) is not None

    def stays_within_layer(self) -> bool:
        """Whether all modules of what is released are of one layer, and few enough or of one folder."""
        released = [file for file in self.files if file.startswith(RELEASED)]
        between = [file for file in released[1:] if Path(file).parent != Path(self.files[0]).parent]
        return len({_layer(file) for file in released}) <= 1 and (len(released) - 1 <= HOPS or not between)

    def __str__(self) -> str:
        return " <- ".join(self.files)


def _layer(file: str) -> str:
    """The layer of a module: the commands of the daemon and of the pipeline are one."""
    return "/".join(Path(file).parts[2:3])


def _named_for(tree: Tree, file: str) -> Iterator[tuple[int, Selected]]:
    """The tests that bear the module's name, in the folder of its layer where there is one."""
    name = Path(file).stem.strip("_")
    if not file.startswith(RELEASED) or not name or name == "init":
        return
    folders = {f"tests/unit/{part}" for part in Path(file).parts[2:-1]}
    for test in tree.tests:
        stem = Path(test).stem.removeprefix("test_")
        is_its_folder = Path(test).parent.as_posix() in folders
        is_named = stem == name or stem.startswith(f"{name}_") or (not is_its_folder and stem.endswith(f"_{name}"))
        if is_named and (is_its_folder or stem.startswith(_family(file))):
            yield 3, Selected(test, f"it bears the name of {file}")


def _family(file: str) -> str:
    """How tests outside of the layer's folder begin that are for a module of it, `test_cli_apply.py` for example."""
    return f"{Path(file).parent.name}_" if file.startswith(RELEASED) and _layer(file) == "cli" else "\0"


def _naming(tree: Tree, file: str) -> Iterator[tuple[int, Selected]]:
    """The tests whose text, or the text of what they import, names a file or its folder."""
    needle = _needle(file)
    for each in tree.files:
        if not each.startswith(("tests/", "devkit/")) or not each.endswith(".py"):
            continue
        named = needle.search(tree.text(each))
        if named is None:
            continue
        if is_test(each):
            yield 2, Selected(each, f"its text names {named[0].strip()!r} for {file}")
        else:
            for distance, selected in _importing(tree, each):
                why = f"{each} names {named[0].strip()!r} for {file}; {selected.why}"
                yield distance + 2, Selected(selected.file, why)


def _needle(file: str) -> re.Pattern[str]:
    """What a text has to say to name a file: its name, or one of the folders that it lies in, as a path or quoted."""
    path = Path(file)
    name = re.escape(path.name)
    # Programs without a suffix have names such as `test`: only a path to it, or a script beside it, names one.
    names = [rf"\b{name}\b" if path.suffix else rf"(?:\b{path.parent.name}/|SCRIPTS / \"|with_name\(\"){name}\b"]
    for folder in path.parents:
        if folder.as_posix() in CODE_FOLDERS:
            continue
        whole = re.escape(folder.as_posix())
        shorter = re.escape(folder.as_posix().removeprefix("tests/").removeprefix("daemon/").removeprefix("pipeline/"))
        names.append(rf"[\"'/](?:{whole}|{shorter})(?:[\"']|/[\"'*{{])")
    return re.compile("|".join(names))


def main(arguments: list[str]) -> int:
    """Print what to run."""
    parser = argparse.ArgumentParser(prog="python -m devkit.selection", description="Select the tests near to a change")
    parser.add_argument("ref", nargs="?", default="HEAD", metavar="REF", help="what the tree is compared with (HEAD)")
    parser.add_argument("--why", action="store_true", help="say beside each file what selects it")
    parser.add_argument("--near", action="store_true", help="leave out suites that are selected as such")
    parser.add_argument(
        "--ceph-releases", action="store_true", help="print the releases of Ceph that the tests need, and no file"
    )
    options = parser.parse_args(arguments)
    root = Path(__file__).parents[1]
    try:
        selection = select(root, changed_files(root, options.ref))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(error.stderr)
        return 2
    if options.ceph_releases:
        sys.stdout.write(f"{RELEASES if selection.needs_both_ceph_releases else NEWEST}\n")
        return 0
    shown = [each for each in selection.selected if each.is_near or not options.near]
    for each in shown:
        sys.stdout.write(f"{each.file}: {each.why}\n" if options.why else f"{each.file}\n")
    if not shown:
        sys.stderr.write("nothing that a test imports or names has changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
