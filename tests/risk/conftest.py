"""`basin risk` as a function: options as keyword arguments, what it printed as the result."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sim.risk.cli import risk


@pytest.fixture
def call() -> Callable[..., tuple[int, str, str]]:
    """Exit code, standard output and standard error."""
    app = typer.Typer()
    app.command()(risk)

    def run(*args: str, **options: object) -> tuple[int, str, str]:
        words = [w for name, value in options.items() for w in (f"--{name.replace('_', '-')}", str(value))]
        result = CliRunner().invoke(app, [*args, *words])
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture
def answer(call: Callable[..., tuple[int, str, str]]) -> Callable[..., dict[str, Any]]:
    """The JSON answer of a call that must succeed."""

    def run(*args: str, **options: object) -> dict[str, Any]:
        code, out, err = call(*args, "--json", **options)
        assert code == 0, err
        return json.loads(out)

    return run
