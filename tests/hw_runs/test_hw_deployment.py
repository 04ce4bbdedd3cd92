"""Deployments as data, and the commands that they stand for."""

import shlex
from pathlib import Path

import pytest
import typer

from artifact.baselines.registry import POLICIES
from artifact.control.capacity import Capacities
from artifact.gateway.cli import gateway
from artifact.lending.plugin import SGLANG_VERSION
from artifact.lending.settings import VARIABLE, parse
from artifact.reproduce.scenarios_policies import PROTOTYPE_POLICIES
from hw_runs.commands import Entry, commands, flag_words
from hw_runs.deployment import known_deployments, load_deployment
from hw_runs.serve import dry_run, planned, with_pool

GPU = [name for name in known_deployments() if name.startswith("h")]
ALL = [(name, policy) for name in known_deployments() for policy in load_deployment(name).policies]


def flat(deployment, policy):
    return {command.name: command for group in planned(deployment, policy) for command in group}


def test_the_published_deployments_are_there():
    assert {"h200-1p3d", "h200-1p3d-gpu-only", "h100-1p1d", "h200-swe-pro", "cpu-vllm", "cpu-sglang-1p1d"} <= set(
        known_deployments()
    )


def test_expected_capacities_are_the_published_ones():
    """Paper A §3.1: 1.09M tokens of prefix cache, 1.66M of decode KV; §7.1: a host tier of twice the prefix cache."""
    assert load_deployment("h100-1p1d").capacities() == Capacities(1_090_000, 1_660_000, 0)
    assert load_deployment("h100-1p1d-host").capacities().host_cache_tokens == 2_180_000
    one = load_deployment("h200-1p3d").capacities()
    assert one.host_cache_tokens == 2 * one.prefill_cache_tokens
    assert load_deployment("h200-1p3d-gpu-only").capacities() == Capacities(
        one.prefill_cache_tokens, one.decode_kv_tokens, 0
    )


@pytest.mark.parametrize("name", GPU)
def test_every_system_of_the_paper_is_run_or_said_not_to_be(name):
    deployment = load_deployment(name)
    for policy in PROTOTYPE_POLICIES:
        assert (policy in deployment.policies) != (policy in deployment.unsupported)


@pytest.mark.parametrize("name", known_deployments())
def test_policies_exist_and_engines_are_of_the_extensions_version(name):
    deployment = load_deployment(name)
    assert set(deployment.policies) - {"none"} <= set(POLICIES)
    if deployment.engine == "sglang":
        assert deployment.interpreter.packages["sglang"] == SGLANG_VERSION


@pytest.mark.parametrize(("name", "policy"), ALL)
def test_the_gateway_understands_its_command(name, policy, tmp_path):
    words = flat(load_deployment(name), policy)["gateway"].words
    app = typer.Typer()
    app.command(name="gateway")(gateway)
    assert words[1] == "gateway"
    typer.main.get_command(app).make_context("gateway", list(words[2:]))


@pytest.mark.parametrize(("name", "policy"), ALL)
def test_what_the_extension_is_told_it_understands(name, policy):
    for command in flat(load_deployment(name), policy).values():
        parse(command.environment.get(VARIABLE, ""))


def test_1p3d_is_four_engines_on_four_gpus_a_router_and_a_gateway():
    found = flat(load_deployment("h200-1p3d"), "hicache")
    assert list(found) == ["prefill-0", "decode-1", "decode-2", "decode-3", "router", "gateway"]
    assert [found[name].environment["CUDA_VISIBLE_DEVICES"] for name in list(found)[:4]] == ["0", "1", "2", "3"]
    prefill, decode = found["prefill-0"].shell(), found["decode-1"].shell()
    assert "--enable-hicache --hicache-ratio 2.0" in prefill and "hicache" not in decode
    assert "--disaggregation-mode prefill" in prefill and "--disaggregation-mode decode" in decode
    assert "--page-size 64" in prefill and "BASIN_SGLANG" not in prefill
    assert "--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001" in found["router"].shell()
    assert "hicache" not in flat(load_deployment("h200-1p3d-gpu-only"), "hicache")["prefill-0"].shell()


def test_basins_engines_reserve_late_and_lend():
    found = flat(load_deployment("h200-1p3d"), "basin-prior")
    assert parse(found["decode-1"].environment[VARIABLE]).features == {"order", "late", "lend"}
    assert "--disaggregation-decode-allocation-policy prefill_complete" in found["prefill-0"].shell()
    assert "--disaggregation-decode-enable-radix-cache" in found["decode-3"].shell()
    assert "--hints" in found["gateway"].words and "--priority-low-first" in found["gateway"].words
    # the feature `order` and the engine's own priority scheduling would sort the same queues
    assert not any("--enable-priority-scheduling" in command.words for command in found.values())


@pytest.mark.parametrize("name", GPU)
def test_crossflow_is_placed_by_the_gateway_and_computed_by_decode(name):
    found = flat(load_deployment(name), "crossflow")
    decodes = [command for name, command in found.items() if name.startswith("decode")]
    assert decodes and all(parse(command.environment[VARIABLE]).features == {"elastic"} for command in decodes)
    assert all("--disaggregation-decode-enable-radix-cache" in command.words for command in decodes)
    assert {"--elastic", "--hints"} <= set(found["gateway"].words) and "--priority" not in found["gateway"].words
    assert parse(found["decode-1"].environment[VARIABLE]).itl_slo_s == 0.05
    both = flat(load_deployment(name), "composition")
    assert parse(both["decode-1"].environment[VARIABLE]).features == {"order", "pin", "elastic"}
    assert {"--elastic", "--hints", "--priority-low-first"} <= set(both["gateway"].words)


def test_a_dry_run_is_shell_and_names_every_process():
    text = dry_run(planned(load_deployment("cpu-sglang-1p1d"), "basin"))
    for line in text.splitlines():
        assert line == "" or line.startswith("# ") or len(shlex.split(line)) > 3
    assert {f"# {name}" for name in ("prefill-0", "decode-1", "router", "gateway")} <= set(text.splitlines())


def test_the_gateway_is_told_what_the_engines_have_reported():
    entry = Entry("none", Path("token"), capacities=Capacities(10, 20, 30))
    words = commands(load_deployment("cpu-vllm"), "none", entry)[-1][0].shell()
    assert "--prefill-cache-tokens 10 --decode-kv-tokens 20 --host-cache-tokens 30" in words


def test_switches_and_values_of_flags():
    assert flag_words({"a": True, "b": False, "c": 3, "d": "x y"}) == ["--a", "--c", "3", "--d", "x y"]


def test_a_pool_is_whole_blocks_and_expected():
    deployment = with_pool(load_deployment("cpu-vllm"), 100_001)
    assert deployment.flags["num-gpu-blocks-override"] == 3125
    assert deployment.capacities() == Capacities(100_000, 100_000, 0)


def test_errors_say_what_there_is(fake, tmp_path):
    with pytest.raises(ValueError, match=r"no deployment 'h300'.*cpu-vllm"):
        load_deployment("h300")
    with pytest.raises(ValueError, match=r"does not run policy 'crossflow': no engine for it"):
        fake(unsupported={"crossflow": "no engine for it"}).policy("crossflow")
    with pytest.raises(ValueError, match=r"does not run policy 'magic': it runs none, hicache"):
        fake().policy("magic")
    path = tmp_path / "two.yaml"
    path.write_text("extends: cpu-vllm\nname: two\ngateway_port: 30000\n")
    with pytest.raises(ValueError, match=r"ports: \[30000\] are used twice"):
        load_deployment(str(path))
    path.write_text("extends: cpu-vllm\ngpus: {name: H200, free_gib: 10}\n")
    with pytest.raises(ValueError, match="every instance has a gpu"):
        load_deployment(str(path))
    path.write_text("extends: cpu-vllm\nexpected: {prefill_cache_tokens: null}\n")
    with pytest.raises(ValueError, match="without a calibration"):
        load_deployment(str(path))
    path.write_text("extends: cpu-vllm\nflagz: {}\n")
    with pytest.raises(ValueError, match="flagz"):
        load_deployment(str(path))


def test_a_file_that_extends_says_only_what_differs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: h200-1p3d\nname: mine\nflags: {mem-fraction-static: 0.8}\n")
    mine = load_deployment(str(path))
    assert mine.flags == {**load_deployment("h200-1p3d").flags, "mem-fraction-static": 0.8}
    assert mine.instances == load_deployment("h200-1p3d").instances
