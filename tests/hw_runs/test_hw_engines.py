"""The same commands on real engines on this machine's CPU, and the GPU deployments' flags against the real parser."""

import json
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from artifact.metrics import hit_rate
from artifact.records.schema import Records
from hw_runs.commands import chat
from hw_runs.deployment import known_deployments, load_deployment
from hw_runs.experiment import load_experiment, runs_of
from hw_runs.run import execute
from hw_runs.scrape import load_engines
from hw_runs.serve import CannotServe, planned, serving

pytestmark = pytest.mark.engine

PARSE = """
import basin_engine_support.torchvision_cpu
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for words in json.load(sys.stdin):
    parser.parse_args(words)
"""
ROUTE = PARSE.replace(
    "sglang.srt.server_args import ServerArgs", "sglang_router.router_args import RouterArgs"
).replace(
    "ServerArgs.add_cli_args(parser)",
    "RouterArgs.add_cli_args(parser, exclude_host_port=False)",
)


def python(deployment):
    found = load_deployment(deployment).interpreter.find()
    if not found.exists():
        pytest.skip(f"no engine: {found} is absent; `{load_deployment(deployment).interpreter.setup}` installs it")
    return found


def test_the_engine_knows_every_flag_of_the_gpu_deployments():
    engines, routers = [], []
    for name in known_deployments():
        deployment = load_deployment(name)
        if deployment.engine != "sglang":
            continue
        for policy in deployment.policies:
            for command in (c for group in planned(deployment, policy) for c in group):
                if command.name.startswith(("prefill", "decode")):
                    engines.append(list(command.words[1 + len(deployment.launch) :]))
                elif command.name == "router":
                    routers.append(list(command.words[1 + len(deployment.router.launch) :]))
    assert len(engines) > 60 and routers
    for script, words in ((PARSE, engines), (ROUTE, routers)):
        subprocess.run([python("cpu-sglang-1p1d"), "-c", script], input=json.dumps(words), text=True, check=True)


def served(deployment, policy):
    """A call through gateway, router and engines; its usage, and that of a second call that begins with its prompt."""
    with serving(deployment, policy) as running, running.gateway(policy):
        usages = []
        for text in ("a" * 700, "a" * 700 + "b" * 100):
            body = json.dumps(chat(deployment, text, 4)).encode()
            headers = {"content-type": "application/json", "x-session-id": "s"}
            request = urllib.request.Request(f"{deployment.gateway_url}/v1/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=120) as response:
                usages.append(json.loads(response.read())["usage"])
        return running.reported, usages


@pytest.mark.parametrize("policy", ["hicache", "basin"])
@pytest.mark.parametrize("name", ["cpu-vllm", "cpu-sglang-1p1d"])
def test_a_deployment_comes_up_serves_and_is_gone(name, policy):
    python(name)
    deployment = load_deployment(name)
    found, (first, second) = served(deployment, policy)
    assert found.capacities == deployment.capacities()
    assert (first["prompt_tokens"], second["prompt_tokens"]) == (700, 800), "a character is a token"
    assert second["prompt_tokens_details"]["cached_tokens"] >= 640
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{deployment.upstream}/health", timeout=5)


def metric(url, name):
    """A counter's value on a page, summed over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def answered(deployment, text):
    """What the model says to a prompt."""
    body = json.dumps(chat(deployment, text, 8)).encode()
    headers = {"content-type": "application/json", "x-session-id": text[:8]}
    request = urllib.request.Request(f"{deployment.gateway_url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=240) as response:
        return json.loads(response.read())["choices"][0]["message"]["content"]


@pytest.mark.parametrize("policy", ["crossflow", "composition"])
def test_calls_that_decode_computes_alone_get_the_answers_that_the_pair_gives(policy):
    """One by one nobody waits for prefill, so the pair computes them; twelve at once are shared with decode."""
    python("cpu-sglang-1p1d")
    deployment = load_deployment("cpu-sglang-1p1d")
    prompts = [f"{number:08d}" + chr(ord("a") + number) * 900 for number in range(12)]
    with serving(deployment, policy) as running, running.gateway(policy):
        decode = next(instance.url for instance in deployment.instances if instance.role == "decode")
        alone = [answered(deployment, prompt) for prompt in prompts]
        assert metric(deployment.gateway_url, "basin_elastic_calls_total") == 0
        for instance in deployment.instances:
            urllib.request.urlopen(urllib.request.Request(f"{instance.url}/flush_cache", method="POST"), timeout=60)
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(partial(answered, deployment), prompts))
        placed = metric(deployment.gateway_url, "basin_elastic_calls_total")
        assert 2 <= placed <= 10
        assert metric(decode, "basin_elastic_requests_total") == placed
        assert metric(decode, "basin_elastic_tokens_total") >= placed * 900
    assert together == alone


def test_an_engine_with_another_pool_than_the_files_is_not_used():
    python("cpu-vllm")
    wrong = load_deployment("cpu-vllm", expected={"prefill_cache_tokens": 160_000})
    with pytest.raises(CannotServe, match="report 80,000, expected are 160,000"), serving(wrong, "hicache"):
        raise AssertionError("not reached")


@pytest.mark.parametrize("name", ["cpu-smoke", "cpu-sglang-smoke"])
def test_an_experiment_on_a_real_engine(name, tmp_path, monkeypatch):
    """Both policies of the smoke experiments, through the path that GPU experiments take."""
    monkeypatch.setattr("hw_runs.experiment.repository_root", lambda: tmp_path)
    runs, _ = runs_of(load_experiment(name))
    python(runs[0].deployment)
    began = time.monotonic()
    execute(runs, say=print)
    print(f"{name}: {time.monotonic() - began:.0f} s")
    for run in runs:
        records = Records.load(run.path)
        assert records.calls.num_rows > 10 and 0.3 < hit_rate(records) <= 1
        assert records.meta["errors"] == {} and records.meta["versions"]
        assert len(load_engines(run.path)["name"].unique()) > 10
