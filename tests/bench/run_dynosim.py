"""One run of DynoSim, NVIDIA Dynamo's mocker, on a Mooncake trace; prints its times and results as JSON.

    python tests/bench/run_dynosim.py TRACE.jsonl ROUTER BLOCK_TOKENS PREFILL DECODE PREFILL_TOKENS DECODE_TOKENS

Needs nothing but `ai-dynamo-runtime`, so that it runs in an environment without this project.
"""

import json
import sys
import time
from typing import Any

from dynamo._core import run_mocker_trace_replay


def main(trace: str, router: str, *numbers: str) -> None:
    """CPU and wall seconds of loading the trace, simulating and summing up; no rows for single calls are asked for."""
    block_tokens, prefill, decode, prefill_tokens, decode_tokens = map(int, numbers)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = run_mocker_trace_replay(
        [trace],
        prefill_engine_args=_engine("prefill", block_tokens, prefill_tokens),
        decode_engine_args=_engine("decode", block_tokens, decode_tokens),
        num_prefill_workers=prefill,
        num_decode_workers=decode,
        router_mode=router,
        trace_block_size=block_tokens,
    )
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    summary = result.summary
    row = {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "calls": summary["completed_requests"],
        "prompt_tokens": summary["total_input_tokens"],
        "hit": summary["prefix_cache_reused_ratio"],
    }
    print(json.dumps(row))


def _engine(kind: str, block_tokens: int, tokens: int) -> dict[str, Any]:
    """Blocks as large as the trace's: smaller ones only cost it time."""
    blocks = {"block_size": block_tokens, "num_gpu_blocks": tokens // block_tokens}
    return {"engine": {"backend": "vllm", "worker_type": kind, **blocks}}


if __name__ == "__main__":
    main(*sys.argv[1:])
