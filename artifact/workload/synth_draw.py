"""A wide pool of candidate sessions, drawn as padded columns so that a pool of thousands costs milliseconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artifact.workload import synth_spec as laws
from artifact.workload.synth_spec import Column, Lognormal, WorkloadSpec

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Pool:
    """Candidate sessions: one row a session, one column a call; entries beyond a session's last call mean nothing."""

    n_calls: Ints
    prompt: Ints
    output: Ints
    tool: Ints
    """Tokens of a prompt that were in neither the preceding prompt nor the preceding output."""
    gap_us: Ints
    """In microseconds, rounded to 100."""
    text_tokens: Ints

    @property
    def calls(self) -> Mask:
        return np.arange(self.prompt.shape[1]) < self.n_calls[:, None]

    @property
    def returning(self) -> Mask:
        """Calls after a session's first."""
        return self.calls & (np.arange(self.prompt.shape[1]) > 0)

    @property
    def new(self) -> Ints:
        """Tokens not in the preceding prompt: the preceding output and the tool's result."""
        return self.prompt - np.concatenate([np.zeros_like(self.prompt[:, :1]), self.prompt[:, :-1]], axis=1)

    @property
    def peak(self) -> Ints:
        return np.where(self.calls, self.prompt + self.output, 0).max(axis=1)

    def column(self, name: Column) -> tuple[NDArray[np.float64], Mask]:
        """A column's entries and which of them count."""
        if name == "peak":
            return self.peak[:, None].astype(float), np.ones((len(self.peak), 1), dtype=bool)
        if name == "gap_s":
            return self.gap_us / 1e6, self.returning
        return getattr(self, name).astype(float), self.calls

    def take(self, rows: Ints) -> "Pool":
        return Pool(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def draw_pool(spec: WorkloadSpec, rng: np.random.Generator) -> Pool:
    """Draw `spec.candidates` sessions.

    A prompt is the preceding prompt, its output and a tool result. Sessions that would outgrow the context limit end
    before they do.
    """
    rows, width = spec.candidates, spec.max_calls
    shape = (rows, width)
    n_calls = np.clip(_ints(spec.calls, rows, rng), 4, width)
    position = np.arange(width) / n_calls[:, None]
    effort = np.exp(spec.effort_sigma * rng.standard_normal((rows, 1)))
    output = np.clip(_draw(spec.output, shape, rng) * effort**spec.output_effort, 1, laws.OUTPUT_CAP_TOKENS).astype(
        np.int64
    )
    fading = spec.tool_decay * np.exp(-spec.tool_decay * position) / -np.expm1(-spec.tool_decay)
    tool = np.clip(_draw(spec.tool, shape, rng) * effort * fading, 1, laws.TOOL_CAP_TOKENS).astype(np.int64)
    tool[:, 0] = 0
    text = np.clip(_ints(spec.task_text.tokens, rows, rng), 25, 1500)
    first = spec.shared_head_tokens + text + np.maximum(_ints(spec.first_extra_tokens, rows, rng), 50)
    prompt = first[:, None] + np.cumsum(tool, axis=1)
    prompt[:, 1:] += np.cumsum(output, axis=1)[:, :-1]
    fits = (prompt + output <= spec.max_context_tokens).cumprod(axis=1).sum(axis=1)
    return Pool(np.minimum(n_calls, fits), prompt, output, tool, _gaps_us(spec, shape, rng), text)


def _gaps_us(spec: WorkloadSpec, shape: tuple[int, int], rng: np.random.Generator) -> Ints:
    law = spec.tool_time_s
    floor = _draw(law.floor, (shape[0], 1), rng)
    kind = rng.random(shape)
    edges = np.cumsum([law.instant_share, law.brief_share, law.wait_share])
    beyond = np.select(
        [kind < edge for edge in edges],
        [_draw(law.instant, shape, rng), rng.uniform(*law.brief_range, shape), _draw(law.wait, shape, rng)],
        _draw(law.long, shape, rng) * _draw(Lognormal(1.0, law.long_sigma), (shape[0], 1), rng),
    )
    gap = 100 * np.rint(np.minimum(floor + beyond, law.cap) * 1e4).astype(np.int64)
    gap[:, 0] = 0
    return gap


def _draw(law: Lognormal, shape: int | tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    return law.median * np.exp(law.sigma * rng.standard_normal(shape))


def _ints(law: Lognormal, shape: int | tuple[int, ...], rng: np.random.Generator) -> Ints:
    return np.rint(_draw(law, shape, rng)).astype(np.int64)
