"""How fast an idle engine is, measured by a few calls: the unloaded reference of runs without a calibration."""

import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import nnls

from artifact.workload.plan import Unloaded
from artifact.workload.trajectory import Trajectory
from hw_runs.commands import chat
from hw_runs.deployment import Deployment
from hw_runs.prompts import filler

LENGTHS = (512, 1024, 2048, 4096)
SUFFIX = 128
OUTPUT = 8
REPEATS = 2
_TIMEOUT_S = 300

Ask = Callable[[str, int], float]
"""Seconds of a call with this prompt text and so many output tokens."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a call alone: `call_s` + new tokens x `token_s` + new tokens x mean position x `position_s`.

    `call_s` holds an answer of `OUTPUT` tokens."""

    call_s: float
    token_s: float
    position_s: float
    rms_s: float
    """Error of the fit over the measured calls."""

    def seconds(self, new: int, prompt: int) -> float:
        """A call that computes the last `new` tokens of its prompt."""
        return self.call_s + new * (self.token_s + (prompt - new / 2) * self.position_s)

    def cold_tokens_per_s(self, prompt: int) -> float:
        return prompt / self.seconds(prompt, prompt)

    def unloaded(self) -> Unloaded:
        """As `artifact.workload.plan` wants it."""

        def duration(t: Trajectory, first: int) -> float:
            calls = range(first, t.n_calls)
            new = [t.new_tokens[i] - (t.shared_head_tokens if i == 0 else 0) for i in calls]
            gaps = sum(t.gap_before_s[first + 1 :])
            return gaps + sum(self.seconds(n, t.prompt_tokens[i]) for n, i in zip(new, calls, strict=True))

        return duration

    def meta(self) -> dict[str, float]:
        return asdict(self)


def measure(deployment: Deployment, lengths: Sequence[int] = LENGTHS, salt: int = 0) -> Speed:
    """Prompts of these lengths that the engine has not seen, each twice, the second time `SUFFIX` tokens longer."""
    return fit(_asking(deployment), deployment.model.bytes_per_token, lengths, salt)


def fit(ask: Ask, bytes_per_token: int, lengths: Sequence[int], salt: int) -> Speed:
    """Least squares over the calls, no term below zero."""
    ask(_text(salt, 0, bytes_per_token * lengths[0]), OUTPUT)  # the first call pays for what is made on first use
    rows, seconds = [], []
    for number, length in enumerate(list(lengths) * REPEATS, start=1):
        for prompt, new in ((length, length), (length + SUFFIX, SUFFIX)):
            rows.append((1.0, new, new * (prompt - new / 2)))
            seconds.append(ask(_text(salt, number, bytes_per_token * prompt), OUTPUT))
    matrix, took = np.array(rows), np.array(seconds)
    scale = matrix.max(axis=0)
    weight = 1 / took  # a hit's milliseconds count as much as a miss's second
    found, _ = nnls(matrix / scale * weight[:, None], took * weight)
    call_s, token_s, position_s = (found / scale).tolist()
    rms_s = float(np.sqrt(np.mean((matrix @ (found / scale) - took) ** 2)))
    return Speed(call_s, token_s, position_s, rms_s)


def _text(salt: int, number: int, length: int) -> str:
    """Text that no other salt and number begin with."""
    return (f"{salt}:{number}:" + filler())[:length]


def prompt_tokens(deployment: Deployment, length: int) -> int:
    """As the engine counts them in so many bytes of replayed text."""
    usage: dict[str, int] = json.loads(_call(deployment, filler()[:length], 1))["usage"]
    return usage["prompt_tokens"]


def _asking(deployment: Deployment) -> Ask:
    def ask(text: str, tokens: int) -> float:
        began = time.monotonic()
        _call(deployment, text, tokens)
        return time.monotonic() - began

    return ask


def _call(deployment: Deployment, text: str, tokens: int) -> bytes:
    url, body = f"{deployment.upstream}/v1/chat/completions", json.dumps(chat(deployment, text, tokens)).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        answer: bytes = response.read()
        return answer
