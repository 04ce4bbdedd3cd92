"""Registers the KV pools with NIXL as host memory, which is what they are without a GPU."""

import functools
import os
from typing import Any


def _host_memory(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("DRAM" if isinstance(a, str) and a == "VRAM" else a for a in args)
        kwargs = {k: "DRAM" if isinstance(v, str) and v == "VRAM" else v for k, v in kwargs.items()}
        return method(*args, **kwargs)

    return call


def register() -> None:
    from nixl._api import nixl_agent

    for name in ("register_memory", "get_xfer_descs", "get_reg_descs", "prep_xfer_dlist"):
        setattr(nixl_agent, name, _host_memory(getattr(nixl_agent, name)))

    if os.environ.get("TRITON_INTERPRET") == "1":
        from basin_engine_support import interpreted

        interpreted.apply()
