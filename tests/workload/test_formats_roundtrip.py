"""What is written and read back: everything a format can hold, and nothing else lost."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.workload.formats import FORMATS, TraceError, load, save
from artifact.workload.trajectory import Trajectory

# Gaps are kept to the microsecond by time stamps and to rounding by the others.
GAP_TOLERANCE_S = 1e-5
TRANSCRIPTS = ("claude-code", "atif", "mini-swe-agent")
BLOCKS = {"mooncake": 512, "bailian": 16, "weka": 64}


@st.composite
def trajectory(draw: st.DrawFn, repeats: str, head: int = 0) -> Trajectory:
    """`repeats`: what a prompt repeats of the preceding one: "anything" (beyond the head), "all" (append only), or
    "shrinks" (anything, but all of it unless the prompt shrinks), which is as far as prompt sizes and cache hits tell.
    """
    prompts = [draw(st.integers(max(head, 1), 5000))]
    new = [prompts[0]]
    for _ in range(draw(st.integers(0, 6))):
        before = prompts[-1]
        repeated = before if repeats == "all" else draw(st.integers(min(head, before), before))
        added = draw(st.integers(0 if repeated else 1, 3000))
        if repeats == "shrinks" and repeated + added >= before:
            repeated, added = before, repeated + added - before
        prompts.append(repeated + added)
        new.append(added)
    n = len(prompts)
    return Trajectory(
        id=draw(st.text("ab c,\"'/é", min_size=1, max_size=6)),
        prompt_tokens=tuple(prompts),
        new_tokens=tuple(new),
        output_tokens=tuple(draw(st.lists(st.integers(0, 900), min_size=n, max_size=n))),
        gap_before_s=(0.0, *draw(st.lists(st.floats(0, 3600), min_size=n - 1, max_size=n - 1))),
        task_text=draw(st.text(max_size=20)),
        shared_head_tokens=head,
    )


def workloads(repeats: str, head: int = 0) -> st.SearchStrategy[list[Trajectory]]:
    return st.lists(trajectory(repeats, head), min_size=1, max_size=4, unique_by=lambda t: t.id)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("roundtrip") / "out"


def there_and_back(target: Path, trajectories: list[Trajectory], format: str, **options: Any) -> list[Trajectory]:
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    save(target, trajectories, format, **options)
    result = load(target, format)
    assert result.skipped == ()
    return list(result)


def assert_same(before: list[Trajectory], after: list[Trajectory], *, but: tuple[str, ...] = ()) -> None:
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        for x, y in zip(a.gap_before_s, b.gap_before_s, strict=True):
            assert math.isclose(x, y, abs_tol=GAP_TOLERANCE_S)
        b = replace(b, gap_before_s=a.gap_before_s, **{field: getattr(a, field) for field in but})
        assert a == b


@settings(max_examples=30)
@given(workloads("anything", head=300))
def test_native_keeps_everything(target: Path, trajectories: list[Trajectory]) -> None:
    trajectories = [replace(t, parent_id="p", gap_before_s=(1.5, *t.gap_before_s[1:])) for t in trajectories]
    arrivals_s = {t.id: float(i) for i, t in enumerate(trajectories)}
    assert there_and_back(target, trajectories, "native", arrivals_s=arrivals_s) == trajectories
    assert load(target).arrivals_s == arrivals_s


@settings(max_examples=30)
@given(workloads("anything", head=300))
def test_tracelab_keeps_all_but_text(target: Path, trajectories: list[Trajectory]) -> None:
    arrivals_s = {t.id: float(i) for i, t in enumerate(trajectories)}
    after = there_and_back(target, trajectories, "tracelab", arrivals_s=arrivals_s)
    assert_same(trajectories, after, but=("task_text",))
    assert load(target).arrivals_s == arrivals_s


@pytest.mark.parametrize("format", TRANSCRIPTS)
@settings(max_examples=30)
@given(trajectories=workloads("shrinks"))
def test_transcripts_keep_what_prompt_sizes_and_cache_hits_tell(
    format: str, target: Path, trajectories: list[Trajectory]
) -> None:
    assert_same(trajectories, there_and_back(target, trajectories, format))


@settings(max_examples=30)
@given(workloads("anything"))
def test_swe_agent_keeps_everything(target: Path, trajectories: list[Trajectory]) -> None:
    assert_same(trajectories, there_and_back(target, trajectories, "swe-agent"))


@settings(max_examples=30)
@given(workloads("anything", head=300))
def test_atif_keeps_the_shared_head(target: Path, trajectories: list[Trajectory]) -> None:
    assert all(t.shared_head_tokens == 300 for t in there_and_back(target, trajectories, "atif"))


@pytest.mark.parametrize(("format", "block"), BLOCKS.items())
@settings(max_examples=30)
@given(trajectories=workloads("all", head=700))
def test_blocks_keep_append_only_sessions_exactly(
    format: str, block: int, target: Path, trajectories: list[Trajectory]
) -> None:
    after = there_and_back(target, trajectories, format)
    lost = ("task_text", "shared_head_tokens", "id") if format == "bailian" else ("task_text", "shared_head_tokens")
    assert_same(trajectories, after, but=lost)
    if format == "weka":
        assert all(t.shared_head_tokens == 700 for t in after)
    elif len(trajectories) > 1:  # one session alone does not show what it would share
        assert all(t.shared_head_tokens == 700 // block * block for t in after)


@pytest.mark.parametrize(("format", "block"), BLOCKS.items())
@settings(max_examples=30)
@given(trajectories=workloads("anything", head=700))
def test_blocks_keep_any_session_to_within_a_block(
    format: str, block: int, target: Path, trajectories: list[Trajectory]
) -> None:
    for before, after in zip(trajectories, there_and_back(target, trajectories, format), strict=True):
        assert (before.prompt_tokens, before.output_tokens) == (after.prompt_tokens, after.output_tokens)
        assert all(abs(a - b) < block for a, b in zip(before.new_tokens, after.new_tokens, strict=True))


@pytest.mark.parametrize("format", ["native", "claude-code", "atif", "weka"])
def test_sub_agents_stay_with_their_parents(format: str, target: Path) -> None:
    def session(key: str, parent: str | None) -> Trajectory:
        return Trajectory(key, (100, 200), (100, 100), (5, 5), (0.0, 1.0), parent_id=parent)

    family = [session("a", None), session("a/x", "a"), session("a/x/y", "a/x"), session("b", None)]
    if format == "claude-code":  # its log knows sub-agents of a session, not of each other
        del family[2]
    after = there_and_back(target, family, format)
    assert {t.id: t.parent_id for t in after} == {t.id: t.parent_id for t in family}


def test_one_session_is_a_file_and_several_are_a_folder(tmp_path: Path) -> None:
    session = Trajectory("a/b", (10,), (10,), (1,), (0.0,))
    for format, chosen in FORMATS.items():
        save(tmp_path / f"{format}-1", [session], format)
        assert (tmp_path / f"{format}-1").is_file()
        save(tmp_path / f"{format}-2", [session, replace(session, id="c")], format)
        assert (tmp_path / f"{format}-2").is_dir() is not chosen.MANY
        assert len(load(tmp_path / f"{format}-2")) == 2


def test_refused_writes(tmp_path: Path) -> None:
    session = Trajectory("a", (10,), (10,), (1,), (0.0,))
    with pytest.raises(TraceError, match="no sessions"):
        save(tmp_path / "x", [], "native")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("precious")
    for format in ("native", "weka"):
        with pytest.raises(TraceError, match="in the way"):
            save(tmp_path / "used", [session], format)
    with pytest.raises(TraceError, match="own ancestor"):
        save(tmp_path / "x", [replace(session, parent_id="b"), replace(session, id="b", parent_id="a")], "weka")
