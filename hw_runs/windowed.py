"""What a run's windows say about the engine's work: the regressors that engine costs are fitted to.

Everything comes from the calls, each of which is taken to be in prefill until its first token and to decode evenly
from then on; so any engine can be fitted, whatever it exports. Only the number of a colocated engine's steps is read
from its own counter.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from artifact.metrics import column, duration_s
from artifact.records.schema import Records
from hw_runs.scrape import load_engines

STEPS = "vllm:iteration_tokens_total_count"
TRANSFER_MS, TRANSFERS = "sglang:kv_transfer_latency_ms_sum", "sglang:kv_transfer_latency_ms_count"


def calls_of(run: Records) -> pd.DataFrame:
    """The answered calls with what the fits use: `released`, `first`, `finished` (s), `prompt`, `new` (tokens
    computed), `output`, `position` (mean of the computed tokens)."""
    names = {"released_s": "released", "first_token_s": "first", "finished_s": "finished", "prompt_tokens": "prompt"}
    frame = pd.DataFrame({short: column(run.calls, name) for name, short in names.items()})
    frame["output"] = column(run.calls, "output_tokens")
    frame["new"] = frame["prompt"] - np.nan_to_num(column(run.calls, "cached_tokens"))
    frame["position"] = frame["prompt"] - frame["new"] / 2
    return frame.dropna(subset=["first", "finished"]).reset_index(drop=True)


def edges_of(run: Records, width_s: float) -> np.ndarray:
    """Of all whole windows. Raises `ValueError` for a run without any."""
    count = int(duration_s(run) / width_s + 1e-9)
    if count < 1:
        raise ValueError(f"a run of {duration_s(run):g} s has no whole window of {width_s:g} s; narrow the window")
    return width_s * np.arange(count + 1)


def decode_windows(run: Records, width_s: float, instances: int) -> pd.DataFrame:
    """A row a window with decoding calls, means over the tokens decoded in it: `itl_s`, the time since the token
    before; `batch` and `context`, requests and context tokens in the same step, those of other calls spread evenly over
    `instances`. `tokens`: how many.

    Over tokens, not over time: only so is the mean step that of the mean batch, where a step's time is linear in it.
    """
    calls, edges = calls_of(run), edges_of(run, width_s)
    calls = calls[(calls["output"] > 1) & (calls["finished"] > calls["first"])]
    first, finished = calls["first"].to_numpy(), calls["finished"].to_numpy()
    per_s = (calls["output"].to_numpy() - 1) / (finished - first)
    context = (calls["prompt"] + calls["output"] / 2).to_numpy()
    rows = []
    for low, high in pairwise(edges.tolist()):
        here = (first < high) & (finished > low)
        begin, end = np.maximum(first[here], low), np.minimum(finished[here], high)
        beside = np.clip(np.minimum(end, end[:, None]) - np.maximum(begin, begin[:, None]), 0, None)
        lasting = end - begin
        tokens, own = per_s[here] * lasting, context[here]
        together = (beside.sum(axis=1) / lasting - 1) / instances + 1
        with_them = (beside @ own / lasting - own) / instances + own
        if (total := tokens.sum()) >= 1:
            rows.append((lasting.sum() / total, tokens @ together / total, tokens @ with_them / total, total))
    return pd.DataFrame(rows, columns=["itl_s", "batch", "context", "tokens"])


def lone_prefills(run: Records) -> pd.DataFrame:
    """Calls whose time to first token overlaps no other call's: `seconds`, `new`, `position`."""
    calls = calls_of(run).sort_values("released", ignore_index=True)
    before = calls["first"].cummax().shift(1, fill_value=-np.inf)
    after = calls["released"].shift(-1, fill_value=np.inf)
    alone = calls[(calls["released"] >= before) & (calls["first"] <= after)]
    return alone.assign(seconds=alone["first"] - alone["released"])[["seconds", "new", "position", "released"]]


def colocated_windows(run: Records, folder: Path, width_s: float, chunk_tokens: int) -> pd.DataFrame:
    """A row a window with work: `busy_s`, in which some call was in the engine, and what it did meanwhile: `steps`,
    `requests` (a request a step: decoded tokens and prompt chunks), `contexts` (context tokens of those), `new`
    prompt tokens, `positions` (sum of their positions) and `calls` begun. Raises `ValueError` for a run whose engine
    did not count its steps."""
    calls, edges = calls_of(run), edges_of(run, width_s)
    said = load_engines(folder)
    counted = said[said["name"] == STEPS]
    if counted.empty:
        raise ValueError(f"{folder}: the engine has no {STEPS}, which a colocated engine's fit needs")
    total = counted.groupby("time_s")["value"].sum()
    steps = np.diff(np.interp(edges, total.index.to_numpy(), total.to_numpy()))
    prefill = share(prefill_began(calls), calls["first"], edges)
    decode = share(calls["first"], calls["finished"], edges)
    new, output = calls["new"].to_numpy(), calls["output"].to_numpy() - 1.0
    context = (calls["prompt"] + calls["output"] / 2).to_numpy()
    chunks = np.ceil(new / chunk_tokens)
    frame = pd.DataFrame(
        {
            "busy_s": busy(calls["released"], calls["finished"], edges),
            "steps": steps,
            "requests": decode @ output + prefill @ chunks,
            "contexts": decode @ (output * context),
            "new": prefill @ new,
            "positions": prefill @ (new * calls["position"].to_numpy()),
            "calls": prefill.sum(axis=1),
        }
    )
    return frame[frame["busy_s"] > 0].reset_index(drop=True)


def prefill_began(calls: pd.DataFrame) -> pd.Series:
    """When each call's prompt was begun by an engine that computes one after the other: once it was there and the
    first token before its own was out."""
    before = calls["first"].sort_values().shift(1, fill_value=-np.inf).reindex(calls.index)
    return calls["released"].clip(lower=before)


def transfer_windows(folder: Path, width_s: float) -> np.ndarray:
    """Mean seconds of a prefill-to-decode transfer in each window with any; empty where the engine does not say."""
    said = load_engines(folder)
    totals: Mapping[str, pd.Series] = {
        name: said[said["name"] == name].groupby("time_s")["value"].sum() for name in (TRANSFER_MS, TRANSFERS)
    }
    if any(series.empty for series in totals.values()):
        return np.empty(0)
    edges = np.arange(0, totals[TRANSFERS].index.max() + width_s, width_s)
    spent, count = (
        np.diff(np.interp(edges, s.index.to_numpy(), s.to_numpy())) for s in (totals[TRANSFER_MS], totals[TRANSFERS])
    )
    return np.asarray(spent[count > 0] / count[count > 0] / 1e3)


def overlap(start: pd.Series, end: pd.Series, edges: np.ndarray) -> np.ndarray:
    """Seconds that each call's interval has in each window, shape (windows, calls)."""
    low, high = np.maximum(start.to_numpy(), edges[:-1, None]), np.minimum(end.to_numpy(), edges[1:, None])
    return np.clip(high - low, 0, None)


def share(start: pd.Series, end: pd.Series, edges: np.ndarray) -> np.ndarray:
    """The part of each call's interval in each window, shape (windows, calls); all of an empty one where it lies."""
    lasting = (end - start).to_numpy()
    inside = overlap(start, end, edges)
    at_once = (start.to_numpy() >= edges[:-1, None]) & (start.to_numpy() < edges[1:, None])
    return np.where(lasting > 0, inside / np.where(lasting > 0, lasting, 1), at_once)


def busy(start: pd.Series, end: pd.Series, edges: np.ndarray) -> np.ndarray:
    """Seconds of each window in which at least one of the intervals lies."""
    order = np.argsort(start.to_numpy())
    begins, ends = start.to_numpy()[order], np.maximum.accumulate(end.to_numpy()[order])
    first = np.append(True, begins[1:] > ends[:-1])  # begins a stretch that no earlier call reaches into
    last = np.append(first[1:], True)
    return overlap(pd.Series(begins[first]), pd.Series(ends[last]), edges).sum(axis=1)
