"""Machines and GPUs for tests of the checks."""

from hw_runs.checks import Gpu


class FakeMachine:
    """A machine that has whatever the test says."""

    def __init__(self, gpus=None, gib=1000.0, busy=(), versions=None) -> None:
        self._gpus, self._gib, self._busy, self._versions = gpus, gib, busy, versions

    def gpus(self):
        return self._gpus

    def available_gib(self):
        return self._gib

    def port_is_free(self, port):
        return port not in self._busy

    def versions(self, python, packages):
        return dict(packages) if self._versions is None else {name: self._versions.get(name) for name in packages}


def h200(number, free_gib=140.0, name="NVIDIA H200"):
    return Gpu(number, name, free_gib * 1024, 143771, "580.65.06", "1980", "3201", "700.00")
