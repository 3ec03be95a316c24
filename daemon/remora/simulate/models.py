"""All models that a script may have."""

from __future__ import annotations

from types import MappingProxyType

from remora.simulate import bucket, rate, select, shaping, split

FORMS = MappingProxyType(
    {
        "bucket": bucket.FORM,
        "shaping": shaping.FORM,
        "select": select.FORM,
        "rate": rate.FORM,
        "split": split.FORM,
    }
)
