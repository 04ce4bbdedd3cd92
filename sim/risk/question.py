"""What an operator tells `basin risk`: numbers from a file, a ramp and options, the later over the earlier."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class UsageError(ValueError):
    """Input that cannot be used; the message names what, where and what to do."""


class Question(BaseModel):
    """A deployment and its present load, as far as they are known. Field names are those of a deployment file and,
    with dashes, of the command's options."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field("deployment", description="what to call it in the answer")
    cache_tokens: float = Field(
        gt=0, description="tokens of prefix cache on prefill: GPU or host tier, whichever is larger"
    )
    decode_kv_tokens: float = Field(gt=0, description="KV tokens of all decode instances")
    context_tokens: float = Field(
        gt=0, description="mean context (tokens) of the active sessions, those whose tools run included"
    )
    in_service: float | None = Field(
        None, gt=0, le=1, description="fraction of active sessions in a call (not in a tool), when healthy"
    )
    latency_s: float | None = Field(None, gt=0, description="mean time of a call, when healthy")
    gap_s: float | None = Field(None, ge=0, description="mean tool time between calls")
    active_sessions: float | None = Field(None, gt=0, description="active sessions, when healthy")
    calls_per_min: float | None = Field(None, gt=0, description="calls completed by those sessions")
    sessions_per_min: float | None = Field(None, gt=0, description="present arrival rate of sessions")
    calls_per_session: float | None = Field(None, ge=1, description="mean calls of a session")
    prefill_tokens_per_s: float | None = Field(
        None, gt=0, description="saturated prefill rate of all instances together"
    )
    prompt_tokens: float | None = Field(None, gt=0, description="mean prompt of a call, tokens")
    new_tokens: float | None = Field(None, gt=0, description="mean tokens of a prompt that were never sent before")
    latency_s_per_request: float = Field(
        0.0, ge=0, description="seconds that each further request in service adds to a call"
    )
    kappa: float = Field(1.0, gt=0, description="cliff scale of this deployment and router, from a load ramp")
    plateau: float = Field(0.95, gt=0, le=1, description="hit rate in health")
    floor: float = Field(0.27, ge=0, lt=1, description="hit rate after collapse")


Origin = Literal["file", "ramp", "option"]


def ask(sources: Mapping[Origin, Mapping[str, Any]], file: Path | None = None) -> Question:
    """The question that the sources make together.

    Raises `UsageError` naming the option or the field at fault.
    """
    merged: dict[str, Any] = {}
    origin: dict[str, Origin] = {}
    for source, values in sources.items():
        for name, value in values.items():
            if value is not None:
                merged[name], origin[name] = value, source
    try:
        return Question(**merged)
    except ValidationError as error:
        raise UsageError("\n".join(_explain(e, origin, file) for e in error.errors())) from None


def read_file(path: Path) -> dict[str, Any]:
    """The fields of a deployment file, YAML or JSON. Raises `UsageError` if it cannot be read as such."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        fields = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: holds {type(fields).__name__}, not fields such as `cache_tokens: 1090000`")
    return fields


def _explain(error: Any, origin: Mapping[str, Origin], file: Path | None) -> str:
    name = str(error["loc"][0])
    option = "--" + name.replace("_", "-")
    known = Question.model_fields.get(name)
    if known is None:
        names = ", ".join(Question.model_fields)
        return f"{file}: field {name} is not known; leave it out or use one of: {names}"
    if error["type"] == "missing":
        return f"{option} is missing: give it, or {name} in the deployment file ({known.description})"
    where = f"{file}: field {name}" if origin.get(name) == "file" else option
    return f"{where} is {error['input']!r}: {error['msg'].lower()} ({known.description})"
