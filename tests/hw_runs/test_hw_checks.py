"""Checks before the start, on machines that lack something, and after it, on engines that say something else."""

import pytest
from fake_machine import FakeMachine, h200

from artifact.control.capacity import Capacities
from hw_runs.checks import Machine, Reported, cache_labels, deviations, parse_gpus, problems
from hw_runs.deployment import load_deployment
from hw_runs.processes import free_port

FOUR = [h200(i) for i in range(4)]


def of_h200(fake_python, **machine):
    deployment = load_deployment("h200-1p3d", interpreter={"path": str(fake_python)})
    return problems(deployment, "basin-prior", FakeMachine(**{"gpus": FOUR, **machine}))


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "python"
    path.touch()
    return path


def test_a_machine_that_has_everything_passes(python):
    assert of_h200(python) == []


def test_a_machine_without_gpus(python):
    (line,) = of_h200(python, gpus=None)
    assert "needs 4 H200" in line and "nvidia-smi finds none" in line


def test_a_missing_another_and_a_full_gpu_each_get_a_line(python):
    lines = of_h200(python, gpus=[h200(0), h200(1, name="NVIDIA A100"), h200(2, free_gib=20)])
    assert [line.split(":")[0] for line in lines] == ["GPU 1", "GPU 2", "GPU 3"]
    assert (
        "is a NVIDIA A100" in lines[0] and "20 GiB free of 140, needed are 130" in lines[1] and "[0, 1, 2]" in lines[2]
    )


def test_a_wrong_and_a_missing_version(python):
    lines = of_h200(python, versions={"sglang": "0.5.9", "nixl": "1.5.1", "basin-artifact": "0.1.0"})
    assert len(lines) == 2
    assert "sglang 0.5.9" in lines[0] and "tried is 0.5.23" in lines[0] and "make setup-sglang-gpu" in lines[0]
    assert "sglang-router is not installed" in lines[1]


def test_no_engine_at_all(tmp_path):
    (line,) = of_h200(tmp_path / "absent")
    assert "absent is absent" in line and "make setup-sglang-gpu" in line and "BASIN_SGLANG_GPU_PYTHON" in line


def test_too_little_memory_and_busy_ports(python):
    memory, ports = of_h200(python, gib=100.0, busy=(30001, 8000))
    assert "100 GiB available, h200-1p3d needs 200" in memory
    assert ports.startswith("ports in use: 8000, 30001")


def test_a_policy_that_is_not_run(python):
    deployment = load_deployment("h200-1p3d", interpreter={"path": str(python)})
    (line,) = problems(deployment, "budgeter", FakeMachine(gpus=FOUR))
    assert "does not run policy 'budgeter'" in line


def test_the_interpreter_can_be_named_by_its_variable(python, monkeypatch):
    monkeypatch.setenv("BASIN_VLLM_PYTHON", str(python))
    assert load_deployment("cpu-vllm").interpreter.find() == python


def test_this_machine(fake):
    machine, deployment = Machine(), fake()
    assert machine.available_gib() > 0
    assert machine.versions(deployment.interpreter.find(), ["basin-artifact", "no-such"]) == {
        **deployment.interpreter.packages,
        "no-such": None,
    }
    assert machine.port_is_free(free_port())
    assert problems(deployment, "hicache", machine) == []


def test_lines_of_nvidia_smi():
    common = "143771, 580.65.06, 1980, 3201"
    text = f"0, NVIDIA H200, 142860, {common}, 700.00\n1, NVIDIA H200, 1000, {common}, [N/A]\n"
    first, second = parse_gpus(text)
    assert (first.number, first.name, first.free_mib, first.driver) == (0, "NVIDIA H200", 142860, "580.65.06")
    assert second.free_mib == 1000 and second.power_limit == "[N/A]"


def reported(deployment, capacities, **flags):
    return Reported(capacities, {}, {instance.url: flags for instance in deployment.instances})


def test_capacities_beyond_the_tolerance_are_named():
    deployment = load_deployment("h100-1p1d")
    policy = deployment.policy("hicache")
    assert deviations(deployment, policy, reported(deployment, Capacities(1_060_000, 1_700_000, 0))) == []
    (line,) = deviations(deployment, policy, reported(deployment, Capacities(600_000, 1_660_000, 0)))
    assert "prefill_cache_tokens: the engines report 600,000, expected are 1,090,000 within 5%" in line


def test_flags_that_did_not_take_are_named():
    deployment = load_deployment("h100-1p1d")
    policy, right = deployment.policy("basin"), Capacities(1_090_000, 1_660_000, 0)
    told = {"page_size": 64, "enable_metrics": True, "disaggregation_decode_allocation_policy": "prefill_complete"}
    assert deviations(deployment, policy, reported(deployment, right, **told)) == []
    lines = deviations(deployment, policy, reported(deployment, right, **{**told, "page_size": 1}))
    assert len(lines) == 2 and "prefill at http://127.0.0.1:30000: --page-size is 1, the file says 64" in lines[0]


def test_labels_of_vllms_cache():
    page = 'x 1\nvllm:cache_config_info{block_size="32",enable_prefix_caching="True",num_gpu_blocks="2500"} 1.0\n'
    assert cache_labels(page) == {"block_size": "32", "enable_prefix_caching": "True", "num_gpu_blocks": "2500"}
    assert cache_labels("nothing\n") == {}
