"""Calibrations as data: every number of an engine with the place it comes from."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Quantity(BaseModel):
    """A number, its unit and its origin.

    `published`: stands in a paper; `derived`: follows from published numbers by the formula in `source`;
    `fitted`: found by `basin calibrate` from the claims in `claims`; `assumed`: our choice, `source` says why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    value: float = Field(ge=0)
    unit: str
    origin: Literal["published", "derived", "fitted", "assumed"]
    source: str
    claims: tuple[str, ...] = ()


class Quantities(BaseModel):
    """A calibration's numbers, by dotted name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every number with its dotted name."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Quantity):
                yield name, value

    def fitted_claims(self) -> set[str]:
        """Claims that any number was fitted to: they do not count as validation."""
        return {claim for _, quantity in self.quantities() for claim in quantity.claims}


class Prefill(BaseModel):
    """Time of one prefill step: fixed + tokens x per_token + sum over tokens of position x per_token_position."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cache_tokens: Quantity
    """C_G of one instance."""
    chunk_tokens: Quantity
    fixed_s: Quantity
    per_token_s: Quantity
    per_token_position_s: Quantity
    host_load_tokens_per_s: Quantity
    state_slots: Quantity
    """Cached prefixes that can keep their recurrent state (hybrid model)."""


class Decode(BaseModel):
    """Time of one decode step: fixed + requests x per_request + context tokens x per_context_token."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kv_tokens: Quantity
    """D_KV of one instance."""
    held_back_tokens: Quantity
    """Per running or reserved request, kept free for its growth when a new request asks for memory."""
    fixed_s: Quantity
    per_request_s: Quantity
    per_context_token_s: Quantity
    state_slots: Quantity
    """Requests that can hold a recurrent state at once (hybrid model)."""


class Calibration(Quantities):
    """One engine type (GPU and model)."""

    name: str
    description: str
    hybrid: bool
    """The model has recurrent layers: a cached prefix is usable only where its state was saved, at its end."""
    prefill: Prefill
    decode: Decode
    transfer_s: Quantity
    """Fixed time of one prefill-to-decode transfer."""
    link_tokens_per_s: Quantity = Quantity(
        value=1e6,
        unit="tokens/s",
        origin="derived",
        source="paper A §6.6: a 25K-token unit transfers within tens of milliseconds over NVLink; taken as 25 ms",
    )
    """Rate at which KV moves between instances: fetches of lent units, and transfers charged by the token."""
    call_overhead_s: Quantity
    """Client and router time added to every call."""
    itl_slo_s: Quantity

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every number with its dotted name."""
        for part, owner in (("prefill.", self.prefill), ("decode.", self.decode), ("", self)):
            for name in type(owner).model_fields:
                value = getattr(owner, name)
                if isinstance(value, Quantity):
                    yield part + name, value

    def context_limits(self) -> dict[str, int]:
        """What bounds the longest context that one instance of each kind can hold, tokens by name."""
        return {
            "prefill cache": int(self.prefill.cache_tokens.value),
            "decode memory": int(self.decode.kv_tokens.value),
        }

    def saturated_prefill_tokens_per_s(self, position: float) -> float:
        """Throughput of full prefill chunks whose tokens stand at this mean position."""
        p = self.prefill
        chunk = p.chunk_tokens.value
        step = p.fixed_s.value + chunk * (p.per_token_s.value + position * p.per_token_position_s.value)
        return chunk / step


class ColocatedCalibration(Quantities):
    """One engine that prefills and decodes in one batch (paper B), of one GPU and model.

    Time of one step: fixed + running requests x per_request + K x per_context_token + sum over its prompt tokens of
    (per_token + position x (per_token_position + K x per_token_position_context)), K the context tokens of the requests
    that decode in it.
    """

    kind: Literal["colocated"]
    name: str
    description: str
    scheduler: Literal["vllm", "sglang"]
    """`vllm`: prefill chunks ride in decode steps, a flush preempts. `sglang`: prefill steps of their own go first,
    room for part of the running requests' outputs is kept free at admission, a flush waits until nothing runs."""
    pool_tokens: Quantity
    """C: KV tokens shared by running requests and cached prefixes."""
    chunk_tokens: Quantity
    """Tokens of one step, decoding requests count one each."""
    max_running: Quantity
    fixed_s: Quantity
    per_request_s: Quantity
    per_context_token_s: Quantity
    per_token_s: Quantity
    per_token_position_s: Quantity
    per_token_position_context_s: Quantity
    """The attention of prompts slows down beside the contexts of requests that decode: one reads KV as the other does.
    It costs the older sessions most, as paper B's c(L) of the degraded runs does (§4)."""
    host_load_tokens_per_s: Quantity
    call_overhead_s: Quantity
    itl_slo_s: Quantity

    def context_limits(self) -> dict[str, int]:
        """What bounds the longest context that the engine can hold, tokens by name."""
        return {"KV pool": int(self.pool_tokens.value)}

    def saturated_prefill_tokens_per_s(self, position: float) -> float:
        """Throughput of steps full of prompt tokens that stand at this mean position, with nothing decoding."""
        chunk = self.chunk_tokens.value
        step = chunk * (self.per_token_s.value + position * self.per_token_position_s.value)
        return chunk / (self.fixed_s.value + step)


def calibration(name_or_path: str) -> Calibration:
    """The calibration of that name under `sim/calibration`, or one of a user's own by its file's path.

    Raises `ValueError` naming the known ones, or what is wrong in the file.
    """
    found = any_calibration(name_or_path)
    if isinstance(found, ColocatedCalibration):
        raise ValueError(
            f"calibration {name_or_path!r} is of a colocated engine: set the deployment's kind to 'colocated'"
        )
    return found


def colocated_calibration(name_or_path: str) -> ColocatedCalibration:
    """As `calibration`, for a colocated engine."""
    found = any_calibration(name_or_path)
    if isinstance(found, Calibration):
        raise ValueError(
            f"calibration {name_or_path!r} is of a prefill-decode engine: set the deployment's kind to 'pd', or give a "
            "colocated engine's, such as 'mi300x-qwen3-8b'"
        )
    return found


@cache
def any_calibration(name_or_path: str) -> Calibration | ColocatedCalibration:
    """The calibration of that name or path, of whatever kind of engine."""
    folder = files("sim.calibration")
    known = sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))
    path = folder / f"{name_or_path}.yaml" if name_or_path in known else Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"no calibration {name_or_path!r}: known are {', '.join(known)}, or give a YAML file's path")
    try:
        data = yaml.safe_load(path.read_text())
        colocated = isinstance(data, dict) and data.get("kind") == "colocated"
        return ColocatedCalibration.model_validate(data) if colocated else Calibration.model_validate(data)
    except (ValidationError, yaml.YAMLError) as error:
        raise ValueError(f"calibration {name_or_path!r}: {error}") from error
