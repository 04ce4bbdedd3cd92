"""`basin serve` as a person runs it, with the real gateway before an engine without a model."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hw_runs.checks import Machine
from hw_runs.commands import chat
from hw_runs.deployment import load_deployment
from hw_runs.serve_cli import serve

PATIENCE_S = 150.0
BASIN = str(Path(sys.executable).with_name("basin"))


def basin(*words):
    app = typer.Typer()
    app.command()(serve)
    return CliRunner().invoke(app, words)


def test_a_dry_run_needs_no_gpu_and_starts_nothing():
    told = basin("h200-1p3d", "--policy", "basin-prior", "--dry-run")
    assert told.exit_code == 0
    assert told.stdout.count("sglang.launch_server") == 4 and "basin gateway" in told.stdout
    assert "would not start here" in told.stderr


def test_what_cannot_be_served_ends_with_the_reasons(fake):
    told = basin("h200-1p3d", "--policy", "budgeter", "--dry-run")
    assert told.exit_code == 2 and "it runs none, hicache" in told.stderr
    told = basin(fake(file=True, host_gib=10_000), "--policy", "none")
    assert told.exit_code == 2 and "needs 10000" in " ".join(told.stderr.split())


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_serves_until_it_is_told_to_end(fake, number):
    path = fake(file=True)
    deployment = load_deployment(path)
    narrow = os.environ | {"COLUMNS": "20"}  # narrower than what is waited for: it must come in one line all the same
    process = subprocess.Popen(
        [BASIN, "serve", path, "--policy", "budgeter"], stderr=subprocess.PIPE, text=True, env=narrow
    )
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    try:
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if "Ctrl-C ends everything" in line:
                break
        else:
            pytest.fail(f"it ended, or was killed after {PATIENCE_S:g} s, and never said that it serves:\n{told}")
        request = urllib.request.Request(
            f"{deployment.gateway_url}/v1/chat/completions",
            json.dumps(chat(deployment, "hello")).encode(),
            {"content-type": "application/json", "x-session-id": "s"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.loads(response.read())["usage"]["prompt_tokens"] == 5
        with urllib.request.urlopen(f"{deployment.gateway_url}/sessions?limit=0", timeout=30) as response:
            state = json.loads(response.read())
        assert state["policy"] == "budgeter" and state["capacity"]["prefill_cache_tokens"] in (None, 32000)
        os.kill(process.pid, number)
        process.wait(60)
    finally:
        patience.cancel()
        process.kill()
    end = time.monotonic() + 20
    while not all(map(Machine().port_is_free, deployment.ports())) and time.monotonic() < end:
        time.sleep(0.1)
    assert all(map(Machine().port_is_free, deployment.ports()))
