"""What engines and hardware say of themselves while a run goes on, kept whole beside the run's records.

The tables of `Records` hold what all runs have in common; this table holds everything an engine exported, so that a
question that nobody had at the time can be asked of a run that cost GPU hours.
"""

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from artifact.gateway.engines import read_page
from hw_runs.deployment import Deployment

SCHEMA = pa.schema(
    [
        ("time_s", pa.float64()),  # since the run's start
        ("instance", pa.dictionary(pa.int16(), pa.string())),  # "<role>-<number>", or "gpu-<index>"
        ("name", pa.dictionary(pa.int16(), pa.string())),  # the engine's name of the metric
        ("value", pa.float64()),
    ]
)
FILE = "engines.parquet"
CPU_SECONDS = "process_group_cpu_seconds"
_GPU_QUERY = "index,utilization.gpu,clocks.sm,clocks.mem,power.draw,memory.used"
_GPU_NAMES = ("utilization_percent", "sm_clock_mhz", "memory_clock_mhz", "power_w", "memory_used_mib")
_TIMEOUT_S = 10


class Scraper:
    """Reads every instance's page, its process group's CPU time and the GPUs every `interval_s` between `start` and
    `stop`, in a thread of its own; a page that fails is left out. `groups`: process group by instance name;
    `on_reading` hears of the seconds since the start."""

    def __init__(
        self,
        deployment: Deployment,
        groups: Mapping[str, int],
        interval_s: float,
        on_reading: Callable[[float], None] = lambda now_s: None,
    ) -> None:
        self.deployment, self.groups, self.interval_s = deployment, dict(groups), interval_s
        self.on_reading = on_reading
        self.rows: list[tuple[float, str, str, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began_s = 0.0

    def start(self) -> None:
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:  # a run that failed early never started it
            self._thread.join()

    def save(self, folder: Path) -> None:
        columns: Sequence[Sequence[object]] = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(SCHEMA)
        arrays = [
            pa.array(column, pa.string()).dictionary_encode().cast(field.type)
            if pa.types.is_dictionary(field.type)
            else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ]
        pq.write_table(pa.table(arrays, schema=SCHEMA), folder / FILE, compression="zstd")

    def _run(self) -> None:
        while not self._over.is_set():
            due_s = time.monotonic() + self.interval_s
            now_s = time.monotonic() - self._began_s
            self.on_reading(now_s)
            for number, instance in enumerate(self.deployment.instances):
                name = f"{instance.role}-{number}"
                with (
                    suppress(OSError, ValueError),
                    urllib.request.urlopen(f"{instance.url}/metrics", timeout=_TIMEOUT_S) as page,
                ):
                    samples = read_page(page.read().decode("utf-8", "replace"), instance.role).samples
                    self.rows += [(now_s, name, metric, value) for metric, value in samples.items()]
            for name, group in self.groups.items():
                self.rows.append((now_s, name, CPU_SECONDS, group_cpu_s(group)))
            if self.deployment.gpus is not None:
                self.rows += [(now_s, *row) for row in gpu_readings(_ask_gpus)]
            self._over.wait(max(0.0, due_s - time.monotonic()))


def load_engines(folder: Path) -> pd.DataFrame:
    """`time_s`, `instance`, `name`, `value` of a saved run. Raises `FileNotFoundError` for one without."""
    return pq.read_table(folder / FILE).to_pandas()


def group_cpu_s(group: int, proc: Path = Path("/proc")) -> float:
    """User and system seconds of all living processes of a group."""
    ticks = 0
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # the name before may hold anything
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def gpu_readings(ask: Callable[[], str]) -> list[tuple[str, str, float]]:
    """(instance, name, value) from a page of `nvidia-smi`; what is not a number is left out."""
    rows = []
    for line in ask().splitlines():
        index, *values = (field.strip() for field in line.split(","))
        for name, value in zip(_GPU_NAMES, values, strict=False):
            with suppress(ValueError):
                rows.append((f"gpu-{index}", name, float(value)))
    return rows


def _ask_gpus() -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            ["nvidia-smi", f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        ).stdout
    return ""
