"""`basin risk`: can a surge trap this deployment, and what would it take?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.risk.assess import assess
from sim.risk.question import Question, UsageError, ask, read_file
from sim.risk.report import as_json, as_text


def _number(name: str) -> Any:
    text = Question.model_fields[name].description or ""
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{text[:1].upper()}{text[1:]}.")


def risk(
    file: Annotated[
        Path | None, typer.Argument(help="Deployment file, YAML or JSON, whose fields are the options below.")
    ] = None,
    ramp: Annotated[
        Path | None,
        typer.Option(help="Recorded load ramp, CSV or Parquet: working set or active sessions, hit rate, call rate."),
    ] = None,
    cache_tokens: Annotated[float | None, _number("cache_tokens")] = None,
    decode_kv_tokens: Annotated[float | None, _number("decode_kv_tokens")] = None,
    context_tokens: Annotated[float | None, _number("context_tokens")] = None,
    in_service: Annotated[float | None, _number("in_service")] = None,
    latency_s: Annotated[float | None, _number("latency_s")] = None,
    gap_s: Annotated[float | None, _number("gap_s")] = None,
    active_sessions: Annotated[float | None, _number("active_sessions")] = None,
    calls_per_min: Annotated[float | None, _number("calls_per_min")] = None,
    sessions_per_min: Annotated[float | None, _number("sessions_per_min")] = None,
    calls_per_session: Annotated[float | None, _number("calls_per_session")] = None,
    prefill_tokens_per_s: Annotated[float | None, _number("prefill_tokens_per_s")] = None,
    prompt_tokens: Annotated[float | None, _number("prompt_tokens")] = None,
    new_tokens: Annotated[float | None, _number("new_tokens")] = None,
    latency_s_per_request: Annotated[float | None, _number("latency_s_per_request")] = None,
    kappa: Annotated[float | None, _number("kappa")] = None,
    plateau: Annotated[float | None, _number("plateau")] = None,
    floor: Annotated[float | None, _number("floor")] = None,
    name: Annotated[str | None, _number("name")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the answer into this PNG or PDF.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    """Say whether a surge can trap a deployment on its prefix cache, and how to get out (paper A §5).

    Three numbers give the cliff: --cache-tokens, --decode-kv-tokens, --context-tokens. With --in-service it says which
    resource comes first; with call times, call rates and the prefill rate, where the tipping point is. Whatever had to
    be assumed, or could not be answered, is named. Exit code 2: the numbers cannot be used; the message says why.
    """
    given = {k: v for k, v in locals().items() if k in Question.model_fields}
    try:
        fields = read_file(file) if file else {}
        measured = _read_ramp(ramp, {**fields, **{k: v for k, v in given.items() if v is not None}})
        answer = assess(ask({"file": fields, "ramp": measured, "option": given}, file))
        if plot:
            from sim.risk.plot import draw

            draw(answer, plot)
    except UsageError as error:
        typer.echo(f"basin risk: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(as_json(answer) if json else as_text(answer))


def _read_ramp(path: Path | None, known: dict[str, Any]) -> dict[str, float]:
    if path is None:
        return {}
    from sim.risk.ramp import measure, read_ramp

    return measure(read_ramp(path), known, path)
