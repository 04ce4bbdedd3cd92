"""`python -m artifact.kernels.bench`: what a wait costs, and what waiting layer by layer gains over waiting for all.

Needs one GPU, PyTorch and Triton (no engine), and under a minute. Prints one JSON object; nothing is estimated, and
without a GPU it says so and measures nothing.
"""

import json
import platform
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from artifact.kernels import flags as kernels

LAYERS, ROUNDS = 32, 20
PAGES_MIB_PER_LAYER = 16
MATMUL = 4096


def milliseconds(work: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Median device time of `work`, after one warm-up that also compiles."""
    work()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


class Delivery:
    """Layers of pages copied from pinned host memory on their own stream, each announced by its flag."""

    def __init__(self) -> None:
        elements = PAGES_MIB_PER_LAYER * 2**20 // 2
        self.host = torch.empty(LAYERS, elements, dtype=torch.float16, pin_memory=True)
        self.pages = torch.empty(LAYERS, elements, dtype=torch.float16, device="cuda")
        self.flags = torch.zeros(1, LAYERS, dtype=torch.int32, device="cuda")
        self.stream = torch.cuda.Stream()
        self.epoch = 0
        ints = {"dtype": torch.int32, "device": "cuda"}
        self.slots, self.status = torch.zeros(1, **ints), torch.zeros(1, **ints)
        self.weight = torch.randn(MATMUL, MATMUL, dtype=torch.float16, device="cuda") / MATMUL**0.5
        self.x = torch.randn(MATMUL, MATMUL, dtype=torch.float16, device="cuda")

    def copy(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for layer in range(LAYERS):
                self.pages[layer].copy_(self.host[layer], non_blocking=True)
                kernels.publish(self.flags, 0, layer, self.epoch)

    def compute(self, wait: Callable[[int], None]) -> None:
        x = self.x
        for layer in range(LAYERS):
            wait(layer)
            x = x @ self.weight

    def layered(self) -> None:
        self.epoch += 1
        epoch = torch.full((1,), self.epoch, dtype=torch.int32, device="cuda")
        self.copy()
        self.compute(lambda layer: kernels.wait(self.flags, self.slots, layer, epoch, self.status))

    def all_first(self) -> None:
        self.epoch += 1
        self.copy()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.compute(lambda layer: None)


def measure() -> dict[str, Any]:
    """Times in milliseconds or microseconds, with the machine they were taken on."""
    delivery = Delivery()
    ready = torch.full((1,), 1, dtype=torch.int32, device="cuda")
    delivery.flags.fill_(1)

    def waits() -> None:
        for layer in range(LAYERS):
            kernels.wait(delivery.flags, delivery.slots, layer, ready, delivery.status)

    wait_us = 1e3 * milliseconds(waits) / LAYERS
    delivery.epoch = 1
    layered, all_first = milliseconds(delivery.layered), milliseconds(delivery.all_first)
    compute, copy = milliseconds(lambda: delivery.compute(lambda layer: None)), milliseconds(_alone(delivery))
    return {
        "wait_on_a_set_flag_us": round(wait_us, 2),
        "compute_ms": round(compute, 3),
        "copy_ms": round(copy, 3),
        "copy_then_compute_ms": round(all_first, 3),
        "layer_by_layer_ms": round(layered, 3),
        "overlap_gained_ms": round(all_first - layered, 3),
        "share_of_the_shorter_hidden": round((all_first - layered) / min(compute, copy), 3),
        "all_waits_succeeded": bool((delivery.status == kernels.READY).all()),
        "layers": LAYERS,
        "mib_per_layer": PAGES_MIB_PER_LAYER,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def _alone(delivery: Delivery) -> Callable[[], None]:
    def copy() -> None:
        delivery.epoch += 1
        delivery.copy()
        torch.cuda.current_stream().wait_stream(delivery.stream)

    return copy


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("artifact.kernels.bench: no GPU is visible, so nothing was measured; run it on a machine with one")
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
