"""The engine's external-cache seam on prefill: matches that promise a unit, loads that fetch it, waits layer by layer.

The pages of a fetch stay private to the request until the forward that waited for them is over, so a fetch that fails
spoils nothing but that request's forward.
"""

import time
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    ExternalCacheHitMarker,
    UnifiedCacheLinker,
    UnifiedCacheLinkerWrapper,
)

from artifact.kernels import flags as flag_kernels
from artifact.lending.fetches import Fetch
from artifact.lending.runtime import RUNTIME

if TYPE_CHECKING:
    from artifact.lending.engine_prefill import Borrower


class LayerWaits:
    """The pool's per-layer wait (`layer_transfer_counter`): a batch's consumer index names its fetches.

    Where HiCache loads into the same pool, its own counter is waited for first; `index` packs both.
    """

    def __init__(self, flags: torch.Tensor, layers_per_group: int, host: Any = None) -> None:
        self.flags, self._layers_per_group, self._host = flags, layers_per_group, host
        self._host_indices = 1 + (host.num_counters if host is not None else 0)
        self.consumer_index = -1
        self.batches: dict[int, list[Fetch]] = {}
        self._passed: set[int] = set()
        self._gpu: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def index(self, batch: int, host_index: int) -> int:
        return batch * self._host_indices + host_index + 1

    def set_consumer(self, index: int) -> None:
        self.consumer_index = index
        if self._host is not None:
            self._host.set_consumer(index % self._host_indices - 1 if index >= 0 else -1)
        self._passed.clear()
        self._gpu = None

    def wait_until(self, layer: int) -> None:
        if self._host is not None:
            self._host.wait_until(layer)
        fetches, group = self.batches.get(self.consumer_index), layer // self._layers_per_group
        if not fetches or group in self._passed or RUNTIME.settings.drop_wait:
            return
        self._passed.add(group)
        if self.flags.is_cuda:
            self._wait_on_stream(fetches, group)
        else:
            self._wait_on_host(fetches, group)

    def _wait_on_host(self, fetches: list[Fetch], group: int) -> None:
        began = time.monotonic()
        # The monitor gives up at the fetch's deadline and writes FAILED, so this never waits its full bound.
        bound = 2 * RUNTIME.settings.fetch_timeout_s
        slots, epochs = [f.slot for f in fetches], [f.epoch for f in fetches]
        for fetch, status in zip(
            fetches, flag_kernels.wait_reference(self.flags, slots, group, epochs, bound), strict=True
        ):
            fetch.spoiled |= status != flag_kernels.READY
        RUNTIME.count("wait_seconds", time.monotonic() - began)

    def _wait_on_stream(self, fetches: list[Fetch], group: int) -> None:
        if self._gpu is None:
            rows = [[f.slot for f in fetches], [f.epoch for f in fetches], [0] * len(fetches)]
            slots, epochs, status = torch.tensor(rows, dtype=torch.int32, device=self.flags.device)
            self._gpu = slots, epochs, status
            for i, fetch in enumerate(fetches):
                fetch.status = status[i]
        slots, epochs, status = self._gpu
        flag_kernels.wait(self.flags, slots, group, epochs, status)


class LentLinker(UnifiedCacheLinker):
    """The transport beneath the cache: pages to load are asked for from decode."""

    def __init__(self, borrower: "Borrower") -> None:
        self._borrower = borrower
        self.layer_done_counter = borrower.waits
        self.pools: dict[PoolName, object] = {}
        self._pending: dict[str, Fetch] = {}
        self._next_batch = 0

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        raise NotImplementedError("the match goes through the session index, not through page hashes")

    def load(self, rid: str, transfers: list[Any]) -> bool:
        fetch = self._borrower.plan(rid, transfers)
        if fetch is not None:
            self._pending[rid] = fetch
        return fetch is not None

    def start_layer_wise_loading(self, host_index: int = -1) -> int:
        if not self._pending and host_index < 0:
            return -1
        index = self._borrower.waits.index(self._next_batch, host_index)
        self._next_batch += 1
        fetches, self._pending = list(self._pending.values()), {}
        if fetches:
            self._borrower.waits.batches[index] = fetches
        for fetch in fetches:
            self._borrower.ask(fetch)
        return index

    def finish(self, index: int) -> list[Fetch]:
        """Wait until a batch's fetches have arrived or failed."""
        fetches = self._borrower.waits.batches.pop(index, [])
        for fetch in fetches:
            fetch.done.wait()
            spoiled = fetch.spoiled or (fetch.status is not None and int(fetch.status) != flag_kernels.READY)
            if fetch.cause is None and spoiled:
                fetch.cause = "a layer did not wait for its pages"
        return fetches

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return all(fetch.cause is None for fetch in self.finish(counter_index))

    def cancel_queued_load(self, rid: str) -> bool:
        fetch = self._pending.pop(rid, None)
        if fetch is None:
            return False
        self._borrower.dropped(fetch)
        return True

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        return False

    def num_completed_offloads(self) -> int:
        return 0

    def pop_completed_offload(self) -> bool:
        raise NotImplementedError("nothing is ever offloaded: units come into being on decode")

    def reset(self) -> None:
        for rid in list(self._pending):
            self.cancel_queued_load(rid)
        for index in list(self._borrower.waits.batches):
            self.finish(index)

    def close(self) -> None:
        self.reset()


class LentMatches(UnifiedCacheLinkerWrapper):
    """The cache's side of the seam. Unlike the base it never asks the tree to write nodes out, so it leaves the
    tree's write-through settings alone."""

    def __init__(self, cache: Any, linker: LentLinker, borrower: "Borrower") -> None:
        self.cache, self.cache_linker, self._borrower = cache, linker, borrower
        self._skip_swa, self._components = False, tuple(cache._components_tuple)
        self.hit_markers: dict[str, ExternalCacheHitMarker] = {}
        self.inflight_load_rids: list[str] = []
        self.private_load_indices: dict[str, torch.Tensor] = {}
        self.inflight_load_index = -1
        self.pending_offloads: list[Any] = []

    def match(self, key: Any, req: Any, result: Any) -> Any:
        local = result.device_prefix_len + result.host_hit_length
        lent = self._borrower.covering(req, key, local)
        if lent is None:
            self.hit_markers.pop(req.rid, None)
            return result
        extra = lent.tokens - result.device_prefix_len
        pages = extra // self.cache.page_size
        self.hit_markers[req.rid] = ExternalCacheHitMarker([""] * pages, result.device_prefix_len)
        states = 1 if any(c.component_type.name == "MAMBA" for c in self._components) else 0
        return result._replace(
            last_host_node=result.best_match_node, host_hit_length=extra, mamba_host_hit_length=states
        )

    def start_layer_wise_loading(self) -> int:
        host = self.cache.cache_controller
        host_index = -1 if host is None else host.start_loading()
        self.inflight_load_index = self.cache_linker.start_layer_wise_loading(host_index)
        return self.inflight_load_index

    def release_request(self, rid: str) -> None:
        self._borrower.forget_choice(rid)
        super().release_request(rid)

    def finish_loads(self) -> list[str]:
        rids, self.inflight_load_rids = self.inflight_load_rids, []
        index, self.inflight_load_index = self.inflight_load_index, -1
        for rid in rids:
            self.private_load_indices.pop(rid, None)
        failed = []
        for fetch in self.cache_linker.finish(index) if rids else []:
            self._borrower.collected(fetch)
            if fetch.cause is not None:
                failed.append(fetch.rid)
        return failed
