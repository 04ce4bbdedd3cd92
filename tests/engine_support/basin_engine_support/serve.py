"""Start real engines, talk to them, and tear them down by process id whatever happens.

Standard library and `hw_runs.processes`, which needs no more.
"""

import atexit
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw_runs.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("BASIN_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))
START_TIMEOUT_S = float(os.environ.get("BASIN_ENGINE_START_S", "300"))
COMMON = shlex.split(
    "--device cpu --attention-backend torch_native --skip-tokenizer-init --grammar-backend none --enable-metrics "
    "--enable-cache-report --disable-overlap-schedule --skip-server-warmup --context-length 4096 "
    "--max-running-requests 16 --sleep-on-idle"
)
DTYPE = {"llama": "float32", "gated-delta": "float16"}
KIND_FLAGS = {"llama": [], "gated-delta": ["--max-mamba-cache-size", "64"]}
_ENV = {"OMP_NUM_THREADS": "1", "SGLANG_PLATFORM": "basin_cpu"}
KIND_ENV = {
    "llama": _ENV,
    "gated-delta": {**_ENV, "TRITON_INTERPRET": "1", "SGLANG_MAMBA_CONV_DTYPE": "float16"},
}


def features(*names: str, **settings: Any) -> dict[str, str]:
    """The environment that switches features of the extension on."""
    return {"BASIN_SGLANG": json.dumps({"features": list(names), **settings})}


def pools(prefill: int, decode: int, *prefill_flags: str) -> dict[str, list[str]]:
    """Flags of an engine pair as lending wants it: memory in KV tokens, late reservation, decode's own prefix cache."""
    late = ["--disaggregation-decode-allocation-policy", "prefill_complete"]
    radix = ["--disaggregation-decode-enable-radix-cache", "--num-reserved-decode-tokens", "16"]
    return {
        "prefill": ["--max-total-tokens", str(prefill), *late, *prefill_flags],
        "decode": ["--max-total-tokens", str(decode), *late, *radix],
    }


def post(url: str, body: dict[str, Any], timeout: float = 600.0) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read() or b"null")


@dataclass(frozen=True)
class Forked:
    """A server that a preloaded process forked: what `Popen` says of a child of our own."""

    pid: int

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return -1
        return None

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("engine", timeout)
            time.sleep(0.05)


_PRELOADED: dict[str, subprocess.Popen[str]] = {}


def fork(kind: str, argv: list[str], env: dict[str, str], log: Path) -> Forked:
    """A server from the preloaded process of this kind, which is started on first use."""
    if kind not in _PRELOADED or _PRELOADED[kind].poll() is not None:
        process = subprocess.Popen(
            [str(PYTHON), "-m", "basin_engine_support.preload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **KIND_ENV[kind]},
            text=True,
        )
        _PRELOADED[kind] = process
        atexit.register(process.kill)
    process = _PRELOADED[kind]
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"argv": argv, "env": env, "log": str(log)}) + "\n")
    process.stdin.flush()
    return Forked(int(process.stdout.readline()))


class Engine:
    """One server process and its log; `role` is "aggregated", "prefill" or "decode"."""

    def __init__(
        self, kind: str, role: str, folder: Path, flags: Sequence[str], env: dict[str, str], preloaded: bool
    ) -> None:
        self.role, self.port, self.bootstrap_port = role, free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{role}-{self.port}.log"
        pd = ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        if role == "prefill":
            pd += ["--disaggregation-bootstrap-port", str(self.bootstrap_port)]
        if role == "decode":
            pd += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        argv = ["--model-path", str(model(kind)), *COMMON, "--dtype", DTYPE[kind], "--port", str(self.port)]
        argv += [*KIND_FLAGS[kind], *flags, *([] if role == "aggregated" else pd)]
        self.process: Forked | subprocess.Popen[bytes]
        if preloaded:
            self.process = fork(kind, argv, env, self.log)
            return
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), "-m", "basin_engine_support.launch", *argv],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **KIND_ENV[kind], **env},
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/model_info", timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(f"{self.role} did not start; the end of {self.log}:\n{self.text()[-3000:]}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def metrics(self, *labels: str) -> dict[str, float]:
        """Prometheus samples by name, summed over the series that carry all of `labels` (as `key="value"`)."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        totals: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#") and all(label in line for label in labels):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def cpu_s(self) -> float:
        """Processor seconds that the server and its children have used (Linux)."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid:  # its process group
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End the whole process group at once, as a crash would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a loaded machine may take its time to bury it
            self.process.wait(timeout=30)


_MODELS: dict[str, Path] = {}


def model(kind: str) -> Path:
    """The tiny model's folder, built once a session (its weights come from a fixed seed)."""
    if kind not in _MODELS:
        folder = Path(tempfile.mkdtemp(prefix=f"basin-tiny-{kind}-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        subprocess.run([str(PYTHON), "-m", "basin_engine_support.tiny", kind, str(folder)], check=True)
        _MODELS[kind] = folder
    return _MODELS[kind]


class Deployment:
    """Prefill and decode engines, or one aggregated engine, and a client that plays the router."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = list(engines)
        self.prefills = [e for e in engines if e.role == "prefill"]
        self.decodes = [e for e in engines if e.role == "decode"]
        self.aggregated = next((e for e in engines if e.role == "aggregated"), None)
        self._pool = ThreadPoolExecutor(64)
        self._rooms = random.Random(11)

    def generate(
        self, prompt: Sequence[int], tokens: int, decode: int = 0, prefill: int | None = 0, **extra: Any
    ) -> dict[str, Any]:
        """One call, greedy and of exactly `tokens` tokens; with `prefill` None it goes to the decode instance alone.
        Raises `HTTPError` or `OSError` as the engine gives it."""
        custom = extra.pop("basin", None)
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        if custom is not None:
            sampling["custom_params"] = {"basin": custom}
        body = {"input_ids": list(prompt), "sampling_params": sampling, **extra}
        if self.aggregated is not None:
            return post(f"{self.aggregated.url}/generate", body)
        source, target = self.prefills[prefill or 0], self.decodes[decode]
        body |= {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": source.bootstrap_port,
            "bootstrap_room": self._rooms.getrandbits(62),
        }
        if prefill is None:
            return post(f"{target.url}/generate", body)
        first = self._pool.submit(post, f"{source.url}/generate", body)
        try:
            return post(f"{target.url}/generate", body)
        finally:
            with suppress(Exception):
                first.result(timeout=120)

    def total(self, role: str, name: str, *labels: str) -> float:
        """A metric summed over the live engines of a role; 0 where none has it yet."""
        return sum(e.metrics(*labels).get(name, 0.0) for e in self.engines if e.role == role and e.alive)

    def empties(self, within_s: float = 60.0, **metrics: str) -> bool:
        """Whether the named metric of each role falls to zero."""
        return all(eventually(lambda r=role, m=name: self.total(r, m) == 0, within_s) for role, name in metrics.items())

    def switch(self, **settings: Any) -> None:
        """Change run-time settings of the plugin on every live engine."""
        for engine in self.engines:
            if engine.alive:
                self.switch_one(engine, **settings)

    def switch_one(self, engine: Engine, **settings: Any) -> None:
        values = {f"basin_{name}": float(value) for name, value in settings.items()}
        assert post(f"{engine.url}/set_internal_state", {"server_args": values}) == [True]

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def deploy(
    kind: str,
    roles: Sequence[str],
    flags: dict[str, Sequence[str]] | None = None,
    env: dict[str, str] | None = None,
    preloaded: bool = True,
) -> Iterator[Deployment]:
    """Engines of the given roles, ready; `flags` per role are added to the common ones. `preloaded=False` starts each
    as a user would, a process that imports everything."""
    model(kind)
    with tempfile.TemporaryDirectory(prefix="basin-engine-") as folder:
        engines: list[Engine] = []
        try:
            for role in roles:
                engines.append(Engine(kind, role, Path(folder), (flags or {}).get(role, ()), env or {}, preloaded))
            for engine in engines:
                engine.wait_ready()
            deployment = Deployment(engines)
            yield deployment
        finally:
            for engine in engines:
                engine.kill()


def conversation(seed: int, turns: int, first: int, grow: tuple[int, int], vocabulary: int = 1024) -> list[list[int]]:
    """New tokens that each turn appends to the context: a first prompt, then tool results.

    More turns of the same seed only add to what fewer turns give.
    """
    rng = random.Random(seed)
    lengths = (first if turn == 0 else rng.randint(*grow) for turn in range(turns))
    return [[rng.randrange(3, vocabulary) for _ in range(n)] for n in lengths]


@dataclass
class Played:
    """A conversation as an engine answered it."""

    outputs: list[list[int]]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    margins: list[float] = field(default_factory=list)
    """Log-probability by which each output token led the next, where the call asked for the first two."""


def play(
    deployment: Deployment, seed: int, turns: int, first: int, tokens: int = 8, lend: bool = False, **routing: Any
) -> Played:
    """Play one session turn by turn, every context its predecessor plus the output plus new tokens."""
    context: list[int] = []
    played = Played([])
    for turn, new in enumerate(conversation(seed, turns, first, (20, 60))):
        context += new
        if lend:
            routing["basin"] = {"session": f"session-{seed}", "retain": True}
        choices = {k: v(seed, turn) if callable(v) else v for k, v in routing.items()}
        answer = deployment.generate(context, tokens, **choices)
        played.outputs.append(answer["output_ids"])
        played.prompt_tokens += len(context)
        played.cached_tokens += answer["meta_info"]["cached_tokens"]
        for first_two in answer["meta_info"].get("output_top_logprobs") or ():
            played.margins.append(first_two[0][0] - first_two[1][0])
        context += answer["output_ids"]
    return played


def play_all(deployment: Deployment, seeds: Sequence[int], at_once: int, *args: Any, **kwargs: Any) -> list[Played]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda seed: play(deployment, seed, *args, **kwargs), seeds))


def eventually(check: Any, within_s: float) -> bool:
    """Poll until `check()` holds; idle engines refresh their gauges once a second."""
    deadline = time.monotonic() + within_s
    while not (held := check()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(held)
