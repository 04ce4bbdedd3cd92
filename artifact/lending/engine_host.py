"""HiCache beneath lending on prefill: where the engine takes an external linker to stand in HiCache's place, both work.

A match goes to the longer of a lent unit and what device and host hold; a request loads from one of the two.
"""

from collections.abc import Callable
from typing import Any

from artifact.lending.hooks import Hook


def _to_host_cache(original: Callable[..., Any], tree: Any, *args: Any, **kwargs: Any) -> Any:
    """Write-through, its bookkeeping and acknowledgements are HiCache's: a lent unit is never written out here."""
    if tree.linker is None or tree.cache_controller is None:
        return original(tree, *args, **kwargs)
    linker, tree.linker = tree.linker, None
    try:
        return original(tree, *args, **kwargs)
    finally:
        tree.linker = linker


def _init_load_back(original: Callable[..., Any], tree: Any, params: Any) -> Any:
    tree._basin_fetching = tree.linker is not None and tree.linker.has_hit(params.req.rid)
    return original(tree, params)


def _is_cache_owned(original: Callable[..., bool], tree: Any) -> bool:
    """Asked right after `init_load_back`, of the same request: fetched pages are its own, loaded ones the cache's."""
    if tree.cache_controller is None:
        return original(tree)
    return not getattr(tree, "_basin_fetching", False)


def hooks() -> list[Hook]:
    tree = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    return [
        Hook(f"{tree}._apply_cache_action", _to_host_cache),
        Hook(f"{tree}.check_hicache_events", _to_host_cache),
        Hook(f"{tree}.flush_pending_backups", _to_host_cache),
        Hook(f"{tree}.init_load_back", _init_load_back),
        Hook(f"{tree}.load_back_is_cache_owned", _is_cache_owned),
    ]
