"""Paper B's sessions against what §2 and §3 state of them."""

from statistics import mean, median

import pytest

from artifact.reproduce.claims import load_claims
from artifact.workload.catalog import workload
from artifact.workload.paper_b import FITTED_CLAIMS, WORKLOADS, replayed
from artifact.workload.trajectory import Trajectory


def contexts(sessions: list[Trajectory]) -> list[int]:
    return [prompt for t in sessions for prompt in t.prompt_tokens]


def gaps(sessions: list[Trajectory]) -> list[float]:
    return [gap for t in sessions for gap in t.gap_before_s[1:]]


def test_main_sessions() -> None:
    """§3: 2K shared and 4K of their own at first, 25 turns of 300 tokens, 1K of tool output a turn, 6K to 37K."""
    sessions = workload("paper-b")
    assert len({t.gap_before_s for t in sessions}) == len(sessions) == 256
    for t in sessions:
        assert (t.n_calls, t.shared_head_tokens) == (25, 2_000)
        assert (t.prompt_tokens[0], t.prompt_tokens[1], t.prompt_tokens[-1]) == (6_000, 7_300, 37_200)
        assert set(t.output_tokens) == {300} and set(t.new_tokens[1:]) == {1_300}
    assert mean(gaps(sessions)) == pytest.approx(5.0, rel=0.03)
    assert median(gaps(sessions)) == pytest.approx(5.0 * 0.693, rel=0.05), "exponential"


@pytest.mark.parametrize(("name", "first", "think_s"), [("paper-b-short", 3_000, 15.0), ("paper-b-long", 22_000, 5.0)])
def test_sessions_of_the_mix_shift(name: str, first: int, think_s: float) -> None:
    """Table 1 and §6: 12 turns, from 3K with 15 s of think time or from 22K with 5 s."""
    sessions = workload(name)
    assert {(t.n_calls, t.prompt_tokens[0]) for t in sessions} == {(12, first)}
    assert mean(gaps(sessions)) == pytest.approx(think_s, rel=0.05)


def test_replayed_sessions_before_the_cut() -> None:
    """§2 and §3, within the claims' tolerance of 15%; the gap's is 0.05 s."""
    sessions = workload("paper-b-traces-whole")
    assert len(sessions) == 200
    assert median(t.n_calls for t in sessions) == pytest.approx(42, rel=0.15)
    assert median(contexts(sessions)) == pytest.approx(16_000, rel=0.15)
    assert median(new for t in sessions for new in t.new_tokens[1:]) == pytest.approx(350, rel=0.15)
    assert mean(t.peak_tokens > 38_000 for t in sessions) == pytest.approx(0.26, rel=0.15)
    assert 0.1 <= median(gaps(sessions)) <= 0.2 < mean(gaps(sessions)), "short, with a heavy tail"


def test_the_cut_removes_as_many_turns_as_published() -> None:
    whole, cut = workload("paper-b-traces-whole"), workload("paper-b-traces")
    assert max(t.peak_tokens for t in cut) <= 38_000
    assert 1 - sum(t.n_calls for t in cut) / sum(t.n_calls for t in whole) == pytest.approx(0.14, rel=0.15)
    for before, after in zip(whole, cut, strict=True):
        assert before.prompt_tokens[: after.n_calls] == after.prompt_tokens
        assert before.gap_before_s[: after.n_calls] == after.gap_before_s


def test_a_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert replayed(1) == replayed(1) != replayed(2)
    assert all(make(0) == make(0) for make in WORKLOADS.values())


def test_fitted_claims_are_claims() -> None:
    assert set(FITTED_CLAIMS) <= set(load_claims())
