"""How every figure looks, and how it is saved with its data and its provenance."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from artifact.metrics import Interval
from artifact.records.schema import Records
from artifact.reproduce.ledger import commit
from artifact.reproduce.paths import check_profile, figures_folder, repository_root

# The palette of Okabe and Ito (2008), which people with any common colour blindness can tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#888888"

SYSTEMS = {
    "HiCache": GREY,
    "CONCUR": ORANGE,
    "ThunderAgent": SKY,
    "Continuum": GREEN,
    "Crossflow": PURPLE,
    "Composition": VERMILION,
    "Basin": BLUE,
}
"""The systems in the paper's order (§7.1), each with one colour in every figure."""

ARMS = {
    "none": ("No surge", BLUE, "-"),
    "plus33": ("+33%, 10 min", GREEN, "--"),
    "plus100": ("+100%, 10 min", VERMILION, "-"),
    "burst": ("burst", VERMILION, "-"),
    "burst_ended": ("burst, sessions ended at 25", ORANGE, "--"),
}
"""Label, colour and line style of each arm of Figures 4 to 6."""

MARKS = {"sim": "simulated", "synthetic": "synthetic workload", "stub": "stub engine, not a measurement"}
"""What a figure says of its data by `source`; data measured on hardware or read from a trace need no mark."""

MARK_IN = 0.14
MARK_COLOR = "#444444"

COLUMN_IN = 3.35
"""Width of a column of the paper, inches."""
PANELS_IN = 1.5 * COLUMN_IN
"""Width of two panels side by side: half as much again as in the paper, so that they read well on a screen."""


def use_style() -> None:
    """Set the style of all figures drawn from here on."""
    sns.set_theme(context="paper", style="ticks", palette=list(SYSTEMS.values()))
    plt.rcParams.update(
        {
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "pdf.fonttype": 42,
            "savefig.dpi": 200,
            "figure.constrained_layout.use": True,
        }
    )


def panels(rows: int, height_in: float = 1.75) -> tuple[Figure, np.ndarray]:
    """A figure of two panels a row, in the style of all; returns it and its axes, row by row."""
    use_style()
    sns.set_context("paper", font_scale=0.85)
    fig, axes = plt.subplots(rows, 2, figsize=(PANELS_IN, rows * height_in))
    return fig, axes.ravel()


def under(ax: Axes, letter: str, title: str, label: str = "Time (min)") -> None:
    """Label the x axis and put the panel's title below it, as the papers do."""
    ax.set_xlabel(f"{label}\n({letter}) {title}")


def shade(ax: Axes, interval_s: Interval, label: str | None = None) -> None:
    """Shade the surge on an axis of minutes."""
    ax.axvspan(interval_s[0] / 60, interval_s[1] / 60, color=GREY, alpha=0.2, lw=0, zorder=0, label=label)


def log_axis(ax: Axes, axis: str = "y", ticks: Sequence[float] | None = None) -> None:
    """A logarithmic "x" or "y" axis with plain numbers at the ticks (0.5, 1, 10, not powers), only `ticks` if given."""
    ax.set(**{f"{axis}scale": "log"})
    which = ax.xaxis if axis == "x" else ax.yaxis
    if ticks is not None:
        which.set_ticks(list(ticks))
        which.set_minor_locator(NullLocator())
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    which.set_minor_formatter(NullFormatter())


def cdf(ax: Axes, values: Iterable[float], **line: Any) -> pd.DataFrame:
    """Draw the empirical distribution function; returns what was drawn (`value`, `share`)."""
    value = np.sort(np.asarray(list(values), dtype=float))
    drawn = pd.DataFrame({"value": value, "share": np.arange(1, len(value) + 1) / len(value)})
    ax.step(drawn["value"], drawn["share"], where="post", **line)
    ax.set_ylim(0, 1)
    return drawn


def course(
    ax: Axes, seeds: Sequence[pd.DataFrame], column: str, scale: float = 1.0, band: bool = True, **line: Any
) -> pd.DataFrame:
    """Draw a column of each seed's `windows` against minutes: the median over seeds and, with `band`, their range.

    Returns what was drawn: `minute` (the middle of the window), `median`, `low`, `high`, all multiplied by `scale`.
    Raises `ValueError` without a seed."""
    if not seeds:
        raise ValueError(f"course of {column}: no seeds to draw")
    values = pd.concat([frame.set_index((frame["start_s"] + frame["end_s"]) / 120)[column] for frame in seeds], axis=1)
    drawn = pd.DataFrame({"median": values.median(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)})
    drawn = (drawn * scale).rename_axis("minute").reset_index()
    (drawn_line,) = ax.plot(drawn["minute"], drawn["median"], **line)
    if band and len(seeds) > 1:
        ax.fill_between(drawn["minute"], drawn["low"], drawn["high"], color=drawn_line.get_color(), alpha=0.15, lw=0)
    return drawn


def _mark(fig: Figure, text: str) -> None:
    """Write `text` at the bottom right, in a strip of its own where the layout can make room."""
    if isinstance(layout := fig.get_layout_engine(), ConstrainedLayoutEngine):
        strip = MARK_IN / fig.get_figheight()
        layout.set(rect=(0, strip, 1, 1 - strip))
    fig.text(0.995, 0.01, text, ha="right", va="bottom", fontsize=7, style="italic", color=MARK_COLOR)


def provenance(runs: Iterable[Records]) -> dict[str, Any]:
    """Where the data of a figure come from: `source`, `scenarios` (distinct ones, seeds apart), `seeds`, `commit`."""
    metas = [run.meta for run in runs]
    scenarios = {json.dumps(_seedless(meta["scenario"]), sort_keys=True) for meta in metas if "scenario" in meta}
    return {
        "source": "+".join(sorted({str(meta.get("source")) for meta in metas})),
        "scenarios": [json.loads(text) for text in sorted(scenarios)],
        "seeds": sorted({meta["seed"] for meta in metas if "seed" in meta}),
        "commit": commit(repository_root()),
    }


def _seedless(scenario: Any) -> Any:
    return {key: entry for key, entry in scenario.items() if key != "seed"} if isinstance(scenario, dict) else scenario


def save(
    fig: Figure,
    data: pd.DataFrame,
    name: str,
    meta: Mapping[str, Any],
    profile: str,
    root: Path | None = None,
) -> list[Path]:
    """Write `name`.pdf, .png, .csv (the plotted data) and .json (the provenance, `meta`).

    They go to `figures/` at the full profile, to `build/figures/` otherwise. Data that are not measured are marked so
    in the figure itself, beside `meta`'s `note` if it has one, and the provenance stands in the files' metadata, too.
    The figure is closed, so that a notebook shows it once. Raises `ValueError` for a `meta` without `source` or an
    unknown profile."""
    if not meta.get("source"):
        raise ValueError(f"figure {name}: meta has no source; use provenance(runs) or say source='synthetic'")
    root = root or repository_root()
    folder = figures_folder(root, check_profile(profile))
    folder.mkdir(parents=True, exist_ok=True)
    marks = [MARKS[source] for source in str(meta["source"]).split("+") if source in MARKS]
    if words := marks + ([str(meta["note"])] if meta.get("note") else []):
        _mark(fig, ", ".join(words))
    about = {"figure": name, "profile": profile, "marks": marks, **meta}
    text = json.dumps(about, sort_keys=True, ensure_ascii=True)
    pdf, png, csv, sidecar = (folder / f"{name}.{kind}" for kind in ("pdf", "png", "csv", "json"))
    fig.savefig(pdf, metadata={"Title": name, "Keywords": text, "CreationDate": None})
    fig.savefig(png, metadata={"Title": name, "Description": text})
    data.to_csv(csv, index=False, float_format="%.6g")
    plt.close(fig)
    sidecar.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return [pdf, png, csv, sidecar]
