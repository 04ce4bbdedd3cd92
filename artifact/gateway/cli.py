"""`basin gateway`: serve a session gateway before an engine or its router."""

import json
import os
import resource
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from artifact.control.capacity import Capacities
from artifact.control.predictor import PeakPredictor
from artifact.control.profile import DeploymentProfile, load_profile
from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, EnginePriority, GatewayConfig, Limits, Role, Timeouts
from artifact.gateway.logs import configure_logs
from artifact.gateway.policies import PolicyMaker, SeenPeaks
from artifact.gateway.server import GatewayServer

TOKEN_VARIABLE = "BASIN_ADMIN_TOKEN"


class Dialect(StrEnum):
    """Engines whose request priority is understood."""

    NONE = "none"
    SGLANG = "sglang"
    VLLM = "vllm"


def gateway(
    upstream: Annotated[str, typer.Option(help="Base URL of the engine or its router.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    policy: Annotated[str, typer.Option(help="Policy in charge; `none` lets everybody in.")] = "basin",
    options: Annotated[str, typer.Option(help="The policy's parameters as a JSON object.")] = "{}",
    profile: Annotated[Path | None, typer.Option(help="Deployment profile written by `basin profile`.")] = None,
    router: Annotated[str, typer.Option(help="Which router's profile of that file.")] = "default",
    predictor: Annotated[Path | None, typer.Option(help="Fitted peak predictor; without: peaks seen here.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="ROLE=URL whose metrics to read (repeatable).")] = None,
    priority: Annotated[
        Dialect, typer.Option(help="Engine whose queues follow the request's priority.")
    ] = Dialect.NONE,
    priority_low_first: Annotated[bool | None, typer.Option(help="Overrides the engine's default sign.")] = None,
    hints: Annotated[bool, typer.Option(help="Tell SGLang's Basin extension what to retain and to pin.")] = False,
    elastic: Annotated[
        bool, typer.Option(help="Send calls to decode alone while its lease is open; needs the extension's `elastic`.")
    ] = False,
    prefill_cache_tokens: Annotated[int | None, typer.Option(help="C_G, if the engine does not tell.")] = None,
    decode_kv_tokens: Annotated[int | None, typer.Option(help="Decode KV, if the engine does not tell.")] = None,
    host_cache_tokens: Annotated[int, typer.Option(help="C_H, if the engine does not tell.")] = 0,
    prefill_tokens_per_s: Annotated[float | None, typer.Option(help="Prefill rate; Continuum needs it.")] = None,
    identity: Annotated[str | None, typer.Option(help="Session conventions in order, separated by commas.")] = None,
    lineage: Annotated[bool, typer.Option(help="Recognise sessions without an id by their messages.")] = False,
    idle_s: Annotated[float, typer.Option(help="A session without a call for this long has ended.")] = 3600.0,
    max_park_s: Annotated[float, typer.Option(help="Refuse calls parked for longer; 0: never.")] = 0.0,
    max_parked: Annotated[int, typer.Option(help="Most calls waiting for admission.")] = Limits().parked_calls,
    admin_token_file: Annotated[Path | None, typer.Option(help=f"Else the variable {TOKEN_VARIABLE}.")] = None,
    admin_remote: Annotated[bool, typer.Option(help="Let other machines use the operator's pages.")] = False,
    time_scale: Annotated[float, typer.Option(hidden=True, help="Gateway seconds a real second.")] = 1.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a session gateway that parks, orders and sheds for the engine at UPSTREAM."""
    fields = DeploymentProfile() if profile is None else _checked(load_profile, profile, router)
    seen = SeenPeaks()
    config = GatewayConfig(
        upstream=upstream,
        policy=policy,
        policy_options=_json_object(options),
        cliff_over_capacity=fields.kappa * fields.knee,
        engines=tuple(_engine(text) for text in engine or ()),
        identity=tuple(identity.split(",")) if identity else None,
        lineage=lineage,
        priority=EnginePriority(dialect=priority.value, low_first=priority_low_first, hints=hints),
        elastic=elastic,
        limits=Limits(parked_calls=max_parked),
        timeouts=Timeouts(idle_s=idle_s, max_park_s=max_park_s),
        admin_token=_admin_token(admin_token_file),
        admin_remote=admin_remote,
        time_scale=time_scale,
    )
    maker = PolicyMaker(
        profile=fields,
        capacities=_capacities(prefill_cache_tokens, decode_kv_tokens, host_cache_tokens),
        predict=seen.predict if predictor is None else _from_file(predictor),
        prefill_tokens_per_s=prefill_tokens_per_s,
    )
    configure_logs(log_level)
    raise_file_limit()
    app = _checked(Gateway, config, maker, seen.ended)
    GatewayServer(app, host, port).run()


def raise_file_limit() -> None:
    """As many open connections as the system lets this process have: the usual 1,024 would end a parked queue."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _checked(make: Any, *args: Any) -> Any:
    try:
        return make(*args)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error


def _engine(text: str) -> Engine:
    role, _, url = text.partition("=")
    known: tuple[Role, ...] = ("prefill", "decode", "unified", "router")
    for name in known:
        if role == name and url:
            return Engine(url=url, role=name)
    raise typer.BadParameter(f"--engine {text!r}: expected ROLE=URL with a role of {', '.join(known)}")


def _capacities(prefill: int | None, decode: int | None, host: int) -> Capacities | None:
    if prefill is None:
        return None
    return Capacities(prefill, prefill if decode is None else decode, host)


def _from_file(path: Path) -> Any:
    fitted: PeakPredictor = _checked(PeakPredictor.load, path)
    return lambda session: fitted.predict(session.task_text, session.first_prompt_tokens)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--options is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('--options: expected a JSON object, as {"margin": 0.8}')
    return value


def _admin_token(file: Path | None) -> str | None:
    token = _checked(file.read_text).strip() if file is not None else os.environ.get(TOKEN_VARIABLE, "").strip()
    if file is not None and not token:
        raise typer.BadParameter(f"--admin-token-file {file}: the file is empty")
    return token or None
