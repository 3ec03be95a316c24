"""The example for the Spark operator, checked where no cluster can run it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pyspark
import yaml
from click.testing import CliRunner

from remora.cli import group
from remora_pipeline.replay.errors import ReplayError

MANIFEST = Path(__file__).parents[2] / "deploy/spark-operator/remora-land.yaml"

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "required": list(required), "properties": properties, "additionalProperties": False,
    }  # fmt: skip


_SECRETS = {
    "type": "array",
    "items": _object("name", "path", "secretType", name=_TEXT, path=_TEXT, secretType=_TEXT),
}
SPEC = _object(
    "schedule",
    "template",
    schedule=_TEXT,
    concurrencyPolicy={"enum": ["Allow", "Forbid", "Replace"]},
    successfulRunHistoryLimit=_NUMBER,
    failedRunHistoryLimit=_NUMBER,
    template=_object(
        "driver",
        "executor",
        "mainApplicationFile",
        "sparkVersion",
        "type",
        type={"enum": ["Java", "Python", "Scala", "R"]},
        pythonVersion={"enum": ["2", "3"]},
        mode={"enum": ["cluster", "client"]},
        sparkVersion=_TEXT,
        image=_TEXT,
        mainApplicationFile=_TEXT,
        arguments={"type": "array", "items": _TEXT},
        sparkConf={"type": "object", "additionalProperties": _TEXT},
        restartPolicy=_object(type={"enum": ["Never", "OnFailure", "Always"]}),
        driver=_object(cores=_NUMBER, memory=_TEXT, serviceAccount=_TEXT, secrets=_SECRETS),
        executor=_object(instances=_NUMBER, cores=_NUMBER, memory=_TEXT, secrets=_SECRETS),
    ),
)
"""Of the operator's ScheduledSparkApplication, v1beta2, the fields that the example uses, with their types."""


def manifest() -> dict[str, Any]:
    """What the example says."""
    (found,) = yaml.safe_load_all(MANIFEST.read_text())
    assert isinstance(found, dict)
    return found


def wrong(spec: dict[str, Any]) -> list[str]:
    """What the operator would not take."""
    return [error.json_path for error in jsonschema.Draft202012Validator(SPEC).iter_errors(spec)]


def test_the_operator_takes_the_example() -> None:
    """It has the fields of the operator's version and no others, of their types, and no two landings run at once."""
    found = manifest()
    odd = copy.deepcopy(found["spec"])
    odd["template"]["driver"]["cores"] = "1"
    odd["template"]["nonsense"] = 1
    del odd["template"]["driver"]["secrets"][0]["secretType"]

    assert (found["apiVersion"], found["kind"]) == ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication")
    assert wrong(found["spec"]) == []
    assert sorted(wrong(odd)) == ["$.template", "$.template.driver.cores", "$.template.driver.secrets[0]"]
    assert found["spec"]["concurrencyPolicy"] == "Forbid"


def test_the_example_is_of_the_spark_that_the_pipeline_needs() -> None:
    """Version, image and the image's recipe above it name the Spark that is installed with the pipeline."""
    template = manifest()["spec"]["template"]

    assert template["sparkVersion"] == pyspark.__version__
    assert template["image"].endswith(f":{pyspark.__version__}")
    assert f"FROM apache/spark:{pyspark.__version__}-java17-python3" in MANIFEST.read_text()


def test_the_example_runs_a_command_that_there_is(tmp_path: Path) -> None:
    """The pipeline's command takes all of its arguments, up to the catalog, which is not there; what is mounted for
    driver and executors is what the arguments name."""
    template = manifest()["spec"]["template"]
    config = tmp_path / "catalog"
    config.write_text("")
    said = {
        "https://catalog/": f"jdbc:sqlite:{tmp_path}/none/catalog.db",
        "broker:9092": "127.0.0.1:9",
        "/etc/remora/pipeline/catalog": str(config),
    }

    result = CliRunner().invoke(group, [*(said.get(each, each) for each in template["arguments"]), "--dry-run"])

    assert set(said) < set(template["arguments"])
    assert isinstance(result.exception, ReplayError), result.output
    assert [each["path"] for part in ("driver", "executor") for each in template[part]["secrets"]] == [
        "/etc/remora/pipeline"
    ] * 2
