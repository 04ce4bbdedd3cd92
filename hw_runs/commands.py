"""The processes that a deployment under a policy stands for, in the order in which they start. Nothing is started."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from artifact.control.capacity import Capacities
from hw_runs.deployment import Deployment, Flags, Instance, PolicyRun
from hw_runs.processes import Command, Probe

NEUTRAL = "none"
TINY_MODEL = Path(__file__).with_name("tiny_model.py")


class Entry(NamedTuple):
    """What the gateway begins with: the policy in charge, its profile, the file of the token that changes it, and the
    capacities that the engines have reported."""

    policy: str
    token_file: Path
    profile: Path | None = None
    capacities: Capacities | None = None


def commands(deployment: Deployment, policy: str, entry: Entry) -> list[list[Command]]:
    """Groups of commands; those of a group start at once, each group when all before it are ready: the model if it has
    to be made, engines, router, gateway. Raises `ValueError` for a policy that the deployment does not run."""
    chosen = deployment.policy(policy)
    groups = [[_model(deployment)] if _model_is_due(deployment) else []]
    groups.append([_engine(deployment, instance, chosen, n) for n, instance in enumerate(deployment.instances)])
    groups.append([_router(deployment)] if deployment.router is not None else [])
    groups.append([_gateway(deployment, chosen, entry)])
    return [group for group in groups if group]


def chat(deployment: Deployment, text: str, tokens: int = 1) -> dict[str, object]:
    """Body of a call with one message."""
    return {
        "model": deployment.model.served_name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def merged_flags(deployment: Deployment, instance: Instance, policy: PolicyRun) -> dict[str, str | int | float | bool]:
    """All flags of an instance; what is said later, and closer to the instance or the policy, holds."""
    parts = (
        deployment.flags,
        deployment.role_flags.get(instance.role, {}),
        instance.flags,
        policy.flags.get(instance.role, {}),
    )
    return {key: value for part in parts for key, value in part.items()}


def flag_words(flags: Flags) -> list[str]:
    """`--key value`, of a switch that is on `--key`."""
    return [
        word
        for key, value in flags.items()
        if value is not False
        for word in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]


def router_words(instances: Iterable[Instance]) -> list[str]:
    """How SGLang's router is told of its workers."""
    words = ["--pd-disaggregation"]
    for instance in instances:
        boot = [str(instance.bootstrap_port)] if instance.role == "prefill" else []
        words += [f"--{instance.role}", instance.url, *boot]
    return words


def _model_is_due(deployment: Deployment) -> bool:
    """A tiny model that is not there, or is older than what makes it."""
    made = Path(deployment.model.folder()) / "config.json"
    tiny = deployment.model.tiny is not None
    return tiny and not (made.is_file() and made.stat().st_mtime >= TINY_MODEL.stat().st_mtime)


def _model(deployment: Deployment) -> Command:
    python = str(deployment.interpreter.find())
    return Command("model", (python, str(TINY_MODEL), str(deployment.model.tiny), deployment.model.folder()))


def _engine(deployment: Deployment, instance: Instance, policy: PolicyRun, number: int) -> Command:
    words = [str(deployment.interpreter.find()), *deployment.launch]
    words += ["--model-path" if deployment.engine == "sglang" else "--model", deployment.model.folder()]
    words += ["--served-model-name", deployment.model.served_name, "--host", "127.0.0.1", "--port", str(instance.port)]
    words += flag_words({**_roles(deployment, instance), **merged_flags(deployment, instance, policy)})
    environment = {**deployment.environment, **policy.environment}
    if instance.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(instance.gpu)
    ready = Probe(f"{instance.url}/{'model_info' if deployment.engine == 'sglang' else 'health'}")
    return Command(f"{instance.role}-{number}", tuple(words), environment, ready)


def _roles(deployment: Deployment, instance: Instance) -> Flags:
    """SGLang's flags that follow from the shape of the deployment."""
    if deployment.engine != "sglang" or instance.role not in ("prefill", "decode"):
        return {}
    flags: dict[str, str | int | float | bool] = {
        "disaggregation-mode": instance.role,
        "disaggregation-transfer-backend": "nixl",
    }
    if instance.bootstrap_port is not None:
        flags["disaggregation-bootstrap-port"] = instance.bootstrap_port
    if instance.role == "prefill" and deployment.host_ratio > 0:
        flags |= {"enable-hicache": True, "hicache-ratio": deployment.host_ratio}
    return flags


def _router(deployment: Deployment) -> Command:
    router = deployment.router
    assert router is not None
    words = [str(deployment.interpreter.find()), *router.launch, *router_words(deployment.instances)]
    words += ["--host", "127.0.0.1", "--port", str(router.port), "--prometheus-port", str(router.metrics_port)]
    # it answers at once, but has workers only when its own checks have found them
    ready = Probe(f"{router.url}/v1/chat/completions", chat(deployment, "w" * deployment.model.bytes_per_token))
    return Command("router", tuple(words + flag_words(router.flags)), deployment.environment, ready)


def _gateway(deployment: Deployment, policy: PolicyRun, entry: Entry) -> Command:
    options: Mapping[str, object] = {} if entry.policy == NEUTRAL else policy.options
    words = [str(Path(sys.executable).with_name("basin")), "gateway", "--upstream", deployment.upstream]
    words += ["--port", str(deployment.gateway_port), "--policy", entry.policy, "--options", json.dumps(options)]
    for instance in deployment.instances:
        words += ["--engine", f"{instance.role}={instance.url}"]
    if deployment.router is not None:
        words += ["--engine", f"router=http://127.0.0.1:{deployment.router.metrics_port}"]
    if (known := entry.capacities) is not None:
        words += ["--prefill-cache-tokens", str(known.prefill_cache_tokens)]
        words += [
            "--decode-kv-tokens",
            str(known.decode_kv_tokens),
            "--host-cache-tokens",
            str(known.host_cache_tokens),
        ]
    words += ["--profile", str(entry.profile)] if entry.profile is not None else []
    words += ["--admin-token-file", str(entry.token_file), *flag_words({**deployment.gateway, **policy.gateway})]
    return Command("gateway", tuple(words), ready=Probe(f"{deployment.gateway_url}/ready"))
