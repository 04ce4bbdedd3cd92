"""`python -m basin_engine_support.preload`: one process that has imported the engine and forks a server for each line
of JSON (`argv`, `env`, `log`) on its input, answering with the server's process id.

Importing costs each of an engine's three processes eight seconds of a core, which is most of its start. The engine
spawns two of them; here they are forked as well. What a spawned process does differently, which is to load the plugins
itself, is tested apart.
"""

import gc
import json
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
from importlib import import_module

# Before the engine's own imports.
import basin_engine_support.torchvision_cpu  # noqa: F401
from basin_engine_support import launch

MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.disaggregation.decode",
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.models.registry",
)


def serve(argv: list[str], env: dict[str, str], log: str) -> None:
    """The forked child becomes the server, in a session of its own. It ends with this process, which ends with its
    input."""
    from sglang.srt.utils import kill_itself_when_parent_died

    os.setsid()
    kill_itself_when_parent_died()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    source = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((source, target, target)):
        os.dup2(fd, number)
    os.environ.update(env)
    sys.argv = ["launch", *argv]
    launch.main()


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        from basin_engine_support import interpreted

        interpreted.apply()  # the models' kernels bind what it replaces
    for name in MODULES:
        import_module(name)
    contexts = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = contexts["fork"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the servers
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                serve(**json.loads(line))
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
