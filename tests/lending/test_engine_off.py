"""Off means off: an engine pair with the plugin installed and no feature is the pair without it.

Both stand side by side and serve the same calls in pairs that follow each other within seconds, in alternating order,
so that what else the machine does hits both.
"""

import statistics
import time

import pytest

pytestmark = pytest.mark.engine

PAIRS, SESSIONS, TURNS, FIRST = 12, 4, 3, 150
FLAGS = {
    "prefill": ["--max-total-tokens", "8000"],
    "decode": ["--max-total-tokens", "8000", "--disaggregation-decode-enable-radix-cache"],
}
# SGLANG_PLUGINS keeps SGLang from loading ours at all; the CPU platform's own plugin stays.
ENVIRONMENTS = {"plain": {"SGLANG_PLUGINS": "basin_cpu"}, "ours": {"BASIN_SGLANG": '{"features": []}'}}
COUNTS = ("prompt_tokens", "generation_tokens", "cached_tokens", "num_requests", "kv_transfer_total_mb_sum")


@pytest.fixture(scope="module")
def deployments(engines):
    roles = ["prefill", "decode"]
    with (
        engines.deploy("llama", roles, FLAGS, ENVIRONMENTS["plain"]) as plain,
        engines.deploy("llama", roles, FLAGS, ENVIRONMENTS["ours"]) as ours,
    ):
        yield {"plain": plain, "ours": ours}


def interval(values):
    """The median's 96% confidence interval from twelve values: the third smallest and largest, by the sign test."""
    ordered = sorted(values)
    return ordered[2], ordered[-3]


def test_outputs_metrics_and_throughput_are_those_of_plain_sglang(engines, deployments):
    assert all("basin: 2 of 2 hooks applied; features: " in e.text() for e in deployments["ours"].engines)
    assert not any("basin:" in e.text() for e in deployments["plain"].engines)
    wall, cpu, outputs = [], [], {}
    for pair in range(-1, PAIRS):  # the first warms both up
        took, used = {}, {}
        for name in ("plain", "ours")[:: 1 if pair % 2 else -1]:
            deployment, seeds = deployments[name], [800 + SESSIONS * pair + i for i in range(SESSIONS)]
            before, began = sum(e.cpu_s() for e in deployment.engines), time.monotonic()
            outputs[name] = [p.outputs for p in engines.play_all(deployment, seeds, 4, TURNS, FIRST)]
            took[name] = time.monotonic() - began
            used[name] = sum(e.cpu_s() for e in deployment.engines) - before
        assert outputs["plain"] == outputs["ours"]
        if pair >= 0:
            wall.append(took["plain"] / took["ours"])
            cpu.append(used["plain"] / used["ours"])
    for what, ratios in (("throughput", wall), ("calls per processor second", cpu)):
        low, high = interval(ratios)
        print(f"{what}, with the plugin over without: median {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")
        assert low <= 1.02 and high >= 0.98, f"{what} differs: {ratios}"
    for role in ("prefill", "decode"):
        readings = [next(e for e in d.engines if e.role == role).metrics() for d in deployments.values()]
        names = [{name for name in reading if not name.startswith("basin_")} for reading in readings]
        assert names[0] == names[1]
        counted = [n for n in names[0] if any(part in n for part in COUNTS) and n.endswith(("_total", "_sum"))]
        assert counted and {n: readings[0][n] for n in counted} == {n: readings[1][n] for n in counted}
