"""The workflows of GitHub Actions are valid, and run the commands that people run."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from devkit.paths import ROOT, SCRIPTS
from devkit.processes.programs import program

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    """All steps of all jobs."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.full("actionlint is built from its Go module")
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.name)
def test_a_workflow_is_valid(workflow: Path) -> None:
    """actionlint finds nothing to complain about."""
    program("go", "golang")
    tool = subprocess.run([SCRIPTS / "dev/go-tool", "actionlint"], capture_output=True, text=True, check=True)

    done = subprocess.run([tool.stdout.strip(), str(workflow)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.name)
def test_steps_are_commands_of_the_checkout(workflow: Path) -> None:
    """bash reads each step, and each script that a step names is there to be run."""
    for step in steps(workflow):
        if command := step.get("run"):
            plain = re.sub(r"\$\{\{.*?\}\}", "", command)
            assert subprocess.run(["bash", "-n"], input=plain, text=True, check=False).returncode == 0, command
            for word in command.split():
                if word.startswith("scripts/"):
                    assert os.access(ROOT / word, os.X_OK), word


def test_each_push_runs_the_gate_and_each_night_everything() -> None:
    """The tests' workflow checks and tests, keeps the logs of a run that failed, and runs everything on a timer."""
    (workflow,) = [each for each in WORKFLOWS if each.name == "tests.yml"]
    text = workflow.read_text()
    commands = [step.get("run") for step in steps(workflow)]

    assert {"push", "pull_request", "schedule", "workflow_call"} <= set(
        yaml.safe_load(text)[True]
    )  # "on" is a truth value in YAML 1.1
    ours = [each.partition(" ")[0] for each in commands if each and each.startswith("scripts/")]
    assert ours == ["scripts/check", "scripts/test"]
    assert "&& '--full' || ''" in text
    assert any(step.get("if") == "failure()" and "upload-artifact" in step["uses"] for step in steps(workflow))


def test_a_release_waits_for_all_tests_and_keeps_no_password() -> None:
    """Everything is tested first, each job has the rights that it needs, and only the forge's own token is used."""
    (workflow,) = [each for each in WORKFLOWS if each.name == "release.yml"]
    text = workflow.read_text()
    parsed = yaml.safe_load(text)
    jobs: dict[str, dict[str, Any]] = parsed["jobs"]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        return {each for other in ([needs] if isinstance(needs, str) else needs) for each in (other, *before(other))}

    assert parsed[True] == {"push": {"tags": ["v*"]}}
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert all("tests" in before(name) for name in jobs if name != "tests")
    assert before("pypi") == {"release", "chart", "debs", "image", "wheels", "build", "tests"}
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"GITHUB_TOKEN"}
    assert parsed["permissions"] == {"contents": "read"}
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}


def test_wheels_are_built_for_each_python_that_is_promised() -> None:
    """The Pythons of the classifiers are those of the wheels, and each wheel delivers events before it is published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    promised = re.findall(r"Python :: 3\.(\d+)", " ".join(project["project"]["classifiers"]))
    built = project["tool"]["cibuildwheel"]

    assert built["build"] == [f"cp3{minor}-manylinux_*" for minor in promised]
    assert promised == ["11", "12", "13", "14"]
    assert built["test-command"] == "remora demo --pause 0"
