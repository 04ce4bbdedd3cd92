"""Shared by all tests."""

import faulthandler
import os
import signal

import pytest
from hypothesis import settings

# A deadline measures how busy the machine is. The examples are the same every time, unless new ones are asked for:
# `HYPOTHESIS_PROFILE=explore .venv/bin/pytest ...`, which `make test-slow` does.
settings.register_profile("basin", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "basin"))

LIMITS_S = {"slow": 3600, "engine": 0, "bench": 0}
"""By marker, where pyproject's `timeout` is too short; 0 is none: those wait for engines, with limits of their own."""
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # before pytest captures it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background, whose children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if limits := [LIMITS_S[m.name] for m in item.iter_markers() if m.name in LIMITS_S]:
            item.add_marker(pytest.mark.timeout(min(limits)))


# A test that hangs ends its process, after the stacks of all its threads; xdist reports it as failed and goes on.
# pytest-timeout's own methods need the interpreter; hypothesis takes their signal for a failure and tries it again,
# without a limit; and their stacks are lost in a worker of xdist.
@pytest.hookimpl(optionalhook=True)  # the engines' environments have no pytest-timeout
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool:
    limit_s: float = settings.timeout  # type: ignore[attr-defined]
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[STDERR])
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()
