"""One run of this simulator in a process of its own; prints its times and results as JSON.

python tests/bench/run_ours.py SCENARIO.json
"""

import json
import sys
import time
from pathlib import Path

import pyarrow.compute as pc

from sim.run import run
from sim.scenario import Scenario


def main(scenario_path: str) -> None:
    """CPU and wall seconds of loading the trace, planning, simulating and assembling the records."""
    scenario = Scenario.model_validate_json(Path(scenario_path).read_text())
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    records = run(scenario)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    prompt_tokens, cached_tokens = (pc.sum(records.calls[f"{kind}_tokens"]).as_py() for kind in ("prompt", "cached"))
    result = {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "calls": records.calls.num_rows - records.calls["finished_s"].null_count,
        "prompt_tokens": prompt_tokens,
        "hit": cached_tokens / prompt_tokens,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
