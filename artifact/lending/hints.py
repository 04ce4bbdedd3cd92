"""What a request tells the extension: `sampling_params.custom_params["basin"]` (or `custom_params` of the OpenAI API).

A gateway sets it; an engine without the extension ignores it.
"""

from dataclasses import dataclass
from typing import Any

KEY = "basin"


@dataclass(frozen=True, slots=True)
class Hint:
    session: str | None = None
    retain: bool = False
    """Keep this prompt on decode as a unit once the call is done (paper A §6.6: the gateway's mark)."""
    pin_s: float = 0.0
    """Seconds to hold this prompt in prefill's cache after its prefill (Continuum)."""
    last: bool = False
    """The session ends with this call: what was kept for it may go."""
    elastic: bool = False
    """Sent to a decode instance alone, which is to compute the prompt too (Crossflow; needs the feature `elastic`)."""


NOTHING = Hint()


def read(custom_params: Any) -> Hint:
    """The hint in a request's custom parameters; malformed parts count as absent, since a hint never fails a call."""
    raw = custom_params.get(KEY) if isinstance(custom_params, dict) else None
    if not isinstance(raw, dict):
        return NOTHING
    session, pin_s = raw.get("session"), raw.get("pin_s", 0.0)
    return Hint(
        session=session if isinstance(session, str) and session else None,
        retain=raw.get("retain") is True,
        pin_s=float(pin_s) if isinstance(pin_s, int | float) and pin_s > 0 else 0.0,
        last=raw.get("last") is True,
        elastic=raw.get("elastic") is True,
    )
