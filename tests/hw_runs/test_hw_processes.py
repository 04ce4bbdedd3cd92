"""Processes are ready when they say so, and are gone afterwards, whatever happens; with real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hw_runs.processes import Command, NotReady, Probe, Process, free_port, running

ROOT = Path(__file__).resolve().parents[2]
SERVER = """
import http.server, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def server(name="server", port=None):
    port = port or free_port()
    return Command(name, (sys.executable, "-c", SERVER, str(port)), ready=Probe(f"http://127.0.0.1:{port}/"))


def gone(pid):
    """Ended, or at least a zombie that only its parent can bury."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def eventually_gone(*pids):
    end = time.monotonic() + 20
    while not all(map(gone, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return all(map(gone, pids))


def child_of(process):
    return int(process.text().split()[1])


def test_a_whole_group_ends_even_if_it_ignores_being_asked(tmp_path):
    with running([[server()]], tmp_path, 60, grace_s=0.2) as (process,):
        pids = process.pid, child_of(process)
        assert process.alive and not any(map(gone, pids))
    assert eventually_gone(*pids) and not process.alive


def test_groups_start_one_after_the_other_and_one_offs_are_waited_for(tmp_path):
    lines, made = [], tmp_path / "made"
    make = Command("make", (sys.executable, "-c", f"open({str(made)!r}, 'w')"))
    with running([[make], [server("a"), server("b")]], tmp_path, 60, 0, lines.append) as processes:
        assert made.exists() and [p.command.name for p in processes] == ["a", "b"]
    assert lines[:2] == ["make: starting", "make: ready"]


def test_an_error_in_between_leaves_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), running([[server()]], tmp_path, 60, 0) as (process,):
        pids = process.pid, child_of(process)
        raise ZeroDivisionError
    assert eventually_gone(*pids)


def test_one_that_does_not_come_up_takes_the_others_with_it(tmp_path):
    words = (sys.executable, "-c", "import sys; sys.exit('out of memory')")
    broken = Command("broken", words, ready=Probe("http://127.0.0.1:9/"))
    started = []
    with (
        pytest.raises(NotReady, match=r"broken ended with status 1(.|\n)*out of memory"),
        running([[server()], [broken]], tmp_path, 60, 0, started.append),
    ):
        raise AssertionError("not reached")
    pid = int((tmp_path / "server.log").read_text().split()[1])
    assert eventually_gone(pid)


def test_one_that_stays_silent_is_given_up(tmp_path):
    words = (sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)")
    process = Process(Command("slow", words, ready=Probe("http://127.0.0.1:9/")), tmp_path)
    try:
        with pytest.raises(NotReady, match="slow was not ready within 1 s"):
            process.wait_ready(1.0)
    finally:
        process.stop()
    assert eventually_gone(process.pid)


def test_no_port_is_given_out_twice():
    """Of 28,000 or so, the system alone offers some of a thousand twice."""
    assert len({free_port() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_owner_ends_what_it_owns(tmp_path, number):
    """Killed outright it can do nothing any more: the kernel then ends its children, and engines end their own."""
    port = free_port()
    owner = f"""
import sys, time
from pathlib import Path
from hw_runs.processes import *
command = Command("server", ({sys.executable!r}, "-c", {SERVER!r}, "{port}"), ready=Probe("http://127.0.0.1:{port}/"))
with running([[command]], Path({str(tmp_path)!r}), 60, 0) as (process,):
    print(process.pid, process.text().split()[1], flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    pids = tuple(map(int, process.stdout.readline().split()))
    os.kill(process.pid, number)
    process.wait(30)
    if number == signal.SIGKILL:
        assert eventually_gone(pids[0])
        os.kill(pids[1], signal.SIGKILL)
    assert eventually_gone(*pids)


def test_a_command_for_a_persons_shell():
    command = Command("x", ("run", "a b"), {"KEY": "v w"})
    assert command.shell() == "'KEY=v w' run 'a b'"
