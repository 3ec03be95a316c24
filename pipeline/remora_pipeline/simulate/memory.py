"""Model `memory`: bodies that ingest takes in at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.policy.ingest.intake import Intake
from remora_pipeline.simulate.checks import not_negative
from remora_pipeline.simulate.form import Optional, flag, members, or_null, text, whole
from remora_pipeline.simulate.script import Form

SLOW_DOWN = 503


class MemoryModel:
    """The requests of all workers of a host."""

    def __init__(self, config: SimpleNamespace) -> None:
        self._intake: Intake[str] = Intake(config.limit)

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """What happens to one request, and what is held then."""
        result = self._done(op, given)
        intake = self._intake
        return {**result, "pending": intake.pending, "paused": intake.is_paused, "waiting": intake.waiting}

    def _done(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        intake = self._intake
        match op:
            case "begin":
                not_negative(bytes=given.bytes)
                if given.id in intake:
                    raise ConfigError("id", f"{given.id} is there already")
                return {"admitted": intake.begin(given.id, given.bytes, has_body=given.body)}
            case "grow":
                not_negative(bytes=given.bytes)
                if not intake.is_growing(given.id):
                    raise ConfigError("id", f"{given.id} is no body under way that began without a length")
                return {"ok": intake.grow(given.id, given.bytes)}
            case "end":
                return {"admitted": intake.end(given.id)}
            case "give_up":
                if not intake.is_waiting(given.id):
                    raise ConfigError("id", f"{given.id} does not wait")
                intake.end(given.id)
                return {"status": SLOW_DOWN}
            case _:
                return {"admitted": intake.set_limit(given.limit)}


FORM = Form(
    config=members(limit=Optional(or_null(whole), None)),
    ops={
        "begin": members(id=text, bytes=whole, body=Optional(flag, True)),
        "grow": members(id=text, bytes=whole),
        "end": members(id=text),
        "give_up": members(id=text),
        "set": members(limit=or_null(whole)),
    },
    begin=MemoryModel,
)
