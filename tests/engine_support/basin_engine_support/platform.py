"""A CPU platform whose fused operators all take the engine's plain-torch path."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class PlainTorchPlatform(CpuDeviceMixin, SRTPlatform):
    # Out of tree rather than CPU: the in-tree CPU platform wants the compiled sgl_kernel.
    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False


def activate() -> str:
    return "basin_engine_support.platform.PlainTorchPlatform"
