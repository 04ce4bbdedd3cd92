"""How well peaks are foretold (paper A §6.5, §7.9), from the scores of cross-fitted predictions.

| arm                    | content: one `artifact.control.predictor.PredictionScores` an entry              |
|------------------------|-----------------------------------------------------------------------------------|
| `terminal_bench_peaks` | the synthesised workload, one trajectory left out at a time                       |
| `swe_bench_pro_peaks`  | the same                                                                          |
| `bailian_peaks`        | every Bailian trace that the user supplies, trained on earlier sessions           |
| `copilot_peaks`        | the GitHub Copilot trace, likewise; no loader reads its segment lengths and label |
"""

from typing import TYPE_CHECKING

from artifact.reproduce.registry import evaluates

if TYPE_CHECKING:
    from artifact.control.predictor import PredictionScores


@evaluates("A-pred-rank-tb")
def rank_terminal_bench(terminal_bench_peaks: "PredictionScores") -> float:
    return terminal_bench_peaks.rank_correlation


@evaluates("A-pred-rank-swe")
def rank_swe_bench_pro(swe_bench_pro_peaks: "PredictionScores") -> float:
    return swe_bench_pro_peaks.rank_correlation


@evaluates("A-pred-std-tb")
def std_terminal_bench(terminal_bench_peaks: "PredictionScores") -> float:
    return terminal_bench_peaks.log_error_std


@evaluates("A-pred-std-swe")
def std_swe_bench_pro(swe_bench_pro_peaks: "PredictionScores") -> float:
    return swe_bench_pro_peaks.log_error_std


@evaluates("A-pred-copilot")
def rank_copilot(copilot_peaks: "PredictionScores") -> float:
    return copilot_peaks.rank_correlation


@evaluates("A-pred-bailian", pooled=True)
def rank_bailian(bailian_peaks: list["PredictionScores"]) -> list[float]:
    return [scores.rank_correlation for scores in bailian_peaks]


@evaluates("A-pred-std-range", pooled=True, arms=("terminal_bench_peaks", "swe_bench_pro_peaks", "bailian_peaks"))
def std_of_all(*sets: list["PredictionScores"]) -> list[float]:
    """Two of the sets are synthesised to lie in the range: without a recorded one this shows nothing."""
    return [scores.log_error_std for some in sets for scores in some]
