"""Regenerates the fitted numbers of the calibrations from published claims, and says which claims it used.

A claim used here is marked `fitted` in the ledger and does not count as validation; every other claim does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from artifact.reproduce.claims import load_claims
from sim.calibration.model import Calibration, Quantity, calibration

Obtained = Mapping[str, float]
Values = Mapping[str, float]


@dataclass(frozen=True)
class Fit:
    """Free numbers of a calibration (dotted names, with the values to start from) and the claims they are fitted to.

    `simulate(path, workers)` runs with the calibration file at `path` and returns what it obtains, by claim.
    `spread` is the size of the first steps, as a share of the starting values; the search ends after `steps` runs, or
    at once where the misfit is at most `enough`.
    """

    name: str
    start: Values
    claims: tuple[str, ...]
    simulate: Callable[[str, int], Obtained]
    tied: Callable[[Calibration], Values] = lambda _: {}
    """Numbers that follow from the others in closed form, applied after every step."""
    spread: float = 0.12
    steps: int = 34
    enough: float = 0.0


def misfit(obtained: Obtained) -> float:
    """Sum over claims of the squared error in units of the claim's tolerance, each cut at nine."""
    claims = load_claims()
    errors = [_error(claims[c].expect, claims[c].tolerance(), value) for c, value in obtained.items()]
    return float(sum(min(e * e, 9.0) for e in errors))


def _error(expect: Any, tol: Any, value: float) -> float:
    """Distance from the expectation (a number, or the nearer end of a range) in tolerances."""
    if not math.isfinite(value):
        return math.inf
    low, high = expect if isinstance(expect, list) else (expect, expect)
    nearest = min(max(value, low), high)
    scale = tol["abs"] if "abs" in tol else tol["rel"] * abs(nearest)
    return (value - nearest) / scale


def with_values(base: Calibration, values: Values) -> Calibration:
    """The calibration with some numbers replaced, rounded to four digits."""
    data = base.model_dump()
    for name, value in values.items():
        owner: Any = data
        for key in name.split("."):
            owner = owner[key]
        owner["value"] = float(f"{value:.4g}")
    return Calibration.model_validate(data)


def run_fit(fit: Fit, workers: int, console: Console) -> Calibration:
    """Nelder-Mead over the logarithms of the free numbers, on common random numbers, unless the start is good enough.

    Deterministic: the same code and claims give the same calibration.
    """
    base = calibration(fit.name)
    free = tuple(fit.start)
    origin = np.log([fit.start[name] for name in free])
    tried: dict[tuple[float, ...], float] = {}

    def candidate(logs: np.ndarray) -> Calibration:
        changed = with_values(base, dict(zip(free, np.exp(logs), strict=True)))
        return with_values(changed, fit.tied(changed))

    def objective(logs: np.ndarray) -> float:
        this = candidate(logs)
        key = tuple(number(this, name).value for name in free)
        if key not in tried:
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"{fit.name}.yaml"
                path.write_text(yaml.safe_dump(this.model_dump(mode="json")))
                obtained = fit.simulate(str(path), workers)
            tried[key] = misfit(obtained)
            console.print(f"{len(tried):3d}  misfit {tried[key]:7.3f}  {_brief(obtained)}")
        return tried[key]

    if objective(origin) <= fit.enough:
        return candidate(origin)
    simplex = np.vstack([origin, origin + fit.spread * np.eye(len(origin))])
    found = minimize(objective, origin, method="Nelder-Mead", options={"maxfev": fit.steps, "initial_simplex": simplex})
    return candidate(found.x)


def number(calibration: Calibration, name: str) -> Quantity:
    """The quantity of a dotted name."""
    owner: Any = calibration
    for key in name.split("."):
        owner = getattr(owner, key)
    quantity: Quantity = owner
    return quantity


def comparison(fit: Fit, fitted: Calibration) -> Table:
    """Committed against refitted, one row a fitted number."""
    table = Table("number", "committed", "fitted", "unit", title=f"{fit.name}: fitted to {', '.join(fit.claims)}")
    committed = calibration(fit.name)
    for name in (*fit.start, *fit.tied(fitted)):
        old, new = number(committed, name), number(fitted, name)
        table.add_row(name, f"{old.value:.4g}", f"{new.value:.4g}", new.unit)
    return table


def _brief(obtained: Obtained) -> str:
    return "  ".join(f"{claim.removeprefix('A-')} {value:.4g}" for claim, value in obtained.items())
