"""Real engines for the tests marked `engine`, started once for a module and torn down by process id."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_support"))
from basin_engine_support import serve


@pytest.fixture(scope="session")
def engines():
    """The deployment helper, or a skip that says how to get an engine."""
    if not serve.PYTHON.exists():
        pytest.skip(f"no engine: {serve.PYTHON} is absent; see hw_runs/requirements-sglang-cpu.txt")
    return serve


@pytest.fixture(scope="session")
def references(engines):
    """What an aggregated engine answers: kind, seeds, turns, first prompt -> outputs by seed; one engine a kind."""
    known = {}

    def answers(kind, wanted, tokens=8):
        missing = [key for key in wanted if (kind, tokens, *key) not in known]
        if missing:
            with engines.deploy(kind, ["aggregated"], {"aggregated": ["--max-total-tokens", "32768"]}) as deployment:
                for seeds, turns, first in missing:
                    played = engines.play_all(deployment, seeds, 4, turns, first, tokens=tokens)
                    known[kind, tokens, seeds, turns, first] = [p.outputs for p in played]
        return [known[kind, tokens, *key] for key in wanted]

    return answers
