"""`basin trace`: what it prints, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from artifact.workload.cli import app
from artifact.workload.formats import load

TRACES = Path(__file__).parents[1] / "data" / "traces"
cli = CliRunner()


def test_stats_table() -> None:
    result = cli.invoke(app, ["stats", str(TRACES / "native.jsonl")])
    assert result.exit_code == 0
    assert "(native): 2 sessions, 5 calls" in result.stdout
    assert "1,000" in result.stdout  # the median prompt
    assert "1,830" in result.stdout  # the longest context
    assert "note: 1 gaps not recorded" in result.stderr


def test_stats_json(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_text((TRACES / "native.jsonl").read_text() + "{oops\n")
    result = cli.invoke(app, ["stats", str(file), "--json", "--skip-bad"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["format"], report["sessions"], report["prompt_p50"], report["peak_max"]) == ("native", 2, 1000, 1830)
    assert len(report["skipped"]) == 1 and "n.jsonl:3" in report["skipped"][0]
    assert "left out: 1" in result.stderr


def test_stats_json_says_null_for_what_there_is_not(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"session_id":"a","prompt_tokens":[5],"new_tokens":[5],"output_tokens":[1]}\n')
    report = json.loads(cli.invoke(app, ["stats", str(file), "--json"]).stdout)
    assert report["gap_p50_s"] is None and report["repeat_share"] is None
    assert "-" in cli.invoke(app, ["stats", str(file)]).stdout


def test_errors_name_the_place_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_text((TRACES / "native.jsonl").read_text().replace("1300", "-1300"))
    result = subprocess.run(
        [sys.executable, "-c", "from artifact.cli import main; main()", "trace", "stats", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: {file}:1: prompt_tokens[1]: -1300 is below 1; "
        "correct it, or leave the session out with --skip-bad (skip_bad=True)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["stats", str(TRACES / "native.jsonl"), "--format", "moonlight"], "choose one of native, tracelab"),
        (["convert", str(TRACES / "native.jsonl"), "x", "--to", "moonlight"], "choose one of native, tracelab"),
        (["convert", str(TRACES / "native.jsonl"), str(TRACES / "native.jsonl"), "--to", "native"], "to convert"),
        (["convert", str(TRACES / "native.jsonl"), "x", "--to", "weka", "--block-tokens", "64"], "block size"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = cli.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_nothing_good_left(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_text('{"session_id":"a","prompt_tokens":[5]}\n')
    result = cli.invoke(app, ["stats", str(file), "--skip-bad"])
    assert result.exit_code == 2
    assert "no good session is left" in result.stderr


def test_convert_keeps_arrivals_and_says_what_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    arguments = ["convert", str(TRACES / "native.jsonl"), str(out), "--to", "mooncake", "--block-tokens", "64"]
    result = cli.invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout == f"2 sessions: {TRACES / 'native.jsonl'} (native) -> {out} (mooncake)\n"
    assert "task_text" in result.stderr and "parent_id" in result.stderr
    assert "prompt_tokens" not in result.stderr and "gap_before_s" not in result.stderr
    assert load(out).arrivals_s["beta"] == 12.5
    assert max(len(json.loads(line)["hash_ids"]) for line in out.read_text().splitlines()) == -(-1800 // 64)


def test_convert_between_formats_of_one_session_a_file(tmp_path: Path) -> None:
    assert (
        cli.invoke(app, ["convert", str(TRACES / "weka.json"), str(tmp_path / "atif"), "--to", "atif"]).exit_code == 0
    )
    assert [t.id for t in load(tmp_path / "atif")] == ["w1", "w1/agent_001"]
