"""Real traces, where they are at hand: the folder BASIN_TRACES, or `traces` in a folder `shared` beside the project."""

import os
import time
from pathlib import Path

import pytest

from artifact.workload.formats import TraceError, load
from artifact.workload.stats import workload_stats

TRACES = Path(os.environ.get("BASIN_TRACES", Path(__file__).parents[2].parent / "shared" / "traces"))

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces in {TRACES} (set BASIN_TRACES)")

# file: format, sessions, calls, and of its published summary the medians of prompt, output and new tokens
# (first calls included in the last one)
PUBLISHED = {
    "tb_core_mini_swe_agent.jsonl": ("native", 171, 3485, 5.6, 79),
    "claude_code_weka.jsonl": ("native", 692, 45542, 101, 217),
    "swebench_mini_swe_agent_lmcache.jsonl": ("native", 20, 402, 5.2, 94),
    "multi_swe_bench_java_swe_agent.jsonl": ("native", 448, 9514, 11.6, 70),
    "swe_rebench_claude_code_agentcgroup.jsonl": ("native", 213, 8100, None, None),
    "tracelab_multi_session_large.csv": ("tracelab", 48, 303, None, None),
    "tracelab_session_example.csv": ("tracelab", 1, 11, None, None),
}


def real(name: str) -> Path:
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not in {TRACES}")
    return TRACES / name


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_file_agrees_with_its_summary(name: str) -> None:
    format, sessions, calls, prompt_k, output = PUBLISHED[name]
    result = load(real(name))
    found = workload_stats(result)
    assert (result.format, found.sessions, found.calls, result.skipped) == (format, sessions, calls, ())
    if prompt_k is not None:
        assert found.prompt_p50 / 1000 == pytest.approx(prompt_k, abs=0.5)
        assert found.output_p50 == output


def test_files_of_other_kinds_are_refused() -> None:
    for name in ("tb_core_openhands_steps.jsonl", "azure2023_code.csv", "mooncake_conversation.csv"):
        with pytest.raises(TraceError, match="in no known trace format"):
            load(real(name))


def test_kept_context_of_the_consistent_example_is_all_there_was() -> None:
    # Its authors made each prefix the whole context before: preceding prompt and output.
    result = load(real("tracelab_multi_session_large.csv"))
    for t in result:
        for i in range(1, t.n_calls):
            assert t.prompt_tokens[i] - t.new_tokens[i] == t.prompt_tokens[i - 1]
            assert t.new_tokens[i] >= t.output_tokens[i - 1]


def test_fifty_thousand_calls_load_in_well_under_a_second() -> None:
    file = real("claude_code_weka.jsonl")  # 45,542 calls in 0.1 s on a busy core
    best_s = float("inf")
    for _ in range(3):
        start = time.process_time()
        load(file)
        best_s = min(best_s, time.process_time() - start)
    assert best_s < 1.0
