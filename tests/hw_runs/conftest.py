"""Deployments of the fake engine, on ports that are free now."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from hw_runs.deployment import Deployment
from hw_runs.processes import free_port


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
