"""Processes that a run owns: each in a process group of its own, its output in a log, ended by id whatever happens.

Standard library only, so that the engines' own environments can import it.
"""

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

# looked up here: in a child forked beside other threads the dynamic linker may be locked for good
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
_ANSWER_S = 30.0
_LOG_END = 3000


@dataclass(frozen=True)
class Probe:
    """What a process answers with status 200 once it can serve: a GET, or a POST where `body` is given."""

    url: str
    body: Mapping[str, Any] | None = None

    def passes(self) -> bool:
        data = None if self.body is None else json.dumps(self.body).encode()
        request = urllib.request.Request(self.url, data, {"content-type": "application/json"})
        with suppress(OSError), urllib.request.urlopen(request, timeout=_ANSWER_S) as response:
            return bool(response.status == 200)
        return False


@dataclass(frozen=True)
class Command:
    """A process to start. `environment` is added to this process's own; without `ready`, it is to end by itself."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Probe | None = None

    def shell(self) -> str:
        """The same for a person's shell."""
        return shlex.join([*(f"{key}={value}" for key, value in self.environment.items()), *self.words])


class NotReady(RuntimeError):
    """A process ended, or stayed silent, before it was ready; the message holds the end of its log."""


class Process:
    """A started command. Its process group has its own id, which is the process's."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command = command
        self.log = folder / f"{command.name}.log"
        with self.log.open("w") as log:
            self._popen = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.environment},
                start_new_session=True,
                preexec_fn=_end_with_parent if _in_main_thread() else None,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self, within_s: float, say: Callable[[str], None] = lambda line: None) -> None:
        """Until its probe passes, or a command without one has ended well. `say` hears of progress every ten seconds.

        Raises `NotReady`."""
        began = told = time.monotonic()
        while time.monotonic() - began < within_s:
            code, probe = self._popen.poll(), self.command.ready
            if code is not None:
                if probe is None and code == 0:
                    return
                raise NotReady(f"{self.command.name} ended with status {code}; {self._ending()}")
            if probe is not None and probe.passes():
                return
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"{self.command.name}: not ready after {told - began:.0f} s ({self._last_line()})")
            time.sleep(_POLL_S)
        raise NotReady(f"{self.command.name} was not ready within {within_s:g} s; {self._ending()}")

    def stop(self, grace_s: float = 0.0) -> None:
        """End the whole group: asked first where `grace_s` is given, then killed; returns when it is gone."""
        if grace_s > 0 and self.alive:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        self._signal(signal.SIGKILL)  # the leader may have gone and left children
        with suppress(subprocess.TimeoutExpired):  # a loaded machine may take its time to bury it
            self._popen.wait(30)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _ending(self) -> str:
        return f"the end of {self.log}:\n{self.text()[-_LOG_END:]}"

    def _last_line(self) -> str:
        lines = self.text().splitlines()
        return lines[-1][-120:] if lines else "no output yet"


@contextmanager
def running(
    groups: Sequence[Sequence[Command]],
    folder: Path,
    within_s: float,
    grace_s: float = 10.0,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[list[Process]]:
    """The commands of each group at once, the groups one after the other when all before are ready; then all running
    processes, the last started first to be ended. Raises `NotReady`; SIGTERM in the main thread becomes `SystemExit`.
    """
    started: list[Process] = []
    with _terminable():
        try:
            for group in groups:
                fresh = []
                for command in group:
                    say(f"{command.name}: starting")
                    process = Process(command, folder)
                    started.append(process)
                    fresh.append(process)
                for process in fresh:
                    process.wait_ready(within_s, say)
                    say(f"{process.command.name}: ready")
            yield [p for p in started if p.command.ready is not None]
        finally:
            with _uninterrupted():
                for process in reversed(started):
                    process.stop(grace_s)


_handed_out: set[int] = set()


def free_port() -> int:
    """A port of loopback that nothing listens on now, another one at every call of this process: the system may well
    offer again what was just given back."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = int(server.getsockname()[1])
        if port not in _handed_out:
            _handed_out.add(port)
            return port


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end_with_parent() -> None:
    """In the child, before the command: even an owner that is killed outright leaves no engine behind (Linux; counts
    from the thread that started it, hence the main thread only)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises `SystemExit`, so that what stands in `finally` is done; only the main thread can hear signals."""
    if not _in_main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C, or SIGTERM, must not leave engines behind."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
