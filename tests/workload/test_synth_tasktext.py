"""Task texts: plausible form, length, and words that follow the signal."""

import random
import re

import numpy as np
import pytest

from artifact.workload.catalog import workload
from artifact.workload.formats.tokens import count_tokens
from artifact.workload.synth_spec import SPECS
from artifact.workload.tasktext import task_text

KITS = pytest.mark.parametrize("kit", SPECS)


@KITS
def test_a_text_fits_its_tokens_and_leaves_no_slot_open(kit: str) -> None:
    for seed in range(60):
        text = task_text(kit, 0.0, 80, random.Random(seed))
        assert count_tokens(text) <= 85  # sentences are counted apart
        assert not re.search(r"[{}]", text)
        assert text[0].isupper()
        assert text.endswith(".")


@KITS
def test_an_opening_comes_however_little_room_there_is(kit: str) -> None:
    text = task_text(kit, 0.0, 1, random.Random(0))
    assert 5 < count_tokens(text) < 40


@KITS
def test_more_room_gives_a_longer_text_that_ends_when_all_is_said(kit: str) -> None:
    short, long, longest = (len(task_text(kit, 0.3, room, random.Random(4))) for room in (50, 300, 10**6))
    assert short < long < longest < 40_000


@KITS
def test_texts_depend_on_nothing_but_their_arguments(kit: str) -> None:
    assert task_text(kit, 1.0, 200, random.Random(9)) == task_text(kit, 1.0, 200, random.Random(9))
    assert task_text(kit, 1.0, 200, random.Random(9)) != task_text(kit, 1.0, 200, random.Random(10))


def test_words_follow_the_signal() -> None:
    def share(word: str, signal: float) -> float:
        texts = [task_text("terminal-bench", signal, 150, random.Random(seed)) for seed in range(200)]
        return float(np.mean([word in text for text in texts]))

    assert share("kernel", 1.5) > 0.4
    assert share("kernel", -1.5) == 0
    assert share("regular expression", -1.4) > 0.1
    assert share("regular expression", 1.4) == 0


@KITS
def test_text_and_first_prompt_belong_together(kit: str) -> None:
    """A first prompt holds the shared head, the text and the environment's description."""
    for t in workload(kit):
        assert t.prompt_tokens[0] > t.shared_head_tokens + count_tokens(t.task_text) + 25
    lengths = np.log([len(t.task_text) for t in workload(kit)])
    assert np.corrcoef(lengths, [t.prompt_tokens[0] for t in workload(kit)])[0, 1] > 0.1
