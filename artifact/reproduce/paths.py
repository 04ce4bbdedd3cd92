"""Where the results go, below the repository root."""

from pathlib import Path

PROFILES = ("smoke", "quick", "full")
SOURCES = ("sim", "hw")


def repository_root() -> Path:
    """The checkout this package runs from (an editable install), or else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def figures_folder(root: Path, profile: str) -> Path:
    """Full-profile figures are committed; the others are build products."""
    return root / "figures" if profile == "full" else root / "build" / "figures"


def claims_folder(root: Path) -> Path:
    return root / "build" / "claims"


def check_profile(profile: str) -> str:
    """Raises `ValueError` naming the profiles for an unknown one."""
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is none of {', '.join(PROFILES)}")
    return profile


def check_source(source: str) -> str:
    """Raises `ValueError` naming the sources for an unknown one."""
    if source not in SOURCES:
        raise ValueError(f"source {source!r} is none of {', '.join(SOURCES)}")
    return source
