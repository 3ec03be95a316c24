"""When a token is asked for anew, and when a session that rests on one is renewed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from remora.policy.retry import Backoff

RENEWED_AT = 0.8
"""Of a token's life: what is left is for a server that is away."""

REFRESHED_AT = 0.85
"""Of a session's life, as Kafka's own client has it."""

LEAST_SESSION_S = 1.0
"""A broker refuses to begin a session anew that is younger."""

PAUSES = Backoff(1.0, 60.0)
"""Between requests for a token that failed, one after the other."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Of one token, on one clock."""

    renew_at: float
    ends_at: float

    @classmethod
    def of(cls, asked_at: float, lasts_s: float) -> TokenTimes:
        """Counted from before the request: a slow answer only makes it shorter."""
        return cls(asked_at + RENEWED_AT * lasts_s, asked_at + lasts_s)


def renewal_s(session_s: float) -> float | None:
    """Seconds until a session is renewed; None where it ends by itself, since there is none or it is too short."""
    after_s = max(REFRESHED_AT * session_s, LEAST_SESSION_S)
    return after_s if after_s < session_s else None
