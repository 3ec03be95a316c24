"""Scripts of `remora simulate` with what they must answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from remora_pipeline.simulate.models import FORMS
from remora_pipeline.simulate.script import answer, script_from

DATA = Path(__file__).parents[1] / "data"
CASES = [
    *json.loads((DATA / "simulate-cases.json").read_text()),
    *json.loads((DATA / "shaping-own-cases.json").read_text()),  # scopes and principals by who is near
]


def run(script: Any) -> Any:
    """A script's answer, as the command prints it."""
    return json.loads(json.dumps(answer(script_from(script, FORMS))))


def shaping(*steps: dict[str, Any], **config: Any) -> list[Any]:
    """The results of a script of model `shaping`."""
    results: list[Any] = run({"version": 1, "model": "shaping", "config": config, "steps": list(steps)})["results"]
    return results


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """Where an answer is not as expected; it may have more members than are expected.

    `$min` and `$max` bound a number, `$text` lists what a text must name. Fractions may differ a little.
    """
    if isinstance(expected, dict) and expected.keys() & {"$min", "$max"}:
        fine = expected.get("$min", -math.inf) <= found <= expected.get("$max", math.inf)
        return [] if fine else [f"{path}: {found} is not in {expected}"]
    if isinstance(expected, dict) and "$text" in expected:
        return [f"{path}: {word} is not in {found}" for word in expected["$text"] if word not in found]
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{path}.{name}: is missing" for name in expected if name not in found]
        return missing + [
            each
            for name in expected
            if name in found
            for each in differences(expected[name], found[name], f"{path}.{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{path}: {found} is not {expected}"]
        return [
            each
            for place, (one, other) in enumerate(zip(expected, found, strict=True))
            for each in differences(one, other, f"{path}[{place}]")
        ]
    if isinstance(expected, float) and isinstance(found, int | float):
        return (
            [] if math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-6) else [f"{path}: {found} is not {expected}"]
        )
    return [] if expected == found and type(expected) is type(found) else [f"{path}: {found} is not {expected}"]
