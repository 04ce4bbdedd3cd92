"""A deployment in operation: checked, started, checked again, and torn down whatever happens."""

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artifact.reproduce.paths import repository_root
from hw_runs.checks import Machine, Reported, deviations, problems, reported
from hw_runs.commands import Entry, commands
from hw_runs.deployment import Deployment
from hw_runs.processes import Command, Process, running

Say = Callable[[str], None]
TOKEN_FILE = "admin-token"
KEEP_LOGS = 20
"""Folders of logs that are kept; the oldest go."""


class CannotServe(RuntimeError):
    """The deployment does not fit this machine, or did not come up as its file says; one reason a line."""


@dataclass(frozen=True)
class Served:
    """Running engines (and router). `token` is the gateway's for changing its policy, `logs` the folder of all logs."""

    deployment: Deployment
    policy: str
    token: str
    logs: Path
    processes: tuple[Process, ...]
    reported: Reported

    def check_alive(self) -> None:
        """Raises `CannotServe` when a process has ended."""
        if gone := [process for process in self.processes if not process.alive]:
            lines = [f"{p.command.name} ended; the end of {p.log}:\n{p.text()[-2000:]}" for p in gone]
            raise CannotServe("\n".join(lines))

    @contextmanager
    def gateway(self, policy: str, profile: Path | None = None, say: Say = lambda line: None) -> Iterator[Process]:
        """A gateway of its own, fresh, that begins under this policy (`none`: everybody enters)."""
        groups = commands(
            self.deployment, self.policy, Entry(policy, self.logs / TOKEN_FILE, profile, self.reported.capacities)
        )
        with running(groups[-1:], self.logs, self.deployment.start_s, say=say) as (process,):
            yield process


@contextmanager
def serving(
    deployment: Deployment,
    policy: str,
    *,
    accept_capacities: bool = False,
    machine: Machine | None = None,
    say: Say = lambda line: None,
) -> Iterator[Served]:
    """The engines and router as `policy` needs them, ready; everything is ended with the context, on SIGTERM and
    Ctrl-C, too.

    Raises `CannotServe` before anything is started when the deployment does not fit this machine, later when an
    engine's capacities or flags are not those of the file (they pass with `accept_capacities`), and `NotReady` for a
    process that does not come up.
    """
    if reasons := problems(deployment, policy, machine or Machine()):
        raise CannotServe("\n".join(reasons))
    logs = log_folder(deployment.name)
    token = secrets.token_hex(16)
    token_file = logs / TOKEN_FILE
    token_file.touch(mode=0o600)
    token_file.write_text(token)
    groups = commands(deployment, policy, Entry(policy, token_file))
    say(f"logs in {logs}")
    (logs / "commands.txt").write_text(dry_run(groups) + "\n")
    with running(groups[:-1], logs, deployment.start_s, say=say) as engines:
        found = reported(deployment)
        wrong = deviations(deployment, deployment.policy(policy), found)
        for line in wrong if accept_capacities else ():
            say(f"differs from the file: {line}")
        if wrong and not accept_capacities:
            raise CannotServe("\n".join([*wrong, "correct the file, or accept with --accept-capacities"]))
        yield Served(deployment, policy, token, logs, tuple(engines), found)


def dry_run(groups: list[list[Command]]) -> str:
    """Every command, one a line, groups apart."""
    return "\n\n".join("\n".join(f"# {command.name}\n{command.shell()}" for command in group) for group in groups)


def planned(deployment: Deployment, policy: str, profile: Path | None = None) -> list[list[Command]]:
    """The commands that `serving` would start. Raises `ValueError` for a policy that the deployment does not run."""
    return commands(deployment, policy, Entry(policy, Path(TOKEN_FILE), profile))


def with_pool(deployment: Deployment, tokens: int) -> Deployment:
    """The same vLLM deployment with a KV pool of about so many tokens, in whole blocks."""
    block = int(deployment.flags["block-size"])
    blocks = round(tokens / block)
    return deployment.model_copy(
        update={
            "flags": {**deployment.flags, "num-gpu-blocks-override": blocks},
            "expected": deployment.expected.model_copy(
                update={"prefill_cache_tokens": blocks * block, "decode_kv_tokens": blocks * block}
            ),
        }
    )


def log_folder(name: str) -> Path:
    """A new folder below `build/serve`; the oldest ones of this deployment go."""
    root = repository_root() / "build" / "serve"
    root.mkdir(parents=True, exist_ok=True)
    for old in sorted(root.glob(f"{name}-2*"))[: -KEEP_LOGS + 1]:
        for path in old.iterdir():
            path.unlink()
        old.rmdir()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path(tempfile.mkdtemp(prefix=f"{name}-{stamp}-", dir=root))
