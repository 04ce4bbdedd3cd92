"""`basin calibrate-runs`: the simulator's costs and the hit curve, fitted to recorded runs of one deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
import yaml
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from artifact.control.profile import RampFit, RampPoint, fit_kappa
from artifact.metrics import cache_tokens, windows
from artifact.records.schema import Records
from artifact.reproduce.paths import repository_root
from hw_runs.deployment import Deployment
from hw_runs.fidelity import Compared, compare, words
from hw_runs.windowed import colocated_windows, decode_windows, lone_prefills, transfer_windows
from sim.calibration.model import Calibration, ColocatedCalibration, Quantity, calibration
from sim.fit import with_values

WINDOW_S = 120.0
"""Paper A §7.10."""
NO_HOST_TIER, NO_LIMIT_S = 1e9, 1e9
Runs = Sequence[tuple[Path, Records]]


class Fitted(NamedTuple):
    """A linear fit with no term below zero: coefficients by name, and how well it does."""

    values: Mapping[str, float]
    rmse: float
    rows: int
    unit: str

    def words(self) -> str:
        scale, unit = (1e3, "ms") if self.unit == "s" else (1, self.unit)
        return f"{self.rows} rows, RMSE {self.rmse * scale:.3g} {unit}"


@dataclass(frozen=True)
class Outcome:
    """A calibration and the fits behind it; `hits` is None where the runs show no cliff."""

    calibration: Calibration | ColocatedCalibration
    fits: Mapping[str, Fitted]
    hits: RampFit | None


def load_runs(folders: Sequence[Path]) -> list[tuple[Path, Records]]:
    """Every run at or below the folders. Raises `ValueError` without any, for a simulated one, and for runs of more
    than one deployment."""
    paths = sorted({path.parent for folder in folders for path in folder.rglob("calls.parquet")})
    runs = [(path, Records.load(path)) for path in paths]
    if not runs:
        raise ValueError(f"no recorded run in {', '.join(map(str, folders))}; `basin run-hw` records some")
    if made_up := [str(path) for path, run in runs if run.meta.get("source") != "hw"]:
        raise ValueError(f"not recorded on an engine: {', '.join(made_up)}")
    if len(names := {run.meta["deployment"]["name"] for _, run in runs}) > 1:
        raise ValueError(f"runs of {', '.join(sorted(names))}: a calibration is of one deployment")
    return runs


def calibrate(runs: Runs, window_s: float = WINDOW_S) -> Outcome:
    """Fit the deployment of the runs: colocated where its one instance is, else prefill and decode.

    Raises `ValueError` naming the part that the runs do not determine."""
    deployment = Deployment.model_validate(runs[0][1].meta["deployment"])
    if deployment.count("unified"):
        return _colocated(runs, deployment, window_s)
    return _prefill_decode(runs, deployment, window_s)


def fit(columns: Mapping[str, np.ndarray], target: np.ndarray, unit: str, weights: np.ndarray | None = None) -> Fitted:
    """Least squares of the target over the named columns, coefficients at or above zero.

    Raises `ValueError` with fewer rows than coefficients."""
    matrix = np.column_stack(list(columns.values())).astype(float)
    if len(target) < matrix.shape[1]:
        raise ValueError(f"{len(target)} rows for {', '.join(columns)}: record more runs, or narrow the window")
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    weight = np.ones(len(target)) if weights is None else weights
    found, _ = nnls(matrix / scale * weight[:, None], target * weight)
    values = found / scale
    rmse = float(np.sqrt(np.mean((matrix @ values - target) ** 2)))
    return Fitted(dict(zip(columns, values.tolist(), strict=True)), rmse, len(target), unit)


def hit_curve_fit(runs: Runs, window_s: float) -> RampFit | None:
    """The reference hit curve aligned with the windows' working sets and hit rates; None where they show no cliff."""
    capacity = cache_tokens(runs[0][1])
    seen = _stack([windows(_with_throughput(run), window_s)[["w_over_c", "hit_rate"]].dropna() for _, run in runs])
    points = [RampPoint(x * capacity, h) for x, h in zip(*(v.tolist() for v in seen.values()), strict=True)]
    try:
        return fit_kappa(points, capacity)
    except ValueError:
        return None


def _prefill_decode(runs: Runs, deployment: Deployment, window_s: float) -> Outcome:
    if deployment.calibration is None:
        raise ValueError(f"deployment {deployment.name!r} names no calibration to start from; add one to its file")
    base = calibration(deployment.calibration)
    alone = _stack([lone_prefills(run) for _, run in runs])
    chunk = base.prefill.chunk_tokens.value
    prefill = fit(
        {
            "overhead": np.ones(len(alone["new"])),
            "fixed": np.ceil(alone["new"] / chunk) - 1,
            "token": alone["new"],
            "position": alone["new"] * alone["position"],
        },
        alone["seconds"],
        "s",
        1 / np.maximum(alone["seconds"], 0.05),
    )
    steady = _stack([decode_windows(run, window_s, deployment.count("decode")) for _, run in runs])
    decode = fit(
        {"fixed": np.ones(len(steady["batch"])), "request": steady["batch"], "context": steady["context"]},
        steady["itl_s"],
        "s",
    )
    moved = np.concatenate([transfer_windows(path, window_s) for path, _ in runs])
    values = {
        "prefill.fixed_s": prefill.values["fixed"],
        "prefill.per_token_s": prefill.values["token"],
        "prefill.per_token_position_s": prefill.values["position"],
        "decode.fixed_s": decode.values["fixed"],
        "decode.per_request_s": decode.values["request"],
        "decode.per_context_token_s": decode.values["context"],
    }
    sources = {name: f"lone prefills: {prefill.words()}" for name in values if name.startswith("prefill")}
    sources |= {name: f"{window_s:g} s windows: {decode.words()}" for name in values if name.startswith("decode")}
    transfer_s = base.transfer_s.value
    if len(moved):
        transfer_s = values["transfer_s"] = float(moved.mean())
        sources["transfer_s"] = f"mean over {len(moved)} windows of the engine's transfer latency"
    values["call_overhead_s"] = max(prefill.values["overhead"] - prefill.values["fixed"] - transfer_s, 0.0)
    sources["call_overhead_s"] = "what the lone prefills' constant leaves over one chunk and the transfer"
    capacities = runs[0][1].meta["capacity"]
    values["prefill.cache_tokens"] = capacities["prefill_cache_tokens"] / max(deployment.count("prefill"), 1)
    values["decode.kv_tokens"] = capacities["decode_kv_tokens"] / max(deployment.count("decode"), 1)
    sources |= dict.fromkeys(("prefill.cache_tokens", "decode.kv_tokens"), "reported by the engines")
    fitted = _renamed(with_values(base, values), deployment, runs, sources)
    return Outcome(fitted, {"prefill": prefill, "decode": decode}, hit_curve_fit(runs, window_s))


def _colocated(runs: Runs, deployment: Deployment, window_s: float) -> Outcome:
    chunk = int(deployment.flags["max-num-batched-tokens"])
    rows = _stack([colocated_windows(run, path, window_s, chunk) for path, run in runs])
    names = ("calls", "steps", "requests", "contexts", "new", "positions")
    found = fit({name: rows[name] for name in names}, rows["busy_s"], "s", 1 / np.maximum(rows["busy_s"], 1.0))
    origin = f"{window_s:g} s windows of {_names(runs)}: {found.words()}"

    def fitted(name: str, unit: str) -> Quantity:
        return Quantity(value=float(f"{found.values[name]:.4g}"), unit=unit, origin="fitted", source=origin)

    def flag(name: str, unit: str) -> Quantity:
        return Quantity(value=float(deployment.flags[name]), unit=unit, origin="derived", source=f"flag --{name}")

    pool = float(runs[0][1].meta["capacity"]["prefill_cache_tokens"])
    made = ColocatedCalibration(
        kind="colocated",
        name=deployment.name,
        description=deployment.description,
        scheduler=deployment.engine,
        pool_tokens=Quantity(value=pool, unit="tokens", origin="derived", source="reported by the engine"),
        chunk_tokens=flag("max-num-batched-tokens", "tokens"),
        max_running=flag("max-num-seqs", "requests"),
        fixed_s=fitted("steps", "s"),
        per_request_s=fitted("requests", "s"),
        per_context_token_s=fitted("contexts", "s"),
        per_token_s=fitted("new", "s"),
        per_token_position_s=fitted("positions", "s"),
        per_token_position_context_s=Quantity(
            value=0.0, unit="s", origin="assumed", source="the windows do not tell it from per_context_token"
        ),
        host_load_tokens_per_s=Quantity(
            value=NO_HOST_TIER, unit="tokens/s", origin="assumed", source="there is no host tier"
        ),
        call_overhead_s=fitted("calls", "s"),
        itl_slo_s=Quantity(value=NO_LIMIT_S, unit="s", origin="assumed", source="these runs count no slow steps"),
    )
    return Outcome(made, {"step": found}, hit_curve_fit(runs, window_s))


def _renamed(c: Calibration, deployment: Deployment, runs: Runs, sources: Mapping[str, str]) -> Calibration:
    """The calibration under the deployment's name, the origin of each fitted number beside it."""
    data: dict[str, Any] = c.model_dump()
    for name, source in sources.items():
        owner: Any = data
        for key in name.split("."):
            owner = owner[key]
        owner |= {"origin": "fitted", "source": f"{source}, from {_names(runs)}", "claims": ()}
    data |= {"name": deployment.name, "description": deployment.description}
    return Calibration.model_validate(data)


def _names(runs: Runs) -> str:
    """Where the runs lie, below the repository."""
    root, paths = repository_root(), [path.resolve() for path, _ in runs]
    return ", ".join(str(path.relative_to(root)) if path.is_relative_to(root) else path.name for path in paths)


def _stack(frames: Sequence[Any]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([frame[name].to_numpy() for frame in frames]) for name in frames[0].columns}


def _with_throughput(run: Records) -> Records:
    """Nothing reports an engine's saturated throughput; what rests on it is not used here."""
    run.meta["capacity"].setdefault("saturated_prefill_tokens_per_s", float("nan"))
    return run


def calibrate_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded runs, or folders that hold such.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write (YAML); the simulator takes its path.")],
    window_s: Annotated[float, typer.Option(help="Width of the windows; the paper's are two minutes.")] = WINDOW_S,
    held_out: Annotated[list[Path] | None, typer.Option(help="Runs to predict with it (repeatable).")] = None,
) -> None:
    """Fit the simulator's costs and the hit curve to recorded RUNS of one deployment."""
    console = Console(highlight=False)
    try:
        used = load_runs(runs)
        found = calibrate(used, window_s)
        others = load_runs(held_out) if held_out else []
    except ValueError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    out.write_text(yaml.safe_dump(found.calibration.model_dump(mode="json"), sort_keys=False))
    numbers = Table("number", "fitted", "unit", "origin")
    for name, quantity in found.calibration.quantities():
        numbers.add_row(name, f"{quantity.value:.4g}", quantity.unit, quantity.origin)
    console.print(numbers)
    for name, one in found.fits.items():
        console.print(f"{name}: {one.words()}")
    console.print(_hit_words(found.hits))
    console.print(f"written to {out}")
    for label, chosen in (("calibration runs", used), ("held-out runs", others)):
        if chosen:
            table = compare(chosen, found.calibration)
            console.print(f"{label}: {words(table)}")
            console.print(table[list(Compared._fields)].round(3).to_string(index=False), markup=False)


def _hit_words(hits: RampFit | None) -> str:
    if hits is None:
        return "hit curve: the windows show no cliff"
    levels = f"plateau {hits.plateau:.2f}, floor {hits.floor:.2f}"
    return f"hit curve: κ {hits.kappa:.2f}, {levels}, RMSE {hits.rms_error:.3f}"
