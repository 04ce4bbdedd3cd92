"""The simulator against a real engine: fitted to a few recorded runs on the CPU, asked for others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.records.schema import Records
from artifact.reproduce.figures import BLUE, GREY, ORANGE, SKY, panels, under
from hw_runs.calibrate import calibrate, load_runs
from hw_runs.experiment import own_or_shipped
from hw_runs.fidelity import compare, words
from hw_runs.trap import DEPLOYMENT, FOLDER
from sim.calibration.model import Calibration, ColocatedCalibration

WINDOW_S = 5.0
"""Sessions last half a minute here: windows as short in proportion as the paper's two minutes are to its own."""
FITTED = (DEPLOYMENT, f"{FOLDER}/burst/seed0")
"""Three loads that stay healthy, and one run that collapses: no other tells what a saturated engine does."""
HIT_WITHIN, CALLS_WITHIN, ENDS_RIGHT = 0.08, 0.15, 0.8
ROLES = {"calibration": ORANGE, "same arrivals": SKY, "held out": BLUE}
"""What a run is to the fit. `same arrivals`: another arm of the seed whose burst was fitted."""

Found = list[tuple[Path, Records]]


def shelf(root: Path | None = None) -> Path:
    """This machine's own runs where all that are fitted are there, else those that come with the artifact."""
    return own_or_shipped(FITTED, root)


def fitted_runs(root: Path | None = None) -> Found:
    """The runs that the calibration is fitted to."""
    return load_runs([shelf(root) / part for part in FITTED])


def other_runs(seeds: Sequence[int] | None = None, root: Path | None = None) -> Found:
    """All other runs of the trap, of `seeds` if given."""
    fitted = shelf(root) / FITTED[-1]
    found = load_runs([shelf(root) / FOLDER])
    return [(path, run) for path, run in found if path != fitted and (seeds is None or run.meta["seed"] in seeds)]


def calibrated(root: Path | None = None) -> Calibration | ColocatedCalibration:
    """The simulator's costs, fitted to `fitted_runs`."""
    return calibrate(fitted_runs(root), WINDOW_S).calibration


def predictions(seeds: Sequence[int] | None = None, root: Path | None = None) -> pd.DataFrame:
    """A row a run as `fidelity.compare` gives it, with `role` and `late_s`, by which the run's client woke late on
    average: then less was offered than is simulated."""
    costs, used = calibrated(root), fitted_runs(root)
    seen = {int(run.meta["seed"]) for path, run in used if path.is_relative_to(shelf(root) / FOLDER)}
    others = other_runs(seeds, root)
    roles = ["calibration"] * len(used)
    roles += ["same arrivals" if run.meta["seed"] in seen else "held out" for _, run in others]
    table = compare([*used, *others], costs).assign(role=roles)
    return table.assign(late_s=[run.meta["late_s"] for _, run in (*used, *others)])


def figure_fidelity(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Simulated over measured hit rates and answered calls, one dot a run; shaded: within the bar."""
    fig, axes = panels(1, height_in=2.2)
    for ax, letter, (name, title) in zip(axes, "ab", (("hit", "Prefix hit rate"), ("calls", "Calls")), strict=True):
        low, high = table[[name, f"{name}_sim"]].min().min(), table[[name, f"{name}_sim"]].max().max()
        x = np.linspace(0.95 * low, 1.05 * high, 50)
        below, above = (
            (x - HIT_WITHIN, x + HIT_WITHIN) if name == "hit" else (x * (1 - CALLS_WITHIN), x * (1 + CALLS_WITHIN))
        )
        ax.fill_between(x, below, above, color=GREY, alpha=0.2, lw=0)
        for role, color in ROLES.items():
            rows = table[table["role"] == role]
            ax.plot(rows[name], rows[f"{name}_sim"], "o", ms=3.5, color=color, alpha=0.8, label=role)
        ax.set_ylabel("simulated")
        under(ax, letter, title, "measured")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig, table


def findings(table: pd.DataFrame) -> str:
    """Errors by role, and whether the held-out runs meet the bars."""
    parts = [f"- **{role}** ({len(rows)} runs): {words(rows)}." for role, rows in table.groupby("role", sort=False)]
    held = table[table["role"] == "held out"]
    if held.empty:
        return "\n".join(
            [*parts, "No held-out run of another seed is recorded: `make trap` with other seeds makes some."]
        )
    hit, calls = int((held["hit_off"] <= HIT_WITHIN).sum()), int((held["calls_off"] <= CALLS_WITHIN).sum())
    met = "are met" if meets(held) else "are **not** met"
    parts.append(
        f"- Of the {len(held)} held-out runs {hit} are within {HIT_WITHIN} of the measured hit rate, {calls} within "
        f"{CALLS_WITHIN:.0%} of the calls, and {int(held['end_right'].sum())} end in the measured state: the bars "
        f"(all, all, and {ENDS_RIGHT:.0%}) {met}."
    )
    return "\n".join(parts)


def meets(held: pd.DataFrame) -> bool:
    """Whether predictions of held-out runs are as good as they have to be."""
    within = (held["hit_off"] <= HIT_WITHIN) & (held["calls_off"] <= CALLS_WITHIN)
    return bool(within.all() and held["end_right"].mean() >= ENDS_RIGHT)
