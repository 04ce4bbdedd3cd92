"""What one agent session asked of a model: the unit of every trace format, arrival process and engine run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

OUTPUT_LIMIT_TOKENS = 4096
"""Most that a scaled output grows to. A replay asks the engine for so many tokens, which has a limit; the paper does
not say which. Without one, outputs x3 cost three times the decode work and the critical rate falls to 6.4 sessions/min
(published 9.9, paper A §7.4)."""
OUTPUT_LIMIT_CLAIM = "A-lc-out3"
"""What that limit is chosen with."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One recorded session, as columns with one entry a call.

    A call resends `prompt_tokens[i]` tokens, of which the last `new_tokens[i]` were not in the preceding call's
    prompt (they hold the preceding output and the tool's result; for the first call, the whole prompt).
    It becomes ready `gap_before_s[i]` seconds after the preceding response ended and generates `output_tokens[i]`.
    The first `shared_head_tokens` of every prompt (system prompt and tool definitions) are common to all
    sessions of the workload.

    Raises `ValueError` naming the field and the call when a column is inconsistent.
    """

    id: str
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    gap_before_s: tuple[float, ...]
    task_text: str = ""
    shared_head_tokens: int = 0
    parent_id: str | None = None

    def __post_init__(self) -> None:
        n = len(self.prompt_tokens)
        if n == 0:
            raise ValueError(f"trajectory {self.id!r}: prompt_tokens: a session needs at least one call")
        for field in ("new_tokens", "output_tokens", "gap_before_s"):
            if len(getattr(self, field)) != n:
                raise ValueError(f"trajectory {self.id!r}: {field}: {len(getattr(self, field))} entries for {n} calls")
        self._check("prompt_tokens", self.prompt_tokens, low=1)
        self._check("output_tokens", self.output_tokens, low=0)
        self._check("gap_before_s", self.gap_before_s, low=0)
        for i, (new, prompt) in enumerate(zip(self.new_tokens, self.prompt_tokens, strict=True)):
            if not 0 <= new <= prompt:
                raise ValueError(f"trajectory {self.id!r}: new_tokens[{i}]: {new} not within 0..prompt_tokens {prompt}")
        for i, ((before, _), (prompt, new)) in enumerate(
            pairwise(zip(self.prompt_tokens, self.new_tokens, strict=True))
        ):
            if prompt - new > before:
                raise ValueError(
                    f"trajectory {self.id!r}: new_tokens[{i + 1}]: {prompt - new} tokens repeated "
                    f"of a preceding prompt of {before}"
                )
        if not 0 <= self.shared_head_tokens <= min(self.prompt_tokens):
            raise ValueError(f"trajectory {self.id!r}: shared_head_tokens: {self.shared_head_tokens} exceeds a prompt")

    def _check(self, field: str, values: Sequence[float], low: int) -> None:
        for i, value in enumerate(values):
            if not value >= low:
                raise ValueError(f"trajectory {self.id!r}: {field}[{i}]: {value} is below {low}")

    @property
    def n_calls(self) -> int:
        return len(self.prompt_tokens)

    @property
    def peak_tokens(self) -> int:
        """Largest context the session reaches, input and output together (the paper's target of prediction Ŵ, §6.1)."""
        return max(p + o for p, o in zip(self.prompt_tokens, self.output_tokens, strict=True))

    def scaled(self, tool_time: float = 1.0, output: float = 1.0) -> "Trajectory":
        """The same session with gaps and output lengths multiplied; recorded prompts stay (a replay resends them).

        An output grows up to `OUTPUT_LIMIT_TOKENS`, and stays what it was where it is longer than that.
        """
        outputs = [min(max(1, round(o * output)), max(o, OUTPUT_LIMIT_TOKENS)) if o else 0 for o in self.output_tokens]
        return replace(
            self,
            output_tokens=tuple(outputs),
            gap_before_s=tuple(g * tool_time for g in self.gap_before_s),
        )
