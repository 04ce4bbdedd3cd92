"""Lets recurrent-state models run their Triton kernels in the interpreter: what those assume of a GPU."""

import contextlib
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import interpreter_builder


# The engine binds `tl.exp` and others once; the interpreter replaces them in `tl` only while a kernel runs.
@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


@triton.jit
def exp2(x):  # type: ignore[no-untyped-def]
    return tl.math.exp2(x)


@triton.jit
def log(x):  # type: ignore[no-untyped-def]
    return tl.log(x)


@triton.jit
def log2(x):  # type: ignore[no-untyped-def]
    return tl.log2(x)


def _no_timing(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Any configuration gives the same numbers; timing them in the interpreter would take minutes."""
    return [0.0, 0.0, 0.0]


def apply() -> None:
    torch.cpu.device = lambda index: contextlib.nullcontext()
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    Autotuner._bench = _no_timing
    # Overflow checks double the work of every integer operation.
    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)

    from sglang.kernels.ops.attention.fla import op

    op.exp, op.exp2, op.log, op.log2 = exp, exp2, log, log2

    from sglang.kernels.ops.attention.fla import layernorm_gated

    layernorm_gated._get_sm_count = lambda device: 1
