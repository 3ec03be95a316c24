"""How a trace is shaped."""

from __future__ import annotations

from dataclasses import dataclass, field

from remora_pipeline.replay.prepare.column_map import Mapping

NONE, EVEN, RANDOM = "none", "even", "random"


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What `remora replay prepare` was asked for.

    `spread` None is even for sources with whole seconds, and none for others. `until` is either microseconds after the
    first write, or a time (`until_us`). `sample_keys` 10 keeps one key in ten; `clone_keys` 3 makes three of each.
    """

    format: str | None = None
    bucket: str | None = None
    mapping: Mapping = field(default_factory=Mapping)
    until_us: int | None = None
    until_after_us: int | None = None
    max_gap_us: int | None = None
    sample_keys: int = 1
    clone_keys: int = 1
    spread: str | None = None
    seed: int = 1
    size_cap: int | None = None

    def told(self, spread: str) -> dict[str, str | int | float | bool | None]:
        """For trace.json: those that made a difference, and the spread that was chosen."""
        mapping = self.mapping
        values: dict[str, str | int | float | bool | None] = {
            "bucket": self.bucket,
            "ts_col": mapping.ts_col,
            "ts_unit": mapping.ts_unit,
            "op_col": mapping.op_col,
            "key_col": mapping.key_col,
            "bucket_col": mapping.bucket_col,
            "size_col": mapping.size_col,
            "op_map": ",".join(f"{word}={op}" for word, op in mapping.op_map.items()) or None,
            "until_us": self.until_us,
            "until_after_us": self.until_after_us,
            "max_gap_us": self.max_gap_us,
            "sample_keys": f"1/{self.sample_keys}" if self.sample_keys > 1 else None,
            "clone_keys": self.clone_keys if self.clone_keys > 1 else None,
            "size_cap": self.size_cap,
            "seed": self.seed if spread == RANDOM else None,
        }
        values["spread"] = spread
        return {name: value for name, value in values.items() if value is not None}
