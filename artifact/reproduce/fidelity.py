"""How far the simulator is from what was measured on hardware (paper A §7.10), and what its transfer charge matters.

Every published hardware figure that the simulator re-derives gives rows, one a number. A row's error is relative: what
was obtained, over the published value or the nearer end of the published range, less one; 0 within the range. Rows that
the calibration or the workload was fitted to are calibration rows; only the others validate.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from artifact.reproduce.claims import Claim, leaves, load_claims
from artifact.reproduce.compare import Runs
from artifact.reproduce.evaluate.fidelity import TRANSFERRED, hw, per_token
from artifact.reproduce.evaluate.trap_h100 import ARMS
from artifact.reproduce.ledger import Entry, evaluate_claims, load, merged
from artifact.reproduce.scenarios import fitted_claims, recorded, run_arms, trap_runs
from artifact.reproduce.scenarios_policies import (
    HARDWARE,
    PROTOTYPE,
    PROTOTYPE_POLICIES,
    Variant,
    arm,
    base_rates_per_min,
    comparison_runs,
    scenario,
    seeds_of,
)
from artifact.reproduce.verdict import bounds

if TYPE_CHECKING:
    from sim.scenario import Scenario

CALIBRATIONS = ("h100", "h200")
NEVER = "never"
COLUMNS = [
    "paper",
    "claim",
    "part",
    "group",
    "unit",
    "published",
    "obtained",
    "error",
    "tolerances",
    "role",
    "verdict",
    "run",
]


# Runs ----------------------------------------------------------------------------------------------------------------


def fidelity_runs(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Runs:
    """Simulated runs of everything that paper A measured on hardware: the arms of `trap_h100` (Figs. 4-6) and of all
    systems in the hardware scenarios (Figs. 12, 13), shared with those figures; the prototype again with transfers
    charged by the token ("<setting>-per-token/…"); and, where a GPU node has left any, the recorded runs of the same
    arms ("hw/<setting>/…"). With source "hw" only the recorded ones."""
    measured = recorded("policies", [arm(name, policy) for name in HARDWARE for policy in PROTOTYPE_POLICIES])
    recordings = {hw(name): runs for name, runs in measured.items()}
    if source != "sim":
        return recordings
    resources = (workers, scheduler)
    return {
        **trap_runs("sim", ARMS, profile, seeds, *resources),
        **comparison_runs("sim", HARDWARE, PROTOTYPE_POLICIES, profile, seeds, *resources),
        **transfer_runs(profile, seeds, *resources),
        **recordings,
    }


def transfer_runs(
    profile: str, seeds: Iterable[int] | None = None, workers: int | None = None, scheduler: str | None = None
) -> Runs:
    """The prototype in the hardware scenarios (H100 1P1D alone at the smoke profile), every transfer charged by its
    prompt's tokens over the link's rate instead of the fixed time, at the loads of the fixed charge."""
    names = ("1p1d",) if profile == "smoke" else TRANSFERRED
    rates = base_rates_per_min([HARDWARE[name] for name in names], workers, scheduler)
    arms = {
        arm(per_token(name), PROTOTYPE): [
            _per_token(scenario(HARDWARE[name], Variant(PROTOTYPE), rate, seed)) for seed in seeds_of(profile, seeds)
        ]
        for name, rate in zip(names, rates, strict=True)
    }
    return run_arms(arms, workers, scheduler, "transfers charged by the token")


def _per_token(one: "Scenario") -> "Scenario":
    return one.model_copy(update={"deployment": one.deployment.model_copy(update={"transfer": "per_token"})})


# Rows ----------------------------------------------------------------------------------------------------------------


class Error(NamedTuple):
    """`relative` is NaN where the nearest published value is 0; `tolerances` is the distance in tolerances of the
    claim, NaN where it has none."""

    relative: float
    tolerances: float


def error(expected: float | Sequence[float], tolerance: str | Mapping[str, float], value: float) -> Error:
    """How far `value` is from a published number or range, with its sign; 0 within a range."""
    low, high = bounds(expected, "exact")  # type: ignore[arg-type]
    nearest = min(max(value, low), high)
    far = value - nearest
    if far == 0:
        return Error(0.0, 0.0)
    least, most = bounds(expected, tolerance)  # type: ignore[arg-type]
    slack = most - high if far > 0 else low - least
    return Error(far / abs(nearest) if nearest else nan, far / slack if slack else nan)


def hardware_claims(source: str = "A") -> list[str]:
    """The figures that a paper measured on hardware, those about its own simulator left out."""
    return [c.id for c in load_claims().values() if c.basis == "hw" and c.source == source and "-fid-" not in c.id]


def judged(runs: Runs, profile: str) -> list[Entry]:
    """Paper A's hardware figures, evaluated on these runs."""
    claims = hardware_claims()
    return evaluate_claims(runs, "fidelity", profile, claims, fitted_claims(*CALIBRATIONS))


def on_record(root: Path) -> list[Entry]:
    """Paper B's hardware figures as its own figures last left them: run now, or else as committed."""
    path = root / "figures" / "claims.json"
    committed = {entry.id: entry for entry in load(path)} if path.is_file() else {}
    wanted = set(hardware_claims("B"))
    found = [entry for entry in merged(root) if entry.id in wanted]
    return [entry if entry.obtained is not None else committed.get(entry.id, entry) for entry in found]


def rows(entries: Iterable[Entry]) -> pd.DataFrame:
    """One row a published number that was simulated: `COLUMNS`. Of several values (scenarios, seeds' extremes) against
    one range the farthest stands. Words are not in it, see `words`."""
    found = []
    for entry in entries:
        if entry.source == "sim" and entry.obtained is not None:
            found += _rows(load_claims()[entry.id], entry)
    paper, role, far = map(COLUMNS.index, ("paper", "role", "error"))
    found.sort(key=lambda row: (row[paper], row[role], -_size(row[far])))
    return pd.DataFrame(found, columns=COLUMNS)


def _size(error: float) -> float:
    """Of an error, for sorting: what cannot be told last."""
    return -1.0 if isnan(error) else abs(error)


def _rows(claim: Claim, entry: Entry) -> list[list[Any]]:
    run = "+".join(filter(None, [entry.figure, entry.profile]))
    made = []
    for path, expected in leaves(claim.expect).items():
        values = _numbers(entry.obtained, path)
        if isinstance(expected, str) or not values:
            continue
        tolerance = claim.tolerance(path)
        value = max(values, key=lambda one: abs(error(expected, tolerance, one).relative))
        far = error(expected, tolerance if isinstance(tolerance, dict) else {"abs": 0.0}, value)
        part = ".".join(map(str, path))
        made.append(
            [
                claim.source,
                claim.id,
                part,
                claim.group,
                claim.unit,
                expected,
                value,
                *far,
                ROLES[entry.role],
                str(entry.verdict),
                run,
            ]
        )
    return made


ROLES = {"fitted": "calibration", "validated": "validation"}


def _numbers(obtained: Any, path: Sequence[str | int]) -> list[float]:
    for key in path:
        if not isinstance(obtained, (dict, list)) or (isinstance(obtained, dict) and key not in obtained):
            return []
        obtained = obtained[key]  # type: ignore[index]
    values = obtained if isinstance(obtained, list) else [obtained]
    found = [inf if value == NEVER else value for value in values]
    return [float(value) for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]


def words(entries: Iterable[Entry]) -> pd.DataFrame:
    """What the paper says of its hardware runs in words (end states, orderings): `claim`, `published`, `obtained`,
    `verdict`, `role`."""
    found = [
        [entry.id, entry.expected, entry.obtained, str(entry.verdict), ROLES[entry.role]]
        for entry in entries
        if entry.source == "sim" and entry.obtained is not None and isinstance(entry.expected, str)
    ]
    return pd.DataFrame(found, columns=["claim", "published", "obtained", "verdict", "role"])


def by_role(table: pd.DataFrame) -> pd.DataFrame:
    """Calibration and validation rows of each paper apart, and each group's: `rows`, `within` (share within tolerance),
    median and 90th percentile of |error|, and the `worst` row with its `error`."""
    parts: dict[tuple[str, str, str], pd.DataFrame] = {}
    for paper in sorted(set(table["paper"])):
        for role in ROLES.values():
            own = table[(table["paper"] == paper) & (table["role"] == role)]
            if len(own):
                parts[paper, role, "all"] = own
                parts |= {(paper, role, group): own[own["group"] == group] for group in sorted(set(own["group"]))}
    return pd.DataFrame(
        [{"paper": paper, "role": role, "group": group, **_of(own)} for (paper, role, group), own in parts.items()]
    )


def _of(part: pd.DataFrame) -> dict[str, Any]:
    size = part["error"].abs().dropna()
    worst = part.loc[part["error"].abs() == size.max()].iloc[0] if len(size) else None
    return {
        "rows": len(part),
        "within": float((part["tolerances"].abs() <= 1).mean()),
        "median": float(size.median()) if len(size) else nan,
        "p90": float(size.quantile(0.9, interpolation="higher")) if len(size) else nan,
        "worst": "" if worst is None else label(worst),
        "error": nan if worst is None else float(worst["error"]),
    }


def label(row: "pd.Series[Any]") -> str:
    """A row's claim, and the part of it where it has several."""
    return f"{row['claim']} {row['part']}".strip()


def percent(value: float) -> str:
    """A signed share in words."""
    return f"{value:+.0%}" if isfinite(value) else "never"
