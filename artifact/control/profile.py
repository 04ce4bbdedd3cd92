"""The offline deployment profile (paper A §6.5): where the cache cliff lies and how fast sessions can leave at best.

The stepped load ramp itself runs on an engine or in the simulator; what is done with its points is here, as pure
functions of working set and hit rate.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

KNEE = 1.9
"""x_k: working set over cache capacity at which the reference hit curve falls off (paper A §6.1)."""

REFERENCE_X = (0.0, 1.0, KNEE, 2.2, 3.0)
REFERENCE_Y = (1.0, 1.0, 0.78, 0.05, 0.0)
"""The reference hit curve between plateau (1) and floor (0), piecewise linear over W/C. After paper A §3.4, Fig. 6b:
0.95 up to about the cache size, 0.80 at the knee, about 0.3 soon after twice the cache size, 0.27 at the end; the
place of the end points is our reading of the text."""

KAPPA_BOUNDS = (0.1, 10.0)


@dataclass(frozen=True, slots=True)
class RampPoint:
    """One settled step of the load ramp."""

    working_set_tokens: float
    hit_rate: float


@dataclass(frozen=True, slots=True)
class RampFit:
    """The reference curve aligned with one ramp; `rms_error` is in hit rate."""

    kappa: float
    plateau: float
    floor: float
    rms_error: float


@dataclass(frozen=True, slots=True)
class DeploymentProfile:
    """What the controller knows of a deployment beforehand; one a router, since routing spreads prefixes differently.

    `kappa` scales the cliff W_c = κ x_k C_eff; `critical_rate_per_min` is the peak departure rate λ_c in sessions a
    minute; `plateau` and `floor` are hit rates in health and after collapse. Raises `ValueError` naming the field.
    """

    kappa: float = 1.0
    critical_rate_per_min: float = float("inf")
    plateau: float = 0.95
    floor: float = 0.27
    knee: float = KNEE
    router: str = "default"

    def __post_init__(self) -> None:
        for name in ("kappa", "critical_rate_per_min", "knee"):
            if not getattr(self, name) > 0:
                raise ValueError(f"profile {self.router!r}: {name}: {getattr(self, name)} is not positive")
        if not 0 <= self.floor < self.plateau <= 1:
            raise ValueError(
                f"profile {self.router!r}: floor {self.floor}, plateau {self.plateau}: not 0 <= floor < plateau <= 1"
            )

    @property
    def critical_rate_per_s(self) -> float:
        return self.critical_rate_per_min / 60


def save_profiles(profiles: Sequence[DeploymentProfile], path: Path) -> None:
    """Write a deployment's profiles as JSON, by router."""
    path.write_text(json.dumps({p.router: asdict(p) for p in profiles}, indent=2) + "\n")


def load_profile(path: Path, router: str = "default") -> DeploymentProfile:
    """Read one router's profile. Raises `ValueError` naming the file and what is missing or unknown in it."""
    try:
        by_router = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"profile {path}: not JSON ({error}); write it with `save_profiles`") from error
    if router not in by_router:
        raise ValueError(f"profile {path}: no router {router!r}; it has {', '.join(sorted(by_router))}")
    values = by_router[router]
    unknown = set(values) - {f.name for f in fields(DeploymentProfile)}
    if unknown:
        raise ValueError(f"profile {path}: unknown fields {', '.join(sorted(unknown))}")
    return DeploymentProfile(**values)


def reference_hit_rate(x: NDArray[np.float64], plateau: float = 0.95, floor: float = 0.27) -> NDArray[np.float64]:
    """Hit rate of the reference curve at working sets `x`, in units of cache capacity."""
    return floor + (plateau - floor) * np.interp(x, REFERENCE_X, REFERENCE_Y)


def fit_kappa(ramp: Sequence[RampPoint], capacity_tokens: float) -> RampFit:
    """Align the reference curve with one ramp by least squares over κ, plateau and floor.

    `capacity_tokens` is C = max(C_G, C_H). For a given κ the curve is linear in plateau and floor. Raises `ValueError`
    if the ramp shows no transition, since κ is then not determined by it.
    """
    points = sorted(ramp, key=lambda p: p.working_set_tokens)
    x = np.array([p.working_set_tokens for p in points]) / capacity_tokens
    h = np.array([p.hit_rate for p in points])
    if len(points) < 4 or h.max() - h.min() < 0.2:
        raise ValueError(
            f"ramp of {len(points)} points with hit rates {h.min():.2f}..{h.max():.2f} shows no cliff"
            if len(points)
            else "ramp without points: run the load ramp first"
        )

    def levels(log_kappa: float) -> tuple[float, float, float]:
        """Plateau, floor and mean squared error of the best curve of this scale."""
        shape = np.interp(x / np.exp(log_kappa), REFERENCE_X, REFERENCE_Y)
        columns = np.column_stack([shape, 1 - shape])
        (plateau, floor), *_ = np.linalg.lstsq(columns, h)
        plateau, floor = float(np.clip(plateau, 0, 1)), float(np.clip(floor, 0, 1))
        return plateau, floor, float(np.mean((columns @ [plateau, floor] - h) ** 2))

    def error(log_kappa: float) -> float:
        return levels(log_kappa)[2]

    # The error has flat stretches far from the optimum, so a grid finds the valley and Brent's method its bottom.
    grid = np.linspace(np.log(KAPPA_BOUNDS[0]), np.log(KAPPA_BOUNDS[1]), 200)
    best = int(np.argmin([error(g) for g in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    from scipy.optimize import minimize_scalar  # slow to import, and policies only load profiles

    log_kappa = minimize_scalar(error, bounds=bounds, method="bounded").x
    plateau, floor, squared = levels(log_kappa)
    return RampFit(float(np.exp(log_kappa)), plateau, floor, squared**0.5)


def profile_from_ramps(
    ramps: Sequence[Sequence[RampPoint]],
    capacity_tokens: float,
    critical_rate_per_min: float,
    router: str = "default",
) -> DeploymentProfile:
    """The profile from repeated ramps: the lower quartile of κ (paper A §6.5), medians of plateau and floor."""
    if not ramps:
        raise ValueError("no ramps: a profile needs at least one")
    fits = [fit_kappa(ramp, capacity_tokens) for ramp in ramps]
    return DeploymentProfile(
        kappa=float(np.quantile([f.kappa for f in fits], 0.25)),
        critical_rate_per_min=critical_rate_per_min,
        plateau=float(np.median([f.plateau for f in fits])),
        floor=float(np.median([f.floor for f in fits])),
        router=router,
    )
