"""What the synthesised workloads must be like: the laws sessions are drawn from, and the statistics to meet.

The papers' trajectories are not public. A `Target` with a claim is a published figure, so that claim is *fitted*, never
validated; a target without one follows from other published figures by the reasoning beside it.
"""

from dataclasses import dataclass
from typing import Literal

Column = Literal["prompt", "output", "gap_s", "peak"]


@dataclass(frozen=True, slots=True)
class Quantile:
    """The share of `column`'s entries at or below `value` is `q`. Gaps are those of calls after a session's first."""

    column: Column
    q: float
    value: float
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of `column`, over the same entries as `Quantile`."""

    column: Column
    value: float
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of all sessions together."""

    value: int
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class RepeatShare:
    """Share of a returning call's prompt that the preceding call's prompt or output held, weighted by tokens."""

    value: float
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class FirstFifth:
    """Share of all tokens appended to sessions that comes in the first fifth of their returning calls."""

    value: float
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class PeakSpread:
    """Root mean square of log(peak / `centre`): the spread a predictor of log peaks has to explain."""

    value: float
    centre: float
    claim: str | None = None


Target = Quantile | Mean | Calls | RepeatShare | FirstFifth | PeakSpread


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp of a normal with median exp(mean); `sigma` is in log units."""

    median: float
    sigma: float


@dataclass(frozen=True, slots=True)
class ToolTime:
    """Seconds from a response to the session's next call: the environment's floor, drawn once a session, plus one of
    four kinds of tool call. The shares and the first laws are those of public Terminal-Bench recordings, whose rare
    calls of many minutes are left out: the published distribution is plotted to tens of seconds (paper A Fig. 3b)."""

    floor: Lognormal
    instant_share: float
    instant: Lognormal
    brief_share: float
    brief_range: tuple[float, float]
    """Uniform."""
    wait_share: float
    wait: Lognormal
    long: Lognormal
    """The remaining share, capped."""
    long_sigma: float = 0.0
    """Spread of long calls between sessions: some tasks compile or train at every turn, most never do."""
    cap: float = 300.0


@dataclass(frozen=True, slots=True)
class TaskText:
    """How much task texts say about the peak. Rank correlation and deviation of the log error are those of the paper's
    own predictor, leaving one trajectory out (paper A §6.5)."""

    tokens: Lognormal
    signal: float
    """Correlation of what the texts say with the log peak, set by trial so that the predictor scores as published."""
    rank_correlation: float
    rank_claim: str
    log_error_std: float
    std_claim: str


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The laws candidate sessions are drawn from. They only have to come near the targets: selection does the rest."""

    name: str
    sessions: int
    targets: tuple[Target, ...]
    shared_head_tokens: int
    calls: Lognormal
    effort_sigma: float
    """Spread between sessions of the tokens a call appends."""
    output: Lognormal
    output_effort: float
    """Exponent of a session's effort in its outputs; tool results carry the whole of it."""
    tool: Lognormal
    tool_decay: float
    """Tool results shrink by exp(-decay) from a session's first to its last call (agents read first, act later)."""
    tool_time_s: ToolTime
    first_extra_tokens: Lognormal
    """First prompt beyond shared head and task text: the environment's description."""
    task_text: TaskText
    claims: tuple[str, ...] = ()
    """Claims that hold by construction beside the targets'."""
    max_context_tokens: int = 200_000
    max_calls: int = 160
    candidates: int = 4000


OUTPUT_CAP_TOKENS = 16_384
TOOL_CAP_TOKENS = 20_000

TERMINAL_BENCH = WorkloadSpec(
    name="terminal-bench",
    sessions=216,
    targets=(
        Calls(7108, claim="A-wl-calls"),
        Quantile("prompt", 0.5, 25_600, claim="A-wl-prompt-p50"),
        Quantile("prompt", 0.9, 77_000, claim="A-wl-prompt-p90"),
        # 1.81 calls/s at a hit rate of 0.95 and 2.5K uncached tokens/s mean prompts of 28K, and the published quantiles
        # of a heavy-tailed law 35K (paper A §3): as low as the quantiles allow
        Mean("prompt", 31_500),
        Quantile("output", 0.5, 160, claim="A-wl-output-p50"),
        # 42 sessions at 3.3/min last 12.7 min: 23 s a call, of which decoding takes about 18 s and the gap 4.3 s
        Mean("output", 600),
        Quantile("gap_s", 0.5, 0.42, claim="A-wl-gap-p50"),
        Mean("gap_s", 4.3),
        Quantile("peak", 0.5, 40_000, claim="A-wl-peak-p50"),
        # log-error deviation 0.54 at rank correlation 0.64: 0.54 / sqrt(1 - 0.64^2) (paper A §6.5)
        PeakSpread(0.70, centre=40_000),
        RepeatShare(0.982, claim="A-wl-repeat"),
        # between 0.23 on Terminal-Bench and 0.34 on SWE tasks in public recordings: so front-loaded, a surge of new
        # sessions fills the cache as fast as the published one did
        FirstFifth(0.30),
    ),
    shared_head_tokens=7_000,
    calls=Lognormal(26.5, 0.75),
    effort_sigma=0.55,
    output=Lognormal(155, 1.62),
    output_effort=0.0,
    tool=Lognormal(235, 1.3),
    tool_decay=1.7,
    tool_time_s=ToolTime(
        floor=Lognormal(0.28, 0.5),
        instant_share=0.62,
        instant=Lognormal(0.04, 0.3),
        brief_share=0.14,
        brief_range=(0.1, 1.0),
        wait_share=0.11,
        wait=Lognormal(3.0, 0.2),
        long=Lognormal(21.0, 0.5),
        long_sigma=0.7,
        cap=120.0,
    ),
    first_extra_tokens=Lognormal(500, 0.7),
    task_text=TaskText(
        tokens=Lognormal(120, 0.8),
        signal=0.81,
        rank_correlation=0.64,
        rank_claim="A-pred-rank-tb",
        log_error_std=0.54,
        std_claim="A-pred-std-tb",
    ),
    max_context_tokens=131_072,
    claims=("A-wl-sessions", "A-wl-reuse-gain"),  # the gain is 1 / (1 - repeat share)
)

SWE_BENCH_PRO = WorkloadSpec(
    name="swe-bench-pro",
    sessions=70,
    targets=(
        # Calls a session are not published; public agent runs on these tasks have medians of 59-78
        Calls(70 * 72),
        Quantile("prompt", 0.5, 83_000, claim="A-wl-swe-prompt-p50"),
        Mean("output", 450),
        Quantile("output", 0.5, 160),
        Quantile("gap_s", 0.5, 0.048, claim="A-wl-swe-gap-p50"),
        Mean("gap_s", 3.3),
        Quantile("peak", 0.5, 107_000, claim="A-wl-swe-peak-p50"),
        # 0.34 / sqrt(1 - 0.61^2): at a rank correlation of 0.56 the linear one is near 0.61 (paper A §6.5)
        PeakSpread(0.43, centre=107_000),
        FirstFifth(0.34),
    ),
    shared_head_tokens=7_000,
    calls=Lognormal(68, 0.4),
    effort_sigma=0.25,
    output=Lognormal(158, 1.42),
    output_effort=0.5,
    tool=Lognormal(520, 1.25),
    tool_decay=2.0,
    tool_time_s=ToolTime(
        floor=Lognormal(0.007, 0.5),
        instant_share=0.62,
        instant=Lognormal(0.031, 0.3),
        brief_share=0.12,
        brief_range=(0.1, 1.0),
        wait_share=0.14,
        wait=Lognormal(3.0, 0.2),
        long=Lognormal(14.0, 1.2),
    ),
    first_extra_tokens=Lognormal(1800, 0.3),
    task_text=TaskText(
        tokens=Lognormal(450, 0.5),
        signal=0.75,
        rank_correlation=0.56,
        rank_claim="A-pred-rank-swe",
        log_error_std=0.34,
        std_claim="A-pred-std-swe",
    ),
    claims=("A-wl-swe-sessions",),
    candidates=3000,
)

SPECS = {spec.name: spec for spec in (TERMINAL_BENCH, SWE_BENCH_PRO)}
