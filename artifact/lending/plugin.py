"""Entry point of the group `sglang.srt.plugins`: installs the features that `BASIN_SGLANG` names, or nothing."""

import logging
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from artifact.lending import settings
from artifact.lending.hooks import Hook, merged, missing
from artifact.lending.runtime import RUNTIME

logger = logging.getLogger(__name__)

SGLANG_VERSION = "0.5.23"
MODULES = {
    "order": ("engine_order",),
    "late": ("engine_late",),
    "lend": ("engine_decode", "engine_prefill", "engine_host"),
    "pin": ("engine_pins",),
    "elastic": ("engine_elastic",),
}
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def register() -> None:
    """Called by SGLang in each of its processes. Stops the engine (`SystemExit`, which SGLang does not swallow as it
    does exceptions) when a feature was asked for that cannot be had in full: half a set of hooks loses memory."""
    text = os.environ.get(settings.VARIABLE, "")
    if not text.strip():
        return
    try:
        RUNTIME.settings = settings.parse(text)
        hooks = _hooks()
        _require_version(hooks)
    except (ValueError, ImportError) as error:
        raise SystemExit(f"basin: {error}") from error
    _install(hooks)


def _hooks() -> list[Hook]:
    chosen = [
        Hook(f"{_SCHEDULER}.set_internal_state", _switch),
        Hook(f"{_SCHEDULER}.__init__", _scheduler_init),
    ]
    for module in _modules():
        chosen += module.hooks()
    return chosen


def _modules() -> list[Any]:
    names = [name for feature, group in MODULES.items() if RUNTIME.settings.has(feature) for name in group]
    return [import_module(f"artifact.lending.{name}") for name in names]


def _require_version(hooks: list[Hook]) -> None:
    installed = version("sglang")
    moved = missing(hooks)
    if installed != SGLANG_VERSION or moved:
        raise ValueError(
            f"this extension is written for sglang {SGLANG_VERSION}, installed is {installed}; "
            + (f"hooks that moved: {', '.join(moved)}" if moved else "no hook moved, but their meaning is unchecked")
            + f"; install sglang=={SGLANG_VERSION} or unset {settings.VARIABLE}"
        )


def _install(hooks: list[Hook]) -> None:
    """Register, and verify once SGLang has applied: it only logs a hook that failed."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    arounds = merged(hooks)
    for target, around in arounds.items():
        HookRegistry.register(target, around, HookType.AROUND)
    apply = HookRegistry.apply_hooks

    def apply_and_verify(cls: Any) -> None:
        apply()
        report(arounds, HookRegistry._patched)

    HookRegistry.apply_hooks = classmethod(apply_and_verify)


def report(arounds: dict[str, Callable[..., Any]], patched: set[str]) -> None:
    """Count the hooks that applied, for the scheduler to export. Raises `SystemExit` naming any that did not."""
    failed = sorted(set(arounds) - patched)
    RUNTIME.hooks_expected, RUNTIME.hooks_applied = len(arounds), len(arounds) - len(failed)
    if failed:
        raise SystemExit(f"basin: hooks not applied: {', '.join(failed)}; the engine's log says why")


def _scheduler_init(original: Callable[..., Any], scheduler: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    for module in _modules():
        if hasattr(module, "check"):
            module.check(server_args)
    if server_args.enable_metrics:
        from artifact.lending.engine_metrics import Metrics

        RUNTIME.metrics = Metrics()
    original(scheduler, server_args, *args, **kwargs)
    RUNTIME.gauge("hooks_expected", RUNTIME.hooks_expected)
    RUNTIME.gauge("hooks_applied", RUNTIME.hooks_applied)
    features = ", ".join(f for f in settings.FEATURES if RUNTIME.settings.has(f))
    logger.info("basin: %d of %d hooks applied; features: %s", RUNTIME.hooks_applied, RUNTIME.hooks_expected, features)
    _show_switches()


def _show_switches() -> None:
    now = RUNTIME.settings
    RUNTIME.gauge("ordering", now.has("order") and now.ordering)
    RUNTIME.gauge("lending", now.has("lend") and now.lending)


def _switch(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """`/set_internal_state` with keys `basin_<setting>`; other keys go on to the engine."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    ours = {k.removeprefix("basin_"): v for k, v in request.server_args.items() if k.startswith("basin_")}
    if not ours:
        return original(scheduler, request)
    was = RUNTIME.settings
    try:
        RUNTIME.settings = was.switched(ours)
    except ValueError as error:
        logger.warning("%s", error)
        return SetInternalStateReqOutput(updated=False)
    if was.has("order") and was.ordering != RUNTIME.settings.ordering:
        from artifact.lending import engine_order

        RUNTIME.count("order_switches")
        engine_order.resort(scheduler)
    _show_switches()
    logger.info("basin: switched %s", ours)
    rest = {k: v for k, v in request.server_args.items() if not k.startswith("basin_")}
    if not rest:
        return SetInternalStateReqOutput(updated=True)
    request.server_args = rest
    return original(scheduler, request)
