"""Registers the KV pools with NIXL as host memory, which is what they are without a GPU, and lets idle engines rest:
a scheduler and a NIXL progress thread would otherwise keep two cores busy for each engine."""

import functools
import os
import time
from typing import Any

IDLE_S = 2e-3
PROGRESS_US = 2000


def _host_memory(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("DRAM" if isinstance(a, str) and a == "VRAM" else a for a in args)
        kwargs = {k: "DRAM" if isinstance(v, str) and v == "VRAM" else v for k, v in kwargs.items()}
        return method(*args, **kwargs)

    return call


def _rest(result: Any, scheduler: Any) -> None:
    time.sleep(IDLE_S)


def _idle_gauges_each_second(reporter: Any) -> None:
    """The engine refreshes them every half minute, which every test that reads one would wait for."""
    collector = reporter.metrics_collector
    if time.perf_counter() > collector.last_log_time + 1:
        collector.last_log_time -= 30


def _poll_less_often() -> None:
    """NIXL's Python interface fixes the progress thread's pause at zero."""
    from nixl_cu12 import _api

    class Config(_api.nixlBind.nixlAgentConfig):  # type: ignore[misc, name-defined]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PROGRESS_US if name == "pthrDelay" else value)

    _api.nixlBind.nixlAgentConfig = Config


def register() -> None:
    from nixl._api import nixl_agent
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from basin_engine_support import host_cache

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", _rest, HookType.AFTER)
    reporter = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
    HookRegistry.register(f"{reporter}._maybe_log_idle_metrics", _idle_gauges_each_second, HookType.BEFORE)
    _poll_less_often()

    for name in ("register_memory", "get_xfer_descs", "get_reg_descs", "prep_xfer_dlist"):
        setattr(nixl_agent, name, _host_memory(getattr(nixl_agent, name)))

    host_cache.apply()
    if os.environ.get("TRITON_INTERPRET") == "1":
        from basin_engine_support import interpreted

        interpreted.apply()
