"""Machine code of the simulator's hot modules, where `sim.compiling` has made it: the same records, byte for byte, in
about half the time.

It lies under `build/compiled` in a folder named by a hash of the sources, so that a source that has changed since is
interpreted until it is compiled again. BASIN_INTERPRETED=1 interprets in any case.
"""

import hashlib
import os
import platform
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE = (
    *("cache", "call", "colocated", "costs", "decode", "decode_batch", "elastic", "lent", "occupancy", "pd", "pins"),
    *("prefill", "ranks", "routers", "sglang"),
)
SOURCES = (*(f"sim/engine/{name}.py" for name in ENGINE), "sim/driver.py", "sim/session.py")
"""Their classes allow interpreted subclasses because mypyc then makes an object without calling its `__init__`, as
copies need it (`sim.copying`)."""
LIBRARY = "basin_simulator"
"""mypyc's name for what all modules share."""


def folder() -> Path:
    """Where the machine code of these sources is, if there is any, for this Python and machine."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {platform.machine()}".encode())
    for source in (*SOURCES, "sim/compiling.py"):
        digest.update((ROOT / source).read_bytes())
    return ROOT / "build" / "compiled" / digest.hexdigest()[:16]


def attach(package: str, search_path: list[str]) -> None:
    """Let a package find its compiled modules before their sources; for its `__init__`."""
    if os.environ.get("BASIN_INTERPRETED", "0") not in ("", "0"):
        return
    here = folder()
    if here.is_dir():
        _load_library(here)
        search_path.insert(0, str(here / package.replace(".", "/")))


def _load_library(at: Path) -> None:
    name = f"{LIBRARY}__mypyc"
    if name not in sys.modules:
        spec = spec_from_file_location(name, at / f"{name}{EXTENSION_SUFFIXES[0]}")
        assert spec is not None and spec.loader is not None
        library = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(library)
