"""What is measured of an idle engine, and what is read from a busy one."""

import os
import subprocess
import sys
import time
from itertools import pairwise

import bpe_openai
import pytest

from artifact.workload.trajectory import Trajectory
from hw_runs.laptop import SHAPES, laptop_sessions
from hw_runs.prompts import WORDS, SessionPrompts, filler
from hw_runs.scrape import Scraper, gpu_readings, group_cpu_s, load_engines
from hw_runs.speed import OUTPUT, SUFFIX, Speed, fit


def engine(call_s, token_s, position_s):
    """A cost model with a prefix cache, as the engine that is measured."""
    known = []

    def ask(text, tokens):
        assert tokens == OUTPUT
        cached = max((len(t) for t in known if text.startswith(t)), default=0)
        known.append(text)
        new = len(text) - cached
        return Speed(call_s, token_s, position_s, 0.0).seconds(new, len(text))

    return ask


@pytest.mark.parametrize("true", [(0.03, 1e-4, 2e-8), (0.1, 5e-4, 0.0)])
def test_the_fit_finds_the_costs_of_an_engine(true):
    found = fit(engine(*true), 1, (512, 1024, 2048, 4096), salt=1)
    assert found.call_s == pytest.approx(true[0], rel=1e-3)
    assert found.token_s == pytest.approx(true[1], rel=1e-3)
    assert found.position_s == pytest.approx(true[2], rel=1e-2, abs=1e-12)
    assert found.rms_s < 1e-6


def test_a_call_and_a_session_by_hand():
    speed = Speed(0.1, 1e-3, 1e-6, 0.0)
    # 100 new tokens at mean position 950: 0.1 + 100 x (1e-3 + 950e-6)
    assert speed.seconds(100, 1000) == pytest.approx(0.295)
    session = Trajectory("s", (1000, 1100), (1000, 100), (8, 8), (0.0, 5.0), shared_head_tokens=200)
    first = 0.1 + 800 * (1e-3 + 600e-6)  # the shared head is found
    second = 0.1 + 100 * (1e-3 + 1050e-6)
    assert speed.unloaded()(session, 0) == pytest.approx(first + 5.0 + second)
    assert speed.unloaded()(session, 1) == pytest.approx(second)
    assert speed.cold_tokens_per_s(1000) == pytest.approx(1000 / (0.1 + 1000 * 1.5e-3))


def test_laptop_sessions_have_their_shape_and_texts_their_lengths():
    for name, shape in SHAPES.items():
        sessions = laptop_sessions(name, count=50)
        assert sessions == laptop_sessions(name, count=50)
        for s in sessions:
            assert shape.calls[0] <= s.n_calls <= shape.calls[1]
            assert shape.head_tokens + shape.task_tokens[0] <= s.prompt_tokens[0]
            assert all(a < b for a, b in pairwise(s.prompt_tokens))
            prompts = SessionPrompts(s.id, s, 1)
            texts = ["".join(m["content"] for m in prompts.messages(i)) for i in range(s.n_calls)]
            assert [len(text) for text in texts] == list(s.prompt_tokens)
            assert all(b.startswith(a) for a, b in pairwise(texts))
        gaps = [g for s in sessions for g in s.gap_before_s[1:]]
        assert sum(gaps) / len(gaps) == pytest.approx(shape.gap_mean_s, rel=0.1)
    assert min(shape.task_tokens[0] for shape in SHAPES.values()) > SUFFIX


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_four_bytes_of_replayed_text_are_a_token(name):
    """Of the vocabularies that today's ones descend from; wherever a text of whole words is cut, up to one token."""
    vocabulary = bpe_openai.get_encoding(name)
    for start, words in ((0, 5000), (4 * 777, 1234)):
        tokens = len(vocabulary.encode(filler()[start : start + 4 * words]))
        assert words <= tokens <= words + 1
    assert len({len(word) for word in WORDS}) == 1 and len(set(WORDS)) == len(WORDS)


def test_cpu_time_of_a_process_group():
    burn = "import subprocess, sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    words = [sys.executable, "-c", burn + "print('burnt', flush=True)\ntime.sleep(600)"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"burnt\n"
        assert 0.2 < group_cpu_s(process.pid) < 2.0
    finally:
        process.kill()
        process.wait()
    assert group_cpu_s(process.pid) == 0.0


def test_gpu_readings_leave_out_what_is_no_number():
    rows = gpu_readings(lambda: "0, 87, 1980, 3201, 512.40, 120000\n1, [N/A], 345, 3201, 80.00, 10\n")
    assert ("gpu-0", "utilization_percent", 87.0) in rows and ("gpu-0", "power_w", 512.4) in rows
    assert not any(row[:2] == ("gpu-1", "utilization_percent") for row in rows)


def test_a_dead_engine_costs_the_scraper_nothing(fake, tmp_path):
    """Nothing listens on the deployment's port: only the process group's time is left."""
    heard = []
    scraper = Scraper(fake(), {"unified-0": os.getpgid(0)}, 0.02, heard.append)
    scraper.start()
    time.sleep(0.2)
    scraper.stop()
    scraper.save(tmp_path)
    table = load_engines(tmp_path)
    assert len(table) == len(heard) >= 2
    assert set(table["name"]) == {"process_group_cpu_seconds"} and table["time_s"].is_monotonic_increasing
