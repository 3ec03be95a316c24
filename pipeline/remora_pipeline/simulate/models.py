"""All models that a script may have."""

from __future__ import annotations

from types import MappingProxyType

from remora_pipeline.simulate import (
    advice,
    bucket,
    memory,
    quarantine,
    rate,
    readahead,
    reads,
    select,
    shaping,
    shed,
    split,
)
from remora_pipeline.simulate.fleet import model as fleet

FORMS = MappingProxyType(
    {
        "bucket": bucket.FORM,
        "shaping": shaping.FORM,
        "select": select.FORM,
        "rate": rate.FORM,
        "split": split.FORM,
        "shed": shed.FORM,
        "memory": memory.FORM,
        "reads": reads.FORM,
        "readahead": readahead.FORM,
        "quarantine": quarantine.FORM,
        "advice": advice.FORM,
        "fleet": fleet.FORM,
    }
)
