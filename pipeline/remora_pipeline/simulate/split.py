"""Model `split`: shares of a limit that all workers of a store have together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.traffic import meters_from
from remora.policy.shaping.split import scaled, split
from remora_pipeline.simulate.checks import not_negative
from remora_pipeline.simulate.form import members, named, or_null, whole
from remora_pipeline.simulate.script import Form
from remora_pipeline.simulate.shaping import METER, as_json


class SplitModel:
    """Each step stands for itself."""

    def __init__(self, _config: SimpleNamespace) -> None:
        """There is nothing to configure."""

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Divide a limit, or scale meters to a share of theirs."""
        if op == "split":
            not_negative(limit=given.limit)
            not_negative("wants.", **given.wants)
            return {"shares": split(given.limit, given.wants)}
        not_negative(share=given.share)
        meters = scaled(meters_from(given.meters, "meters"), given.share)
        return {"meters": {bucket: as_json(meter) for bucket, meter in meters.items()}}


FORM = Form(
    config=members(),
    ops={
        "split": members(limit=whole, wants=named(or_null(whole))),
        "scale": members(meters=named(METER), share=whole),
    },
    begin=SplitModel,
)
