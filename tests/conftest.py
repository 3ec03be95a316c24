"""How property tests run: without a stopwatch, and in CI on the same cases each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "unhurried")
