"""Off means off: an engine with the plugin installed and no feature is the engine without it."""

import statistics
import time

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CASE = (tuple(range(800, 816)), 3, 150)
FLAGS = {"aggregated": ["--max-total-tokens", "16384"]}
# SGLANG_PLUGINS keeps SGLang from loading ours at all; the CPU platform's own plugin stays.
WITHOUT, WITH = {"SGLANG_PLUGINS": "basin_cpu"}, {"BASIN_SGLANG": '{"features": []}'}


def test_outputs_metrics_and_throughput_are_those_of_plain_sglang(engines):
    with (
        engines.deploy("llama", ["aggregated"], FLAGS, WITHOUT) as plain,
        engines.deploy("llama", ["aggregated"], FLAGS, WITH) as ours,
    ):
        assert "basin: 2 of 2 hooks applied; features: " in ours.engines[0].text()
        times = {"plain": [], "ours": []}
        outputs = {}
        for pair in range(6):
            for name, deployment in (("plain", plain), ("ours", ours))[:: 1 if pair % 2 else -1]:
                seeds = tuple(s + 100 * pair for s in CASE[0])
                began = time.monotonic()
                outputs[name, pair] = [p.outputs for p in engines.play_all(deployment, seeds, 8, *CASE[1:])]
                times[name].append(time.monotonic() - began)
            assert outputs["plain", pair] == outputs["ours", pair]
        names = [{n for n in d.engines[0].metrics() if not n.startswith("basin_")} for d in (plain, ours)]
        assert names[0] == names[1]
        ratios = [p / o for p, o in zip(times["plain"], times["ours"], strict=True)]
        print(f"throughput with the plugin over without: median {statistics.median(ratios):.3f} of {ratios}")
        assert 0.85 <= statistics.median(ratios) <= 1.18
