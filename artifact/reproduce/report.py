"""One self-contained page with all figures and verdicts: `build/report.html`."""

import base64
import json
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from artifact.reproduce.claim_table import paper_order, question
from artifact.reproduce.ledger import Entry, commit, counts, current, merged
from artifact.reproduce.paths import figures_folder
from artifact.reproduce.render import OUTCOMES, origin, text, verdict
from artifact.reproduce.verdict import Outcome


class Picture(NamedTuple):
    """A saved figure: its name, its notebook's question, its PNG as a data URI, and its provenance."""

    name: str
    question: str
    uri: str
    about: dict[str, Any]


def pictures(root: Path) -> list[Picture]:
    """Every figure saved, paper A's first; of one that was saved at several profiles, the latest."""
    latest: dict[str, Path] = {}
    for folder in (figures_folder(root, "full"), figures_folder(root, "quick")):
        for png in folder.glob("*.png"):
            if png.stem not in latest or png.stat().st_mtime > latest[png.stem].stat().st_mtime:
                latest[png.stem] = png
    return [_picture(root, latest[name]) for name in sorted(latest, key=paper_order)]


def entries(root: Path) -> tuple[list[Entry], set[str]]:
    """Every claim: as it came out here if it was evaluated here, else as committed; and the ids of the former."""
    here = {entry.id: entry for entry in merged(root) if entry.verdict is not Outcome.NOT_EVALUATED}
    return [here.get(entry.id, entry) for entry in current(root)], set(here)


def build(root: Path) -> Path:
    """Write the page and return its path."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(text=text, verdict=verdict, origin=origin)
    template = environment.from_string((files("artifact.reproduce") / "report.html").read_text(encoding="utf-8"))
    rows, here = entries(root)
    groups: dict[str, list[Entry]] = {}
    for entry in rows:
        groups.setdefault(entry.group, []).append(entry)
    page = template.render(
        commit=commit(root), pictures=pictures(root), groups=groups, here=here, counts=counts(rows), outcomes=OUTCOMES
    )
    path = root / "build" / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _picture(root: Path, png: Path) -> Picture:
    sidecar = png.with_suffix(".json")
    about = json.loads(sidecar.read_text(encoding="utf-8")) if sidecar.is_file() else {}
    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    return Picture(png.stem, question(root, png.stem), uri, about)
