"""What the gateway costs, beside other gateways over the same mock engine in the same run.

    BASIN_PEER_SMG='smg launch --port {port} --worker-urls {upstream}' pytest -m bench -s tests/bench/bench_gateway.py

`make bench-gateway` installs three peers and runs it beside them. A peer is any command that serves on {port} in front
of {upstream}, given by a variable of `PEERS`; one that is not given, is not installed or does not come up is named as
absent. Times are taken in turns with the mock alone, and of several rounds the best counts, for all alike.
BASIN_BENCH_JSON names a file for the numbers.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest
import uvloop
from gateway_load import Connection, load, request

from artifact.gateway.cli import raise_file_limit
from hw_runs.processes import free_port

pytestmark = pytest.mark.bench

HERE = Path(__file__).parent
OURS = shlex.join([sys.executable, "-c", "import typer, artifact.gateway.cli as c; typer.run(c.gateway)"]) + (
    " --upstream {upstream} --port {port} --policy none --log-level error"
)
PEERS = {"smg": "BASIN_PEER_SMG", "sglang-router": "BASIN_PEER_SGLANG_ROUTER", "litellm": "BASIN_PEER_LITELLM"}
CALLS, ROUNDS, PARKED = 2000, 5, 10_000
ROUND_S = 10.0
"""A slow peer gets fewer calls a round: what it streams in this time."""
PROMPT_BYTES = 4096
_TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, float]]:
    """Numbers by name: this gateway ("basin"), the peers that are there, and the two HTTP clients."""
    commands = {"basin": OURS} | {name: os.environ[key] for name, key in PEERS.items() if os.environ.get(key)}
    absent = {name: f"{key} is not set" for name, key in PEERS.items() if name not in commands}
    found: dict[str, dict[str, float]] = {}
    with serving(f"{sys.executable} {HERE / 'gateway_load.py'} {{port}}", "") as (mock_port, _):
        upstream = f"http://127.0.0.1:{mock_port}"
        for name, command in commands.items():
            try:
                with serving(command, upstream) as (port, pid):
                    found[name] = measure(mock_port, port, pid, CALLS)
            except (RuntimeError, OSError) as error:
                absent[name] = str(error)
        found["clients"] = client_cpu_ms(upstream + "/v1/chat/completions", CALLS)
        found["basin"] |= park(upstream, OURS, PARKED)
    show(found, absent)
    if path := os.environ.get("BASIN_BENCH_JSON"):
        Path(path).write_text(json.dumps({"results": found, "absent": absent}, indent=2) + "\n")
    return found


def test_overhead_is_within_its_bars(results: dict[str, dict[str, float]]) -> None:
    ours = results["basin"]
    assert ours["first_byte_added_ms_p50"] <= 0.8
    assert ours["cpu_ms_streamed"] <= 0.9
    assert ours["plain_per_cpu_s"] >= 2000  # by CPU time: the load generator shares the machine


def test_ten_thousand_parked_sessions_cost_little(results: dict[str, dict[str, float]]) -> None:
    ours = results["basin"]
    assert ours["parked"] >= PARKED - 1
    assert ours["kb_a_parked_session"] <= 30
    assert ours["parked_cpu_s_a_minute"] <= 1.0  # 1.7% of a core, the loops of an idle gateway included


def test_the_client_that_is_used_costs_less_than_the_other(results: dict[str, dict[str, float]]) -> None:
    clients = results["clients"]
    assert clients["aiohttp_cpu_ms_streamed"] < clients["httpx_cpu_ms_streamed"]


def measure(mock_port: int, port: int, pid: int, calls: int) -> dict[str, float]:
    """First byte added at concurrency 1 (ms), CPU a streamed call (ms), plain calls a second and a CPU second.

    Of `ROUNDS` rounds the best each, for the mock alone as for what stands before it: the others tell what else the
    machine had to do.
    """
    streamed = [request("m", "/v1/chat/completions", True, PROMPT_BYTES, f"s{i}") for i in range(16)]
    plain = [request("m", "/v1/chat/completions", False, PROMPT_BYTES, f"p{i}") for i in range(32)]
    wait_for_calls(port, plain[0])
    warm_s = uvloop.run(load(port, streamed, 100))  # connections, sessions, code paths
    share = min(calls // ROUNDS, max(20, round(100 * ROUND_S / warm_s)))
    first_s, streamed_cpu_s, plain_cpu_s, plain_wall_s = [], [], [], []
    for _ in range(ROUNDS):
        alone, through = Connection(mock_port), Connection(port)  # fresh: idle ones are closed by some after 5 s
        pairs = [(alone.first_byte_s(streamed[0]), through.first_byte_s(streamed[0])) for _ in range(share)]
        first_s.append([statistics.median(times) for times in zip(*pairs, strict=True)])
        streamed_cpu_s.append(-cpu_s(pid))
        uvloop.run(load(port, streamed, share))
        streamed_cpu_s[-1] += (now := cpu_s(pid))
        plain_wall_s.append(uvloop.run(load(port, plain, 4 * share)))
        plain_cpu_s.append(cpu_s(pid) - now)
    alone_s, through_s = (min(medians) for medians in zip(*first_s, strict=True))
    return {
        "first_byte_added_ms_p50": 1e3 * (through_s - alone_s),
        "first_byte_direct_ms_p50": 1e3 * alone_s,
        "cpu_ms_streamed": 1e3 * min(streamed_cpu_s) / share,
        "plain_per_s": 4 * share / min(plain_wall_s),
        "plain_per_cpu_s": 4 * share / min(plain_cpu_s),
    }


def client_cpu_ms(url: str, calls: int) -> dict[str, float]:
    """CPU (ms) that reading a streamed answer costs with each of the two HTTP clients the gateway could use."""
    body = request("m", "/", True, PROMPT_BYTES, "c").partition(b"\r\n\r\n")[2]

    async def with_aiohttp() -> None:
        async with aiohttp.ClientSession() as client:
            for _ in range(calls):
                async with client.post(url, data=body) as response:
                    while await response.content.readany():
                        pass

    async def with_httpx() -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(calls):
                async with client.stream("POST", url, content=body) as response:
                    async for _ in response.aiter_raw():
                        pass

    costs = {}
    for name, run in (("aiohttp", with_aiohttp), ("httpx", with_httpx)):
        began = time.process_time()
        uvloop.run(run())
        costs[f"{name}_cpu_ms_streamed"] = 1e3 * (time.process_time() - began) / calls
    return costs


def park(upstream: str, command: str, sessions: int) -> dict[str, float]:
    """KB of resident memory a parked session and CPU seconds a minute while they wait for the one that is let in.

    That one never ends: its session stays between two calls.
    """
    raise_file_limit()
    command = command.replace("--policy none", "--policy admission-only --options '{{\"admit\": 1}}'")
    with serving(command, upstream) as (port, pid):
        message = request("m", "/v1/chat/completions", True, PROMPT_BYTES, "{}")
        holder = hold(port, message.replace(b"x-session-id: {}", b"x-session-id: holder"))
        before = resident_kb(pid)
        held = [hold(port, message.replace(b"x-session-id: {}", b"x-session-id: %d" % i)) for i in range(sessions)]
        while (waiting := state(port)["calls"]["waiting"]) < sessions - 1:
            time.sleep(0.5)
        used_kb = resident_kb(pid) - before
        cpu = cpu_s(pid)
        time.sleep(10)
        cpu = cpu_s(pid) - cpu
        for connection in (holder, *held):
            connection.close()
    return {"parked": waiting, "kb_a_parked_session": used_kb / waiting, "parked_cpu_s_a_minute": 6 * cpu}


def hold(port: int, message: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(message)
    return connection


def state(port: int) -> dict[str, dict[str, int]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/sessions?limit=0", timeout=30) as response:
        answer: dict[str, dict[str, int]] = json.load(response)
        return answer


@contextlib.contextmanager
def serving(command: str, upstream: str) -> Iterator[tuple[int, int]]:
    """Start a command on a free port; its port and process id once it answers."""
    port = free_port()
    words = shlex.split(command.format(port=port, upstream=upstream))
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_for(port, process)
            yield port, process.pid
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{error}; the end of its output: {log.read()[-500:]!r}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], patience_s: float = 180) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end and process.poll() is None:
        for path in ("/health", "/v1/models"):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).close()
                return
        time.sleep(0.2)
    raise RuntimeError(f"{process.args!r} did not come up on port {port}")


def wait_for_calls(port: int, message: bytes, patience_s: float = 60) -> None:
    """Routers answer for themselves before they have found the engine."""
    end = time.monotonic() + patience_s
    while True:
        try:
            uvloop.run(load(port, [message], 1))
            return
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    total = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if pid in (int(entry.name), int(fields[2])):  # itself or its process group
                total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def resident_kb(pid: int) -> int:
    line = next(s for s in Path(f"/proc/{pid}/status").read_text().splitlines() if s.startswith("VmRSS"))
    return int(line.split()[1])


def show(results: dict[str, dict[str, float]], absent: dict[str, str]) -> None:
    for name, numbers in results.items():
        print(f"{name:16}" + "  ".join(f"{key} {value:.3g}" for key, value in numbers.items()))
    for name, reason in absent.items():
        print(f"{name:16}absent: {reason}")
