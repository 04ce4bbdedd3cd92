"""Bad input: the error names file, line and field and says what to do; `skip_bad` loses bad sessions and no other."""

import json
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact.workload.formats import TraceError, detect, load
from artifact.workload.formats.base import out_of_order

TRACES = Path(__file__).parents[1] / "data" / "traces"


def replaced(line: int, old: str, new: str) -> Callable[[str], str]:
    """Edit of one line (from 1) that must change something."""

    def edit(text: str) -> str:
        lines = text.splitlines()
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        return "\n".join(lines) + "\n"

    return edit


def cut(line: int) -> Callable[[str], str]:
    """A line that breaks off in its last third."""

    def edit(text: str) -> str:
        lines = text.splitlines()
        lines[line - 1] = lines[line - 1][: len(lines[line - 1]) * 2 // 3]
        return "\n".join(lines) + "\n"

    return edit


# file, edit, line and field of the error, a part of its problem, ids that survive with skip_bad
BAD = {
    "native: not JSON": ("native.jsonl", cut(2), 2, "", "not JSON", ["alpha"]),
    "native: missing field": (
        "native.jsonl",
        replaced(1, '"output_tokens"', '"outputs"'),
        1,
        "output_tokens",
        "missing",
        ["beta"],
    ),
    "native: negative": ("native.jsonl", replaced(1, "1300", "-1300"), 1, "prompt_tokens[1]", "-1300", ["beta"]),
    "native: not a number": ("native.jsonl", replaced(1, "120", '"many"'), 1, "output_tokens[1]", "'many'", ["beta"]),
    "native: a fraction": ("native.jsonl", replaced(1, "120", "120.5"), 1, "output_tokens[1]", "whole", ["beta"]),
    "native: true": ("native.jsonl", replaced(1, "120", "true"), 1, "output_tokens[1]", "True", ["beta"]),
    "native: negative gap": ("native.jsonl", replaced(1, "0.5", "-0.5"), 1, "gap_before_s[1]", "below 0", ["beta"]),
    "native: infinite gap": ("native.jsonl", replaced(1, "0.5", "1e999"), 1, "gap_before_s[1]", "finite", ["beta"]),
    "native: too large": ("native.jsonl", replaced(2, "10,20", f"10,{10**30}"), 2, "", "not credible", ["alpha"]),
    "native: uneven": ("native.jsonl", replaced(2, "[10,20]", "[10]"), 2, "output_tokens", "1 entries", ["alpha"]),
    "native: no calls": (
        "native.jsonl",
        lambda text: text + '{"session_id":"c","prompt_tokens":[],"new_tokens":[],"output_tokens":[]}\n',
        3,
        "prompt_tokens",
        "at least one call",
        ["alpha", "beta"],
    ),
    "tracelab: missing round": ("tracelab.csv", replaced(3, ",1,1080", ",5,1080"), 4, "round_idx", "round 1", ["s2"]),
    "tracelab: negative": ("tracelab.csv", replaced(4, ",100,", ",-100,"), 4, "input_len", "below 0", ["s2"]),
    "tracelab: short row": ("tracelab.csv", replaced(5, ",7,0", ""), 5, "output_len", "missing", ["s1"]),
    "tracelab: negative wait": (
        "tracelab.csv",
        replaced(2, ",250", ",-250"),
        2,
        "tool_wait_after_ms",
        "below 0",
        ["s2"],
    ),
    "mooncake: not JSON": ("mooncake.jsonl", cut(2), 2, "", "not JSON", ["m2"]),
    "mooncake: missing field": (
        "mooncake.jsonl",
        replaced(3, '"output_length":9,', ""),
        3,
        "output_length",
        "missing",
        ["m1"],
    ),
    "mooncake: negative": ("mooncake.jsonl", replaced(2, "1700", "-1"), 2, "input_length", "below 0", ["m2"]),
    "mooncake: back in time": ("mooncake.jsonl", replaced(4, "9000", "1999"), 4, "timestamp", "before", ["m2"]),
    "mooncake: negative delay": ("mooncake.jsonl", replaced(2, "350", "-350"), 2, "delay", "below 0", ["m2"]),
    "plain mooncake: out of order": (
        "mooncake_plain.jsonl",
        replaced(3, "4000", "9900"),
        3,
        "timestamp",
        "out of order",
        ["request_1", "request_2", "request_4", "request_6"],
    ),
    "bailian: not JSON": ("bailian.jsonl", cut(6), 6, "", "not JSON", ["9", "13", "20"]),
    "bailian: back in time": ("bailian.jsonl", replaced(6, "11.0", "1.0"), 6, "timestamp", "order", ["9", "13", "20"]),
    "bailian: missing field": (
        "bailian.jsonl",
        replaced(2, "hash_ids", "h"),
        2,
        "hash_ids",
        "missing",
        ["7", "13", "20"],
    ),
    "bailian: same chat, other content": (
        "bailian.jsonl",
        replaced(5, '"chat_id": 20', '"chat_id": 9'),
        5,
        "chat_id",
        "occurs before",
        ["7", "9", "13"],
    ),
    "weka: not JSON": ("weka.json", cut(2), 2, "", "not JSON", []),
    "weka: missing field": (
        "weka.json",
        replaced(3, '"in":330,', ""),
        None,
        "requests[1].in",
        "missing",
        ["w1/agent_001"],
    ),
    "weka: back in time": ("weka.json", replaced(8, "27.0", "7.0"), None, "requests[4].t", "before", ["w1/agent_001"]),
    "weka: sub-agent": (
        "weka.json",
        replaced(6, '"out":6', '"out":-6'),
        None,
        "requests[2].requests[1].out",
        "-6",
        ["w1"],
    ),
    "claude-code: not JSON": ("claude_code.jsonl", cut(7), 7, "", "not JSON", ["c1/s1"]),
    "claude-code: negative": (
        "claude_code.jsonl",
        replaced(9, '"output_tokens":9', '"output_tokens":-9'),
        9,
        "message.usage.output_tokens",
        "below 0",
        ["c1/s1"],
    ),
    "claude-code: back in time": (
        "claude_code.jsonl",
        replaced(9, "10:00:09", "09:00:09"),
        9,
        "timestamp",
        "before",
        ["c1/s1"],
    ),
    "claude-code: no time": (
        "claude_code.jsonl",
        replaced(9, "2026-01-05T", "on "),
        9,
        "timestamp",
        "ISO 8601",
        ["c1/s1"],
    ),
    "atif: negative": (
        "atif.json",
        replaced(13, '"prompt_tokens": 1000', '"prompt_tokens": -1'),
        None,
        "steps[4].metrics.prompt_tokens",
        "below 0",
        ["run-1/helper"],
    ),
    "atif: back in time": (
        "atif.json",
        replaced(12, "10:00:09.500", "10:00:03"),
        None,
        "steps[4].timestamp",
        "before",
        ["run-1/helper"],
    ),
    "atif: missing field": (
        "atif.json",
        replaced(14, '"source": "user", ', ""),
        None,
        "steps[5].source",
        "missing",
        ["run-1/helper"],
    ),
    "atif: several calls in a step": (
        "atif.json",
        replaced(12, '"step_id": 5', '"llm_call_count": 2'),
        None,
        "steps[4].llm_call_count",
        "cannot be told apart",
        ["run-1/helper"],
    ),
    "mini-swe-agent: back in time": (
        "mini_swe_agent.traj.json",
        replaced(9, "1010.0", "1002.0"),
        None,
        "messages[5].extra.timestamp",
        "before",
        [],
    ),
    "mini-swe-agent: no call": (
        "mini_swe_agent.traj.json",
        lambda _: '{"messages": [{"role": "user", "content": "hello"}], "info": {}}',
        None,
        "messages",
        "no message",
        [],
    ),
    "swe-agent: negative": (
        "swe_agent.traj",
        replaced(5, "0.125", "-0.125"),
        None,
        "trajectory[0].execution_time",
        "below 0",
        [],
    ),
    "swe-agent: no prompt": (
        "swe_agent.traj",
        lambda _: '{"trajectory": [{"response": "change it"}], "history": []}',
        None,
        "trajectory[0].query",
        "missing",
        [],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path) -> None:
    name, edit, line, field, problem, survivors = BAD[case]
    file = tmp_path / name
    file.write_text(edit((TRACES / name).read_text()))
    format = case.partition(":")[0].removeprefix("plain ")

    with pytest.raises(TraceError) as found:
        load(file, format)
    assert (found.value.path, found.value.line, found.value.field) == (file, line, field)
    assert problem in found.value.problem
    place = str(file) if line is None else f"{file}:{line}"
    assert str(found.value).startswith(f"{place}: {field}")
    assert "skip" in str(found.value)

    result = load(file, format, skip_bad=True)
    assert [t.id for t in result] == survivors
    assert len(result.skipped) == 1
    assert str(found.value) in result.skipped
    originals = {t.id: t for t in load(TRACES / name)}
    if name != "mooncake_plain.jsonl":  # where a lost call leaves shorter sessions, since nothing ties them
        for t in result:
            before = originals[t.id]
            assert (t.prompt_tokens, t.output_tokens) == (before.prompt_tokens, before.output_tokens)


def test_line_whose_session_is_unknown_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text((TRACES / "mooncake.jsonl").read_text() + "{oops\n[1]\n")
    result = load(file, skip_bad=True)
    assert (len(result), len(result.skipped)) == (2, 2)
    assert f"{file}:5" in result.skipped[0]


def test_missing_column(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("session_id,round_idx,prefix_len,input_len,output_len\n0,0,0,5,5\n")
    with pytest.raises(TraceError, match=r"t\.csv:1: tool_wait_after_ms: no such column"):
        load(file)


@pytest.mark.parametrize("text", ["", "\n\n", "[]", "{}", "null", "{\n", '{"a": \n', "\x00\x01", "[" * 100_000])
def test_files_that_hold_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text(text)
    for format in (None, "native", "tracelab", "mooncake", "bailian", "weka", "claude-code", "atif", "mini-swe-agent"):
        with pytest.raises(TraceError):
            load(file, format)


def test_missing_file_and_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match=r"no file below it ends in .*\.jsonl"):
        load(tmp_path)


def test_duplicates_are_dropped_and_counted_and_other_content_is_kept(tmp_path: Path) -> None:
    line = (TRACES / "native.jsonl").read_text().splitlines()[0]
    other = line.replace("2.25", "3.5")
    file = tmp_path / "n.jsonl"
    file.write_text("\n".join([line, other, line, other, line.replace("alpha", "gamma")]))
    result = load(file)
    assert [t.id for t in result] == ["alpha", "alpha#2", "gamma"]
    assert [reason.partition(": ")[0] for reason in result.skipped] == [f"{file}:3", f"{file}:4"]
    assert len(result.notes) == 2  # a renamed session, and gamma's likeness to alpha


def test_duplicate_chat_is_counted(tmp_path: Path) -> None:
    text = (TRACES / "bailian.jsonl").read_text()
    file = tmp_path / "b.jsonl"
    file.write_text(text + text.splitlines()[-1])
    result = load(file)
    assert (len(result), len(result.skipped)) == (4, 1)


@given(st.lists(st.integers(0, 8), max_size=9))
def test_out_of_order_is_the_fewest(times: list[int]) -> None:
    late = out_of_order(times)
    kept = [t for i, t in enumerate(times) if i not in late]
    assert kept == sorted(kept)
    longest = [1] * len(times)  # quadratic, by definition
    for i, t in enumerate(times):
        longest[i] += max((longest[j] for j in range(i) if times[j] <= t), default=0)
    assert len(kept) == max(longest, default=0)


JUNK = (None, -1, 0, 1.5, True, "", "x", "5", [], [None], ["x"], [[]], [{}], {}, {"a": 1})


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in steps for place in [(data, key), *places(value)]]


NOT_CSV = [file.name for file in sorted(TRACES.glob("*.*")) if file.suffix != ".csv"]


def plant_junk(name: str, file: Path, values: int) -> None:
    """Put `values` kinds of junk in turn at every place of the file: an error of ours comes of it, or sessions."""
    lines = (TRACES / name).read_text().splitlines()
    lines = lines if name.endswith(".jsonl") else ["\n".join(lines)]
    format = detect(TRACES / name)
    junk = cycle(JUNK)
    rejected = 0
    for n, line in enumerate(lines):
        for at in range(len(places(json.loads(line)))):
            for value in islice(junk, values):
                data = json.loads(line)
                container, key = places(data)[at]
                container[key] = value
                file.write_text("\n".join([*lines[:n], json.dumps(data), *lines[n + 1 :]]))
                try:
                    load(file, format)
                except TraceError:
                    rejected += 1
                    load(file, format, skip_bad=True)
    assert rejected > 10


@pytest.mark.parametrize("name", NOT_CSV)
def test_junk_anywhere(name: str, tmp_path: Path) -> None:
    plant_junk(name, tmp_path / name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_CSV)
def test_any_junk_anywhere(name: str, tmp_path: Path) -> None:
    plant_junk(name, tmp_path / name, len(JUNK))
