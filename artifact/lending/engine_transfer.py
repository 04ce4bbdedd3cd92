"""Writing a unit's pages from decode into prefill's, layer group by layer group, over NIXL (paper A §6.2)."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifact.lending.runtime import RUNTIME


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered buffer of one layer, at the same place in both instances' lists."""

    layer: int
    source: int
    target: int
    item_bytes: int
    is_state: bool


@dataclass(frozen=True, slots=True)
class Order:
    """What prefill asked for: rows to write and where its flags of this fetch begin."""

    fetch: int
    pages_from: np.ndarray
    pages_to: np.ndarray
    state_from: int | None
    state_to: int | None
    flags: int
    """Address of prefill's first flag for this fetch; one int32 a layer group."""
    epoch: int
    groups: int


def entries(kv_args: Any, peer: Any, layers: int) -> list[Entry]:
    """Pair this instance's buffers with a peer's registration.

    A pool of `layers` layers that reports no layer ids lists keys and then values, each in layer order. Raises
    `ValueError` where the two instances' lists differ in length (other parallelism or another model).
    """
    sources, targets = kv_args.kv_data_ptrs, peer.dst_kv_ptrs
    if len(sources) != len(targets):
        raise ValueError(f"lending needs the same layout on both sides: {len(sources)} and {len(targets)} KV buffers")
    ids = list(kv_args.kv_layer_ids) or [i % layers for i in range(len(sources))]
    found = [
        Entry(layer, s, t, n, False) for layer, s, t, n in zip(ids, sources, targets, kv_args.kv_item_lens, strict=True)
    ]
    for c, component in enumerate(kv_args.state_data_ptrs):
        found += [
            Entry(layer, s, t, n, True)
            for layer, s, t, n in zip(
                kv_args.state_layer_ids[c],
                component,
                peer.dst_state_data_ptrs[c],
                kv_args.state_item_lens[c],
                strict=True,
            )
        ]
    return found


def runs(source: np.ndarray, target: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal stretches (first source row, first target row, length) that are contiguous on both sides."""
    if not len(source):
        return []
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    starts, ends = np.r_[0, breaks], np.r_[breaks, len(source)]
    return [(int(source[a]), int(target[a]), int(b - a)) for a, b in zip(starts, ends, strict=True)]


class Writer:
    """Executes one order at a time on the calling thread; the flag follows only when its group's bytes have arrived."""

    def __init__(self, manager: Any, layers: int) -> None:
        import torch

        self._manager, self._layers = manager, layers
        self._entries: dict[str, list[Entry]] = {}
        self._flag = torch.zeros(1, dtype=torch.int32)
        manager.agent.register_memory([(self._flag.data_ptr(), 4, 0, "")], "DRAM")
        self._turn = threading.Lock()

    def meet(self, name: str, peer: Any) -> None:
        self._manager.agent.add_remote_agent(peer.agent_metadata)
        self._entries[name] = entries(self._manager.kv_args, peer, self._layers)

    def write(self, name: str, peer_device: int, order: Order, stop: Any) -> int:
        """Bytes written. Raises `InterruptedError` once `stop()` says so, or whatever NIXL raises for a dead peer."""
        spans = runs(order.pages_from, order.pages_to)
        per_group = RUNTIME.settings.layers_per_group
        total = 0
        with self._turn:
            self._flag[0] = order.epoch
            for group in range(order.groups):
                if stop():
                    raise InterruptedError("the unit was wanted back")
                members = [e for e in self._entries[name] if e.layer // per_group == group]
                total += self._post(name, peer_device, self._descriptors(members, spans, order))
                if RUNTIME.settings.layer_delay_s:
                    time.sleep(RUNTIME.settings.layer_delay_s)
                flag = [(self._flag.data_ptr(), order.flags + 4 * group, 4)]
                self._post(name, peer_device, flag, source_kind="DRAM")
        return total

    def _descriptors(
        self, members: list[Entry], spans: list[tuple[int, int, int]], order: Order
    ) -> list[tuple[int, int, int]]:
        found = []
        for e in members:
            if e.is_state:
                if order.state_from is not None and order.state_to is not None and not RUNTIME.settings.drop_state:
                    offset_from, offset_to = order.state_from * e.item_bytes, order.state_to * e.item_bytes
                    found.append((e.source + offset_from, e.target + offset_to, e.item_bytes))
            else:
                found += [
                    (e.source + a * e.item_bytes, e.target + b * e.item_bytes, n * e.item_bytes) for a, b, n in spans
                ]
        return found

    def _post(self, name: str, device: int, pieces: list[tuple[int, int, int]], source_kind: str = "VRAM") -> int:
        """Write (source, target, bytes) pieces and wait until they have arrived."""
        if not pieces:
            return 0
        agent, own = self._manager.agent, 0 if source_kind == "DRAM" else self._manager.kv_args.gpu_id
        source = agent.get_xfer_descs([(s, n, own) for s, _, n in pieces], source_kind)
        target = agent.get_xfer_descs([(t, n, device) for _, t, n in pieces], "VRAM")
        handle = agent.initialize_xfer("WRITE", source, target, name)
        try:
            self._manager._post_xfer(handle, "basin: the write to prefill could not be posted")
            settled, failed = self._manager._await_handles([handle], failure_seen=False)
        finally:
            agent.release_xfer_handle(handle)
        if failed or not settled:
            raise ConnectionError("the write to prefill failed")
        return sum(n for _, _, n in pieces)
