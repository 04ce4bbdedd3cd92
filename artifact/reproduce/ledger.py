"""The claim ledger: what was obtained for each claim, from which runs, and the verdict."""

import json
import math
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from artifact.metrics import NotObserved
from artifact.records.schema import Records
from artifact.reproduce.claims import load_claims
from artifact.reproduce.paths import PROFILES, check_profile, claims_folder
from artifact.reproduce.registry import Evaluation, Evaluator, Runs, evaluate, evaluators
from artifact.reproduce.verdict import Outcome, Verdict, judge


class Entry(BaseModel):
    """One claim's line. What never happened within a run (an infinite value) is written as "never"."""

    model_config = ConfigDict(extra="forbid")
    id: str
    group: str
    unit: str
    what: str
    expected: Any
    obtained: Any = None
    per_seed: list[Any] = []
    verdict: Outcome = Outcome.NOT_EVALUATED
    why: str = ""
    note: str = ""
    role: Literal["fitted", "validated"] = "validated"
    """Fitted: the calibration or the synthesiser was tuned to this claim, so meeting it shows nothing."""
    source: str = ""
    """"sim", "hw", "synthetic" (a workload), …; several are joined by +."""
    figure: str = ""
    profile: str = ""
    seeds: list[int] = []
    commit: str = ""
    wall_s: float | None = None
    """Seconds that the figure's notebook took up to its claims; runs that it found in a store took none of them."""


class Part(BaseModel):
    """What one figure's notebook contributed."""

    model_config = ConfigDict(extra="forbid")
    figure: str
    profile: Literal["smoke", "quick", "full"]
    written: str
    entries: list[Entry]


def evaluate_claims(
    runs: Runs,
    figure: str,
    profile: str,
    ids: Iterable[str] = ("*",),
    fitted: Collection[str] = (),
    source: str = "synthetic",
    wall_s: float | None = None,
) -> list[Entry]:
    """Evaluate and judge the claims that match `ids` (names or patterns such as "A-trap-*").

    A pattern takes those of which `runs` holds all arms; a claim named in full is reported in any case, with the reason
    if it could not be evaluated. `source` says where inputs that are not `Records` come from.
    Raises `ValueError` for an unknown profile or an entry of `ids` that matches no claim."""
    known, profile = evaluators(), check_profile(profile)
    about = {"figure": figure, "profile": profile, "commit": commit(Path(__file__).parent), "wall_s": wall_s}
    return [
        _entry(claim_id, known.get(claim_id), runs, source).model_copy(
            update={**about, "role": "fitted" if claim_id in fitted else "validated"}
        )
        for claim_id in _selected(ids, known, runs)
    ]


def write_part(root: Path, figure: str, profile: str, entries: Sequence[Entry]) -> Path:
    """Write `build/claims/<figure>.<profile>.json` over what an earlier run of the figure at this profile wrote."""
    written = datetime.now(UTC).isoformat(timespec="seconds")
    part = Part.model_validate({"figure": figure, "profile": profile, "written": written, "entries": list(entries)})
    path = claims_folder(root) / f"{figure}.{profile}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(part.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def merged(root: Path, profile: str | None = None) -> list[Entry]:
    """One entry for every claim, in the order of `claims.yaml`, from the parts written (with `profile`: only those of
    that profile). Where two figures give the same claim, an evaluated entry wins, then the larger profile, then the
    later one. Raises `ValueError` naming a part that cannot be read."""
    best: dict[str, Entry] = {}
    for part in sorted(_parts(root), key=lambda part: part.written):
        if profile in (None, part.profile):
            for entry in part.entries:
                if entry.id not in best or _rank(entry) >= _rank(best[entry.id]):
                    best[entry.id] = entry
    known = evaluators()
    return [best.get(claim_id) or _unevaluated(claim_id, claim_id in known) for claim_id in load_claims()]


def counts(entries: Iterable[Entry]) -> dict[str, Counter[str]]:
    """Verdicts by group; fitted claims that are reproduced are counted as "reproduced (fitted)"."""
    found: dict[str, Counter[str]] = {}
    for entry in entries:
        fitted = entry.role == "fitted" and entry.verdict is Outcome.REPRODUCED
        found.setdefault(entry.group, Counter())[f"{entry.verdict} (fitted)" if fitted else str(entry.verdict)] += 1
    return found


def commit_full(root: Path) -> Path:
    """Bring `figures/claims.json` up to date with the full-profile parts; claims that these do not evaluate keep the
    line they have there, with the commit it is from, unless their own figure ran again and could no longer tell."""
    path = root / "figures" / "claims.json"
    kept = {entry.id: entry for entry in load(path)} if path.is_file() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [e if _replaces(e, kept.get(e.id)) else kept[e.id] for e in merged(root, "full")]
    path.write_text(dump(entries), encoding="utf-8")
    return path


def _replaces(new: Entry, old: Entry | None) -> bool:
    """A simulation that cannot tell takes back what its figure said before, but not what hardware showed."""
    if old is None or new.verdict is not Outcome.NOT_EVALUATED:
        return True
    return new.figure != "" and new.figure == old.figure and "hw" not in old.source


def current(root: Path) -> list[Entry]:
    """The committed ledger, with every claim in the order and words of today's `claims.yaml`; one that was never
    evaluated says what is missing today."""
    path, known = root / "figures" / "claims.json", evaluators()
    kept = {entry.id: entry for entry in load(path)} if path.is_file() else {}
    lines = []
    for claim_id in load_claims():
        blank = _unevaluated(claim_id, claim_id in known)
        entry = kept.get(claim_id, blank)
        words = blank.model_dump(include={"group", "unit", "what", "expected"})
        lines.append(entry.model_copy(update=words) if entry.figure else blank)
    return lines


def load(path: Path) -> list[Entry]:
    """Read what `dump` wrote. Raises `ValidationError` for anything else."""
    return TypeAdapter(list[Entry]).validate_json(path.read_text(encoding="utf-8"))


def dump(entries: Iterable[Entry]) -> str:
    """The ledger as JSON, for `basin claims --json` and `figures/claims.json`."""
    return json.dumps([entry.model_dump(mode="json") for entry in entries], indent=1, ensure_ascii=False) + "\n"


@cache
def commit(root: Path) -> str:
    """The checkout's commit, with "+" if tracked files differ from it; "" outside a repository."""
    try:
        text = subprocess.check_output(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=root,
            text=True,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return text.strip()


def jsonable(value: Any) -> Any:
    """Plain Python: NumPy scalars unwrapped, infinity as "never", NaN as None."""
    if isinstance(value, dict):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [jsonable(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "never"
    return value


def _selected(ids: Iterable[str], known: dict[str, Evaluator], runs: Runs) -> list[str]:
    chosen: set[str] = set()
    for pattern in ids:
        matches = [claim_id for claim_id in load_claims() if fnmatchcase(claim_id, pattern)]
        if not matches:
            raise ValueError(f"claims: {pattern!r} matches no id of claims.yaml")
        possible = [i for i in matches if i in known and all(runs.get(arm) for arm in known[i].arms)]
        chosen.update(matches if matches == [pattern] else possible)
    return [claim_id for claim_id in load_claims() if claim_id in chosen]


def _entry(claim_id: str, evaluator: Evaluator | None, runs: Runs, source: str) -> Entry:
    used = [run for arm in (evaluator.arms if evaluator else ()) for run in runs.get(arm, ())]
    metas = [getattr(run, "meta", {}) for run in used]
    sources = sorted({str(run.meta.get("source")) if isinstance(run, Records) else source for run in used})
    try:
        if evaluator is None:
            raise NotObserved("no evaluator is written for it")
        found = evaluate(evaluator, runs)
        # Measured and simulated runs together are a comparison of the two: measured enough to be judged.
        verdict = judge(evaluator.claim, found.obtained, simulated="hw" not in sources)
    except NotObserved as reason:
        found, verdict = Evaluation(None, (), ""), Verdict(Outcome.NOT_EVALUATED, str(reason))
    return _unevaluated(claim_id, evaluator is not None).model_copy(
        update={
            "obtained": jsonable(found.obtained),
            "per_seed": jsonable(found.per_seed),
            "verdict": verdict.outcome,
            "why": verdict.why,
            "note": found.note,
            "source": "+".join(sources),
            "seeds": sorted({int(meta["seed"]) for meta in metas if "seed" in meta}),
        }
    )


def _unevaluated(claim_id: str, has_evaluator: bool) -> Entry:
    claim = load_claims()[claim_id]
    why = "no run yet" if has_evaluator else "no evaluator is written for it"
    return Entry(
        id=claim.id, group=claim.group, unit=claim.unit, what=claim.what, expected=jsonable(claim.expect), why=why
    )


def _parts(root: Path) -> list[Part]:
    parts = []
    for path in sorted(claims_folder(root).glob("*.json")):
        try:
            parts.append(Part.model_validate_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: not a claims part of this version; run its figure again ({error})") from error
    return parts


def _rank(entry: Entry) -> tuple[bool, int]:
    return entry.verdict is not Outcome.NOT_EVALUATED, PROFILES.index(entry.profile)
