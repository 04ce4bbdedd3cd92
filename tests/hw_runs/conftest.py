"""Deployments of the fake engine, on ports that are free now."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from hw_runs.checks import Gpu
from hw_runs.deployment import Deployment
from hw_runs.processes import free_port


class FakeMachine:
    """A machine that has whatever the test says."""

    def __init__(self, gpus=None, gib=1000.0, busy=(), versions=None) -> None:
        self._gpus, self._gib, self._busy, self._versions = gpus, gib, busy, versions

    def gpus(self):
        return self._gpus

    def available_gib(self):
        return self._gib

    def port_is_free(self, port):
        return port not in self._busy

    def versions(self, python, packages):
        return dict(packages) if self._versions is None else {name: self._versions.get(name) for name in packages}


def h200(number, free_gib=140.0, name="NVIDIA H200"):
    return Gpu(number, name, free_gib * 1024, 143771, "580.65.06", "1980", "3201", "700.00")


@pytest.fixture
def machine():
    return FakeMachine


@pytest.fixture
def fake(tmp_path):
    """`fake(**changes)`: a deployment of the fake engine, and with `file=True` the path of its YAML file."""

    def make(file=False, **changes):
        fields = {
            "name": "fake",
            "description": "no engine at all",
            "engine": "vllm",
            "interpreter": {
                "path": sys.executable,
                "variable": "BASIN_NO_SUCH_VARIABLE",
                "setup": "make setup",
                "packages": {"basin-artifact": version("basin-artifact")},
            },
            "launch": [str(Path(__file__).with_name("fake_engine.py"))],
            "model": {"path": "no-model", "served_name": "fake", "bytes_per_token": 1},
            "host_gib": 0.01,
            "start_s": 60,
            "flags": {"block-size": 32, "num-gpu-blocks-override": 1000, "enable-prefix-caching": True},
            "instances": [{"role": "unified", "port": free_port()}],
            "gateway_port": free_port(),
            "gateway": {"log-level": "warning"},
            "expected": {"prefill_cache_tokens": 32000, "decode_kv_tokens": 32000, "source": "flags"},
            "policies": {"none": {}, "hicache": {}, "budgeter": {"options": {"output_tokens": 8}}, "session-cap": {}},
            **changes,
        }
        path = tmp_path / "fake.yaml"
        path.write_text(yaml.safe_dump(fields))
        return str(path) if file else Deployment.model_validate(fields)

    return make
