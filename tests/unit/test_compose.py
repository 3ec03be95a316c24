"""deploy/compose: what it starts exists, fits together, and can be reached by this host alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from devkit.processes.programs import program
from remora import config
from remora.cli import group

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/compose/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("remora:")}


def test_the_file_is_one_of_compose() -> None:
    """It is valid by the schema of the Compose Specification."""
    schema = json.loads((ROOT / "tests/data/compose-spec.json").read_text())

    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_every_file_that_is_mounted_exists() -> None:
    """Each bind mount is of a file of the repository, read-only, and each volume is declared."""
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source, _, rest = mount.partition(":")
            if source.startswith("."):
                assert (FILE.parent / source).is_file(), source
                assert rest.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_nothing_is_published_to_other_hosts() -> None:
    """Each port is published on the loopback address."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert "127.0.0.1:9750:9750" in ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_have_a_version_and_no_more_rights_than_they_need() -> None:
    """No image is what is newest today, and remora's containers are as hardened as a chart's."""
    for service in SERVICES.values():
        assert service["image"].partition(":")[2][:1] not in ("", "l"), service["image"]
    for service in OURS.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", [name for name, each in OURS.items() if "command" in each])
def test_a_command_of_remora_is_one(name: str) -> None:
    """Each command that a container runs is taken by the command line, with the options that it has there."""
    words = [str(word) for word in OURS[name]["command"]]

    parsed = CliRunner().invoke(group, [*words, "--help"])

    assert parsed.exit_code == 0, parsed.output
    known = parsed.output
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []


def test_variables_are_options() -> None:
    """Each variable that a container of remora's gets is an option."""
    known = {f"REMORA_{path.replace('.', '_').upper()}" for path, _ in config.options()}

    assert {name for each in OURS.values() for name in each.get("environment", {})} <= known


def test_an_event_is_sent_when_its_topic_is_there_and_printed() -> None:
    """The event waits for remora and its topic, Kafka's topic and a consumer for Kafka; each finds what it needs."""

    def before(name: str) -> set[str]:
        return {each for other in SERVICES[name].get("depends_on", {}) for each in (other, *before(other))}

    assert before("first-event") == {"topic", "remora"}
    assert before("kafka-topic") == before("consumer") == {"kafka"}
    assert "--topic=events" in SERVICES["consumer"]["command"]
    assert OURS["topic"]["command"][-2] == "kafka://kafka:9092"
    assert [name for name, each in SERVICES.items() if each.get("profiles")] == ["prometheus", "grafana", "jaeger"]


def test_nothing_waits_for_a_container_that_ends_behind_one_that_runs() -> None:
    """Podman 4 refuses to start the third of them: it looks for the first among those that it is yet to start."""
    waited_for = {
        other: each for name in SERVICES for other, each in SERVICES[name].get("depends_on", {}).items()
    }  # fmt: skip
    ends = [name for name, each in waited_for.items() if each["condition"] == "service_completed_successfully"]

    assert ends == ["topic"]
    assert [name for name in ends if "depends_on" in SERVICES[name]] == []


def test_prometheus_reads_the_rules_and_the_daemon(tmp_path: Path) -> None:
    """promtool takes the configuration beside the rules, and its job is the one that the alerts look for."""
    for file in ("deploy/compose/prometheus.yml", "config/alerts.yml"):
        (tmp_path / Path(file).name).write_text((ROOT / file).read_text())
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (job,) = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    assert (job["job_name"], job["static_configs"]) == ("remora", [{"targets": ["remora:9750"]}])
