"""HiCache where the device's memory is host memory as well: plain buffers, and copies by index."""

import torch


def copy(
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """What the compiled `transfer_kv_direct` does: rows of each layer, by token index."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def apply() -> None:
    from sglang.srt.mem_cache.pool_host import common, mha

    common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, device, **_: torch.empty(dims, dtype=dtype, device=device)
    mha.transfer_kv_direct = copy
