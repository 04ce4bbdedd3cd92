"""Every format's loader against a small hand-written file with the quirks of real ones, worked out by hand."""

from pathlib import Path

import pytest

from artifact.workload.formats import FORMATS, TraceError, detect, load, save
from artifact.workload.formats.tokens import count_tokens
from artifact.workload.trajectory import Trajectory

TRACES = Path(__file__).parents[1] / "data" / "traces"
FILES = {
    "native.jsonl": "native",
    "tracelab.csv": "tracelab",
    "mooncake.jsonl": "mooncake",
    "mooncake_plain.jsonl": "mooncake",
    "bailian.jsonl": "bailian",
    "weka.json": "weka",
    "claude_code.jsonl": "claude-code",
    "atif.json": "atif",
    "mini_swe_agent.traj.json": "mini-swe-agent",
    "swe_agent.traj": "swe-agent",
}


def shape(t: Trajectory) -> tuple[tuple[float, ...], ...]:
    return t.prompt_tokens, t.new_tokens, t.output_tokens, t.gap_before_s


def sessions(name: str) -> dict[str, Trajectory]:
    return {t.id: t for t in load(TRACES / name)}


@pytest.mark.parametrize(("name", "format"), FILES.items())
def test_format_is_found_by_content(name: str, format: str, tmp_path: Path) -> None:
    copy = tmp_path / "trace"  # no suffix to go by
    copy.write_bytes((TRACES / name).read_bytes())
    assert detect(copy) == format
    assert load(copy).format == format


def test_every_format_has_a_fixture() -> None:
    assert set(FILES.values()) == set(FORMATS)


def test_unknown_format_lists_the_names(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing of the kind\n")
    with pytest.raises(TraceError) as found:
        detect(file)
    for name in FORMATS:
        assert name in str(found.value)
    with pytest.raises(TraceError, match=r"no trace format is called 'moonlight'.*mooncake"):
        load(TRACES / "native.jsonl", format="moonlight")
    with pytest.raises(TraceError, match=r"no trace format is called 'moonlight'.*mooncake"):
        save(file, list(load(TRACES / "native.jsonl")), "moonlight")


def test_native() -> None:
    result = load(TRACES / "native.jsonl")
    alpha, beta = result.trajectories
    assert shape(alpha) == ((1000, 1300, 1800), (1000, 300, 500), (50, 120, 30), (0.0, 0.5, 2.25))
    assert (alpha.id, alpha.task_text, alpha.shared_head_tokens, alpha.parent_id) == (
        "alpha",
        "rename the flag",
        600,
        None,
    )
    assert beta.gap_before_s == (0.0, 0.0)
    assert beta.parent_id == "alpha"
    assert result.notes == ("1 gaps not recorded, taken as 0 s",)
    assert result.arrivals_s == {"beta": 12.5}


def test_tracelab_prefix_may_hold_the_preceding_output() -> None:
    result = load(TRACES / "tracelab.csv")
    s1, s2 = result.trajectories
    # Round 1 keeps the prompt of 1000 and its output of 80; only the prompt was seen by the prefill side before.
    # Round 2 cuts back to 700. The wait of 99 ms after the last round is no gap.
    assert shape(s1) == ((1000, 1200, 800), (1000, 200, 100), (80, 40, 5), (0.0, 0.25, 1.0))
    assert (s1.shared_head_tokens, s2.shared_head_tokens) == (400, 400)
    assert result.arrivals_s == {"s1": 1.5, "s2": 2.0}


def test_tracelab_accepts_the_simulator_form_of_the_header(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len\n"
        "x,20,3,0.000000,1,0.000000,13\n"
        "x,10,3,0.000000,0,500.000000,0\n"
    )
    (session,) = load(file)
    assert shape(session) == ((10, 33), (10, 23), (3, 3), (0.0, 0.5))


def test_mooncake_with_sessions() -> None:
    result = load(TRACES / "mooncake.jsonl")
    m1, m2 = result.trajectories
    # Both whole blocks of 1100 recur in 1700, so it appends 600. Of 1700 only the first block recurs in 1600.
    assert shape(m1) == ((1100, 1700, 1600), (1100, 600, 1600 - 512), (20, 30, 1), (0.0, 0.35, 0.0405))
    assert (m1.shared_head_tokens, m2.shared_head_tokens) == (512, 512)
    assert result.arrivals_s == {"m1": 2.0, "m2": 2.5}


def test_mooncake_sessions_are_derived_from_common_prefixes() -> None:
    found = sessions("mooncake_plain.jsonl")
    # Block 0 is everyone's, so it continues nobody. The last call repeats the second one's document with another
    # question: longer by 5 tokens, but the second output had 40.
    assert found.keys() == {"request_1", "request_2", "request_4", "request_6"}
    assert shape(found["request_1"]) == ((1200, 1900, 2300), (1200, 700, 400), (100, 60, 7), (0.0, 4.0, 5.0))
    assert found["request_2"].n_calls == 1


def test_mooncake_call_with_text_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"session_id": "a", "text_input": "fix the bug now", "output_length": 3}\n')
    (session,) = load(file)
    assert session.prompt_tokens == (4,)


def test_bailian_follows_first_replies_and_branches() -> None:
    result = load(TRACES / "bailian.jsonl")
    found = {t.id: t for t in result}
    assert found.keys() == {"7", "9", "13", "20"}
    # 50 tokens are three whole blocks, which recur; of the five whole blocks of 90, two recur.
    assert shape(found["7"]) == ((50, 90, 64), (50, 40, 64 - 32), (20, 11, 1), (0.0, 6.5, 3.0))
    assert (found["13"].parent_id, found["20"].parent_id) == ("7", None)
    assert found["9"].shared_head_tokens == 16
    assert result.arrivals_s["13"] == 9.0
    assert any("parents outside the file" in note for note in result.notes)


def test_weka_gaps_and_sub_agents() -> None:
    result = load(TRACES / "weka.json")
    w1, agent = result.trajectories
    # 2.5 s of think time; then 20 - 5 less 1.5 s of service; then, with neither recorded, 27 - 20.
    assert shape(w1) == (
        (200, 330, 280, 290),
        (200, 130, 280 - 128, 10),
        (11, 12, 13, 14),
        (0.0, 2.5, 13.5, 7.0),
    )
    assert (agent.id, agent.parent_id, agent.prompt_tokens, agent.new_tokens) == (
        "w1/agent_001",
        "w1",
        (130, 150),
        (130, 20),
    )
    assert (w1.shared_head_tokens, agent.shared_head_tokens) == (100, 70)


def test_claude_code_merges_entries_and_separates_sub_agents() -> None:
    result = load(TRACES / "claude_code.jsonl")
    main, agent = result.trajectories
    # msg_1 is two entries that end at 10:00:03, its tool reports at 10:00:07.5. msg_3 shrank: 700 were cached.
    # msg_4 has no usage: prompt and output of msg_3 and nothing said since, then four words.
    assert shape(main) == ((1000, 1200, 800, 804), (1000, 200, 100, 4), (77, 9, 4, 4), (0.0, 4.5, 51.0, 1.0))
    assert main.task_text == "fix the bug now"
    # Its only entry has no stop reason: 2 is a placeholder, and the text has six tokens.
    assert (agent.id, agent.parent_id, agent.output_tokens) == ("c1/s1", "c1", (6,))
    assert any("repeated log entries" in note for note in result.notes)


def test_claude_code_tool_results_in_any_order(tmp_path: Path) -> None:
    lines = (TRACES / "claude_code.jsonl").read_text().splitlines()
    late = lines[6].replace('"uuid":"u2"', '"uuid":"u9"').replace("10:00:07.500Z", "10:00:07.000Z")
    file = tmp_path / "c.jsonl"
    file.write_text("\n".join([*lines[:7], late, *lines[8:]]))
    assert load(file).trajectories[0].gap_before_s == (0.0, 4.5, 51.0, 1.0)


def test_atif_steps_and_sub_agents() -> None:
    main, agent = load(TRACES / "atif.json")
    # Copied steps and steps without a model call are no calls. The first gap runs to the next response, for want of
    # an earlier time; the second to the user's message. The third prompt shrank to one with 256 cached.
    assert shape(main) == ((800, 1000, 300), (800, 200, 44), (40, 10, 5), (0.0, 5.5, 10.5))
    assert (main.id, main.task_text, main.shared_head_tokens) == ("run-1", "make it faster", 4)
    assert (agent.id, agent.parent_id, agent.output_tokens) == ("run-1/helper", "run-1", (4,))


def test_mini_swe_agent_recorded_and_counted_tokens() -> None:
    (session,) = load(TRACES / "mini_swe_agent.traj.json")
    # The last response has no usage: 150 + 22 + two words of the tool; three words.
    assert shape(session) == ((120, 150, 174), (120, 30, 24), (15, 22, 3), (0.0, 0.25, 7.0))
    assert (session.id, session.task_text, session.shared_head_tokens) == ("mini_swe_agent", "fix the bug now", 4)


def test_mini_swe_agent_bare_list_of_messages(tmp_path: Path) -> None:
    file = tmp_path / "old.traj.json"
    file.write_text('[{"role":"user","content":"fix the bug now"},{"role":"assistant","content":"change it"}]')
    (session,) = load(file)
    assert (session.id, session.prompt_tokens, session.output_tokens) == ("old", (4,), (2,))


def test_swe_agent_counts_what_was_sent() -> None:
    (session,) = load(TRACES / "swe_agent.traj")
    # 8; 8 + 2 + 2; then the history was cut: only the system message of 4 recurs. A step without a call follows.
    assert shape(session) == ((8, 12, 12), (8, 4, 8), (2, 2, 3), (0.0, 0.125, 3.0))
    assert (session.id, session.task_text, session.shared_head_tokens) == ("swe_agent", "fix the bug now", 4)


def test_swe_agent_without_queries_goes_by_the_history(tmp_path: Path) -> None:
    file = tmp_path / "old.traj"
    file.write_text(
        '{"trajectory": [{"response": "look around", "action": "", "observation": "one file"},'
        '{"response": "change it", "action": "", "observation": ""}],'
        '"history": [{"role": "user", "content": "you are an agent"},'
        '{"role": "assistant", "content": "look around", "is_demo": true},'
        '{"role": "user", "content": "fix the bug now"},'
        '{"role": "assistant", "content": "look around"}, {"role": "user", "content": "one file"},'
        '{"role": "assistant", "content": "change it"}]}'
    )
    (session,) = load(file)
    assert shape(session)[:3] == ((10, 14), (10, 4), (2, 2))


def test_token_counts_are_the_vocabulary_s() -> None:
    assert count_tokens("") == 0
    assert count_tokens("fix the bug now") == 4
    assert count_tokens("<|endoftext|>") > 1  # plain text, not the special token


def test_folder_of_one_format(tmp_path: Path) -> None:
    text = (TRACES / "weka.json").read_text()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.json").write_text(text)
    (tmp_path / "y.json").write_text(text.replace('"w1"', '"w2"'))
    (tmp_path / "copy.json").write_text(text)
    (tmp_path / "README.md").write_text("not a trace")
    result = load(tmp_path)
    assert [t.id for t in result] == ["w1", "w1/agent_001", "w2", "w2/agent_001"]
    assert len(result.skipped) == 2  # the copy of w1 and of its agent
    assert all("duplicate" in reason for reason in result.skipped)
    assert any("in all but the id" in note for note in result.notes)


def test_folder_of_mixed_formats(tmp_path: Path) -> None:
    for name in ("weka.json", "atif.json", "native.jsonl"):
        (tmp_path / name).write_bytes((TRACES / name).read_bytes())
    with pytest.raises(TraceError, match=r"native\.jsonl: is not atif"):
        load(tmp_path)
    result = load(tmp_path, skip_bad=True)
    assert (len(result), len(result.skipped)) == (2, 2)


def test_folder_with_a_format_named_reads_files_of_its_suffix(tmp_path: Path) -> None:
    for name in ("swe_agent.traj", "native.jsonl", "atif.json"):
        (tmp_path / name).write_bytes((TRACES / name).read_bytes())
    assert [t.id for t in load(tmp_path, "swe-agent")] == ["swe_agent"]
