"""Mean time to spontaneous collapse over the load (ours; paper B §4 reports none)."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.reproduce.colocated import MINUTE
from artifact.reproduce.escape import LOADS, Escape, escape_table, published
from artifact.reproduce.figures import BLACK, BLUE, COLUMN_IN, ORANGE, VERMILION, log_axis, use_style
from artifact.reproduce.scenarios_colocated import PAIRED_RATE

Results = Mapping[str, Sequence[Escape]]
NUDGE = 0.0005
"""Sessions/s by which points at one load are set apart."""


def figure_escape(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Simulated (an arrow: no collapse seen, only a lower bound), by splitting, by the chain, and what paper B's twins
    say; bars are 95% intervals."""
    use_style()
    fig, ax = plt.subplots(figsize=(1.3 * COLUMN_IN, 2.6))
    table = escape_table(results)
    seen = table[table["collapses"] > 0]
    ax.errorbar(
        seen["per_s"], seen["simulated_min"], _bars(seen, "simulated_min", "low_min", "high_min"),
        fmt="o", ms=4, color=BLUE, label="simulated",
    )  # fmt: skip
    none = table[table["collapses"] == 0]
    ax.plot(none["per_s"], none["low_min"], "^", ms=5, mfc="white", color=BLUE, label="simulated, at least")
    split = table[np.isfinite(table["split_min"])]
    bars = _bars(split, "split_min", "split_low_min", "split_high_min")
    ax.errorbar(split["per_s"] + NUDGE, split["split_min"], bars, fmt="D", ms=3.5, color=ORANGE, label="splitting")
    chain = table[table["chain_min"] > 0]
    ax.plot(chain["per_s"], chain["chain_min"], "-", color=VERMILION, lw=1.2, label="birth-death chain")
    twins = published()
    height = [[twins.mean_s - twins.low_s], [twins.high_s - twins.mean_s]]
    ax.errorbar(
        [PAIRED_RATE - NUDGE], [twins.mean_s / MINUTE], np.array(height) / MINUTE,
        fmt="s", ms=4, color=BLACK, label="paper B's twins",
    )  # fmt: skip
    log_axis(ax)
    ax.set(xlabel="Load (sessions/s)", ylabel="Mean time to collapse (min)", xticks=list(LOADS))
    ax.legend(fontsize=7)
    return fig, table


def _bars(rows: pd.DataFrame, middle: str, low: str, high: str) -> np.ndarray:
    """Lengths of the error bars below and above; one without an upper bound ends at the point."""
    above = (rows[high] - rows[middle]).replace([np.inf], 0.0)
    return np.array([rows[middle] - rows[low], above])
