"""Which tests a change selects, and what is said about it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devkit.selection import BOTH_CEPH_RELEASES, EVERYTHING, PROCESSES, SUITES, Selection, changed_files, select

ROOT = Path(__file__).parents[2]

TREE = {
    "daemon/remora/__init__.py": "",
    "daemon/remora/policy/__init__.py": "",
    "daemon/remora/policy/delivery/retry.py": "",
    "daemon/remora/policy/delivery/acks.py": "from remora.policy.delivery.retry import Failure",
    "daemon/remora/policy/far.py": "from remora.policy.delivery import acks",
    "daemon/remora/codec/s3.py": "",
    "daemon/remora/codec/_fast.pyx": "",
    "daemon/remora/codec/speedups.py": "from remora.codec._fast import encode",
    "daemon/remora/engine/delivery/session.py": "from remora.policy.delivery.acks import Window",
    "daemon/remora/engine/worker.py": "from remora.engine.delivery.session import Session",
    "daemon/remora/cli/__init__.py": "from importlib import import_module\nCOMMANDS = {'dlq': 'dlq:dlq', 'log': ''}\n"
    "OFFERED = 'remora.commands'\nentry_points(group=OFFERED)\n"
    "import_module(f'remora.cli.{COMMANDS}')",
    "daemon/remora/cli/dlq.py": "from remora.cli.rows import table",
    "daemon/remora/cli/log.py": "",
    "daemon/remora/cli/rows.py": "",
    "daemon/remora/supervisor/child.py": "",
    "pipeline/pyproject.toml": "[project.entry-points.'remora.commands']\n"
    "replay = 'remora_pipeline.cli.replay:replay'\n"
    "[project.entry-points.other]\nno = 'remora_pipeline.cli.no:no'\n",
    "pipeline/remora_pipeline/cli/replay.py": "from remora_pipeline.replay import layout",
    "pipeline/remora_pipeline/cli/no.py": "",
    "pipeline/remora_pipeline/replay/layout.py": "",
    "pipeline/remora_pipeline/replay/report.py": "from remora_pipeline.replay import layout",
    "tests/replay/test_layout.py": "from remora_pipeline.replay import report",
    "tests/replay/test_replay_cli.py": "from remora.cli import main\nmain('replay')",
    "daemon/remora/storage/rados/queues/locks.py": "",
    "tests/conftest.py": "",
    "devkit/clusters/kafka.py": "import pytest\n@pytest.fixture\ndef kafka(folder): ...",
    "tests/support/folders.py": "import pytest\n@pytest.fixture\ndef folder(): ...",
    "devkit/processes/daemon.py": "REMORA = (executable, '-m', 'remora')",
    "tests/engine/conftest.py": "",
    "tests/engine/fakes.py": "from remora.engine.worker import Worker",
    "tests/engine/test_delivery.py": "from engine.fakes import Broker",
    "tests/contract/conftest.py": "from devkit.clusters.kafka import kafka\nfrom support.folders import folder",
    "tests/contract/test_kafka.py": "def test_it(kafka): ...",
    "tests/contract/test_plain.py": "from remora.policy.delivery.acks import Window\ndef test_it(): ...",
    "tests/acceptance/test_run.py": "from devkit.processes.daemon import REMORA\nCONFIG = ROOT / 'config/remora.toml'",
    "tests/acceptance/test_chaos.py": "CHAOS = 'scripts/chaos'",
    "tests/unit/policy/test_acks.py": "from remora.policy.delivery.acks import Window",
    "tests/unit/policy/test_far.py": "from remora.policy.far import x",
    "tests/unit/policy/test_retry_pauses.py": "",
    "tests/unit/codec/test_s3.py": "from remora.codec import s3",
    "tests/unit/codec/test_fast.py": "from remora.codec.speedups import encode",
    "tests/unit/test_cli_dlq.py": "from remora.cli import main\nmain('dlq')",
    "tests/unit/test_cli_log.py": "from remora.cli import main\nmain('log')",
    "tests/unit/test_docs.py": "DOCUMENTS = (ROOT / 'docs').glob('*.md')",
    "tests/unit/test_cases.py": "DATA = 'data/cases.json'",
    "tests/data/cases.json": "{}",
    "scripts/chaos": "#!/usr/bin/env python3\nfrom devkit.chaos.plan import draw",
    "devkit/chaos/plan.py": "",
    "scripts/dev/running": "#!/bin/bash",
    "docs/ingest.md": "",
    "config/remora.toml": "",
    "pyproject.toml": "",
    "LICENSE": "",
}  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with a part of each kind."""
    write(tmp_path, TREE)
    return tmp_path


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def near(tree: Path, *changed: str) -> set[str]:
    return {Path(file).stem for file in select(tree, changed).near}


def why(selection: Selection, file: str) -> str:
    return next(each.why for each in selection.selected if each.file == file)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param("tests/unit/test_docs.py", {"test_docs"}, id="a test"),
        pytest.param(
            "daemon/remora/policy/delivery/acks.py", {"test_acks", "test_far"}, id="direct and within the layer"
        ),
        pytest.param(
            "daemon/remora/policy/delivery/retry.py", {"test_acks", "test_far", "test_retry_pauses"}, id="by name"
        ),
        pytest.param("daemon/remora/engine/delivery/session.py", {"test_delivery"}, id="through modules of tests"),
        pytest.param("daemon/remora/codec/_fast.pyx", {"test_fast"}, id="Cython"),
        pytest.param("daemon/remora/cli/dlq.py", {"test_cli_dlq"}, id="loaded by its name"),
        pytest.param("daemon/remora/cli/rows.py", {"test_cli_dlq"}, id="imported by what is loaded by its name"),
        pytest.param("pipeline/remora_pipeline/cli/replay.py", {"test_replay_cli"}, id="offered as an entry point"),
        pytest.param("pipeline/remora_pipeline/cli/no.py", set[str](), id="offered to others"),
        pytest.param("pipeline/remora_pipeline/replay/layout.py", {"test_layout"}, id="within a layer of the pipeline"),
        pytest.param("devkit/clusters/kafka.py", {"test_kafka"}, id="a fixture of conftest.py"),
        pytest.param("tests/support/folders.py", {"test_kafka"}, id="a fixture that a fixture takes"),
        pytest.param("tests/contract/conftest.py", {"test_kafka", "test_plain"}, id="conftest.py of a folder"),
        pytest.param("tests/data/cases.json", {"test_cases"}, id="data"),
        pytest.param("docs/ingest.md", {"test_docs"}, id="a document by its folder"),
        pytest.param("config/remora.toml", {"test_run"}, id="configuration by its path"),
        pytest.param("scripts/chaos", {"test_chaos"}, id="a program"),
        pytest.param("devkit/chaos/plan.py", {"test_chaos"}, id="what a program imports"),
        pytest.param("LICENSE", set[str](), id="nothing names it"),
    ],
)
def test_what_is_near(tree: Path, changed: str, expected: set[str]) -> None:
    """Each kind of file selects the tests that import or name it, and those alone."""
    assert near(tree, changed) == expected


def test_a_deleted_module_selects_those_that_import_it_still(tree: Path) -> None:
    """The importers of a file that is gone are selected; a test file that is gone is not."""
    (tree / "daemon/remora/policy/delivery/acks.py").unlink()
    (tree / "tests/unit/policy/test_far.py").unlink()

    assert near(tree, "daemon/remora/policy/delivery/acks.py", "tests/unit/policy/test_far.py") == {"test_acks"}


def test_suites_follow_where_ownership_delivery_or_storage_changed(tree: Path) -> None:
    """All of the engine's and the contract's tests come behind the near ones; other policies select none of them."""
    acks = select(tree, ["daemon/remora/policy/delivery/acks.py"])
    locks = select(tree, ["daemon/remora/storage/rados/queues/locks.py"])

    suites = ["tests/contract/test_kafka.py", "tests/contract/test_plain.py", "tests/engine/test_delivery.py"]
    assert acks.files == [*acks.near, *suites]
    assert locks.files == suites
    assert select(tree, ["daemon/remora/policy/delivery/retry.py"]).files == [
        f"tests/unit/policy/{name}.py" for name in ("test_acks", "test_retry_pauses", "test_far")
    ]


def test_what_only_a_process_runs_selects_the_tests_that_start_one(tree: Path) -> None:
    """A change of the supervisor selects those that run the program, a change of a policy does not."""
    assert select(tree, ["daemon/remora/supervisor/child.py"]).files == ["tests/acceptance/test_run.py"]


@pytest.mark.parametrize("changed", sorted(EVERYTHING))
def test_everything_is_selected_for_what_concerns_all_tests(tree: Path, changed: str) -> None:
    """The project's settings and the fixtures of all tests select the folder of all tests."""
    assert select(tree, [changed, "docs/ingest.md"]).files == ["tests"]


@pytest.mark.parametrize(
    ("changed", "both"),
    [
        ("codec/s3.py", True),
        ("storage/rados/queues/locks.py", True),
        ("storage/sqlite/queues/locks.py", False),
        ("app.py", False),
    ],
)
def test_both_releases_of_ceph_are_asked_for(tree: Path, changed: str, both: bool) -> None:
    """Bytes and the store on Ceph are tried with both releases."""
    assert select(tree, [f"daemon/remora/{changed}"]).needs_both_ceph_releases is both


def test_chains_say_why(tree: Path) -> None:
    """A selected file has the shortest chain of imports from the changed one, or the rule."""
    selection = select(tree, ["daemon/remora/policy/delivery/retry.py", "docs/ingest.md"])

    assert why(selection, "tests/unit/policy/test_acks.py") == " <- ".join(
        [
            "daemon/remora/policy/delivery/retry.py",
            "daemon/remora/policy/delivery/acks.py",
            "tests/unit/policy/test_acks.py",
        ]
    )
    assert why(selection, "tests/unit/policy/test_retry_pauses.py").startswith("it bears the name of")
    assert why(selection, "tests/unit/test_docs.py").startswith("its text names")


def test_changes_are_those_since_a_commit_and_in_the_files(tmp_path: Path) -> None:
    """Commits since the reference, what is not committed, and files that git does not know are changes."""
    git(tmp_path, "init", "--quiet")
    for name in ("old", "committed", "changed"):
        write(tmp_path, {name: ""})
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", name)
    write(tmp_path, {"changed": "else", "unknown": "", ".gitignore": "ignored", "ignored": ""})

    assert changed_files(tmp_path, "HEAD") == [".gitignore", "changed", "unknown"]
    assert changed_files(tmp_path, "HEAD~2") == [".gitignore", "changed", "committed", "unknown"]


def test_the_rules_name_what_there_is() -> None:
    """Each file and folder that a rule names exists, and selects tests that are there."""
    assert [
        each for each in (*EVERYTHING, *SUITES, *PROCESSES, *BOTH_CEPH_RELEASES) if not (ROOT / each).exists()
    ] == []


def test_the_tree_itself() -> None:
    """A policy of delivery selects its unit tests, then the suites; a document selects the tests of documents."""
    acks = select(ROOT, ["daemon/remora/policy/delivery/acks.py"])
    documents = select(ROOT, ["docs/ingest.md", "docs/guarantees.md"])

    assert "tests/unit/policy/test_acks.py" in acks.near
    assert {"tests/engine/test_delivery.py", "tests/contract/test_store_queue.py"} <= set(acks.files)
    assert len(acks.near) < 20
    assert "tests/unit/test_docs.py" in documents.near
    assert not any(file.startswith("tests/engine/") for file in documents.files)


def test_nothing_selected_is_said_and_no_failure(tree: Path) -> None:
    """Without a change the command prints no file, says so beside that, and ends with 0; with --why it names chains."""
    write(tree, {f"devkit/{each}.py": (ROOT / f"devkit/{each}.py").read_text() for each in ("imports", "selection")})
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "tree")

    nothing = ask(tree)
    write(tree, {"daemon/remora/codec/s3.py": "else"})
    something = ask(tree, "--why")

    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing" in nothing.stderr
    assert something.stdout == "tests/unit/codec/test_s3.py: daemon/remora/codec/s3.py <- tests/unit/codec/test_s3.py\n"
    assert ask(tree, "--ceph-releases").stdout == "20 16\n"
    assert ask(tree, "no-such-commit").returncode == 2


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def ask(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "devkit.selection", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
