"""The Mooncake export drives other simulators: its ids must say of every block whether it was seen before."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.workload.formats import load, save
from artifact.workload.formats.mooncake import fitting_block_size, write_plan
from artifact.workload.load import PlannedSession
from artifact.workload.trajectory import Trajectory


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def session(key: str, head: int = 1100) -> Trajectory:
    return Trajectory(
        key, (1500, 2600, 2000), (1500, 1100, 700), (40, 50, 60), (0.0, 0.25, 1.0001), shared_head_tokens=head
    )


def test_rows_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    save(file, [session("a"), session("b")], "mooncake", {"a": 5.0, "b": 2.5})
    b1, b2, b3, a1, *_ = rows(file)
    # The head of 1100 fills two blocks. 1500 are three blocks, of which 2600 repeats the two whole ones; of 2600,
    # 2000 repeats 1300, which are two whole blocks.
    assert b1 == {
        "session_id": "b",
        "timestamp": 2500,
        "input_length": 1500,
        "output_length": 40,
        "hash_ids": b1["hash_ids"],
    }
    assert (b2["delay"], b3["delay"]) == (250, 1000.1)
    assert "timestamp" not in b2
    assert (b2["input_length"], b2["output_length"]) == (2600, 50)
    assert [len(row["hash_ids"]) for row in (b1, b2, b3)] == [3, 6, 4]
    assert b1["hash_ids"][:2] == b2["hash_ids"][:2] == b3["hash_ids"][:2] == a1["hash_ids"][:2]
    rest = [*b1["hash_ids"][2:], *b2["hash_ids"][2:], *b3["hash_ids"][2:], *a1["hash_ids"][2:]]
    assert len(set(rest)) == len(rest)


@st.composite
def tokens_of_sessions(draw: st.DrawFn) -> list[tuple[Trajectory, list[list[int]]]]:
    """Sessions with the very tokens of their prompts (all distinct unless repeated)."""
    head = list(range(draw(st.integers(0, 40))))
    fresh = iter(range(1000, 10**9))
    found = []
    for s in range(draw(st.integers(1, 3))):
        prompts = [head + [next(fresh) for _ in range(draw(st.integers(1, 40)))]]
        new = [len(prompts[0])]
        for _ in range(draw(st.integers(0, 4))):
            kept = draw(st.integers(len(head), len(prompts[-1])))
            new.append(draw(st.integers(0 if kept else 1, 40)))
            prompts.append(prompts[-1][:kept] + [next(fresh) for _ in range(new[-1])])
        n = len(prompts)
        sizes = tuple(map(len, prompts))
        found.append(
            (Trajectory(f"s{s}", sizes, tuple(new), (1,) * n, (0.0,) * n, shared_head_tokens=len(head)), prompts)
        )
    return found


@settings(max_examples=50)
@given(sessions=tokens_of_sessions(), block=st.integers(1, 24))
def test_ids_are_equal_exactly_where_whole_blocks_are(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[tuple[Trajectory, list[list[int]]]], block: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "blocks.jsonl"
    save(file, [t for t, _ in sessions], "mooncake", block_tokens=block)
    id_of: dict[tuple[int, ...], int] = {}
    for row, prompt in zip(rows(file), [p for _, prompts in sessions for p in prompts], strict=True):
        assert len(row["hash_ids"]) == -(-len(prompt) // block)
        for i, name in enumerate(row["hash_ids"]):
            content = tuple(prompt[: (i + 1) * block])  # the block with all before it
            if len(content) == (i + 1) * block:
                assert id_of.setdefault(content, name) == name
            else:
                assert name not in id_of.values()
                id_of[(*content, -name - 1)] = name
    assert len(set(id_of.values())) == len(id_of)


def test_plan_is_replayed_from_where_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "plan.jsonl"
    plan = [
        PlannedSession("s2", 7.0, session("a"), "surge"),
        PlannedSession("s1", 0.0, session("a"), "warm", first_call=1, first_gap_s=0.1),
        PlannedSession("s3", 3.0, session("b"), "base"),
    ]
    write_plan(file, plan, block_tokens=64)
    found = rows(file)
    assert [row["session_id"] for row in found] == ["s1"] * 2 + ["s3"] * 3 + ["s2"] * 3
    assert [(row.get("timestamp"), row.get("delay")) for row in found[:3]] == [
        (100, None),
        (None, 1000.1),
        (3000, None),
    ]
    s1, s3, s2 = found[:2], found[2:5], found[5:]
    assert [row["hash_ids"] for row in s2[1:]] == [row["hash_ids"] for row in s1]  # replays of one trajectory
    assert s3[0]["hash_ids"][:17] == s2[0]["hash_ids"][:17]  # 1100 // 64 blocks of head
    assert not set(s3[0]["hash_ids"][17:]) & set(s2[0]["hash_ids"])
    assert len(load(file)) == 3


def test_block_size_is_the_one_that_fits_most() -> None:
    assert fitting_block_size([]) == 512
    assert fitting_block_size([(10, 1)]) == 512  # says nothing
    assert fitting_block_size([(1000, 16), (700, 11), (5000, 3)]) == 64
    assert fitting_block_size([(6758, 14), (7322, 15)]) == 512


def test_block_size_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="block_tokens: 0"):
        save(tmp_path / "m.jsonl", [session("a")], "mooncake", block_tokens=0)
