"""Real engines for the tests marked `engine`, shared as widely as their flags allow, and torn down by process id."""

import sys
import threading
import time
from contextlib import ExitStack
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
    """What the aggregated engine answers: kind, cases of (seeds, turns, first prompt) -> outputs by seed.

    With `margin`, each token must lead the next candidate by so much log-probability: what rounding could turn proves
    nothing about pages and states.
    """
    with ExitStack() as stack:
        started = {}

        def answers(kind, cases, tokens=8, margin=None):
            if kind not in started:
                flags = {"aggregated": ["--max-total-tokens", "32768"]}
                started[kind] = stack.enter_context(engines.deploy(kind, ["aggregated"], flags))
            ask = {"tokens": tokens} | ({"return_logprob": True, "top_logprobs_num": 2} if margin else {})
            played = [engines.play_all(started[kind], seeds, 4, *case, **ask) for seeds, *case in cases]
            if margin:
                least = [min(session.margins) for sessions in played for session in sessions]
                assert min(least) > margin, f"near ties, choose other seeds: {least}"
            return [[session.outputs for session in sessions] for sessions in played]

        yield answers


@pytest.fixture(scope="session")
def finish_order():
    """Submit calls one after the other; the order in which they were answered, and how many of them already were when
    the last was submitted."""

    def submit(call, priorities, gap_s=0.02):
        finished = []

        def one(i):
            call(i, priorities[i])
            finished.append(i)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(priorities))]
        for thread in threads[:-1]:
            thread.start()
            time.sleep(gap_s)  # so that arrival order is submission order
        answered = len(finished)
        threads[-1].start()
        for thread in threads:
            thread.join()
        return finished, answered

    return submit
