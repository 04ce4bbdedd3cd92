"""Synthesised task texts that say something about how long their session becomes, though not everything.

A text is an opening of a topic, then sentences of the topic, cues about the effort and filler. Topics and cues have a
level between short and long sessions; a text takes those near its `signal`, so a predictor that reads words can recover
the signal, and no more than it.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from artifact.workload.formats.tokens import count_tokens

LEVEL_WIDTH = 0.3
"""How far (standard deviation, in units of the signal) a topic's level is from the signal of a text that takes it."""

SHARES = (0.25, 0.15, 0.6)
"""Of sentences about the topic, cues and filler."""

WORDS_A_SLOT = 2
"""A text keeps to few names, as real ones do."""

MAX_SENTENCES = 300


def task_text(kit: str, signal: float, max_tokens: int, rng: random.Random) -> str:
    """A text of the kit named after a workload, for a signal that is standard normal over the workload.

    As many sentences as fit `max_tokens`, but at least the opening.
    """
    material = _material()
    topics, cues, filler = (material[kit][part] for part in ("topics", "cues", "filler"))
    topic = _near(topics, signal, rng)
    slots = material["slots"] | topic.get("slots", {})
    words = {slot: rng.sample(choices, WORDS_A_SLOT) for slot, choices in slots.items()}
    text = [_filled(rng.choice(topic["open"]), words, rng)]
    left = max_tokens - count_tokens(text[0])
    for _ in range(MAX_SENTENCES):
        source = rng.choices((topic["more"], _near(cues, signal, rng)["more"], filler), SHARES)[0]
        sentence = _filled(rng.choice(source), words, rng)
        if sentence in text:
            continue
        left -= count_tokens(sentence)
        if left < 0:
            break
        text.append(sentence)
    return " ".join(text)


def _near(levelled: Sequence[Mapping[str, Any]], signal: float, rng: random.Random) -> Mapping[str, Any]:
    weights = [math.exp(-(((item["level"] - signal) / LEVEL_WIDTH) ** 2) / 2) + 1e-9 for item in levelled]
    return rng.choices(levelled, weights)[0]


def _filled(sentence: str, words: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    return re.sub(r"\{(\w+)\}", lambda slot: rng.choice(words[slot[1]]), sentence)


@cache
def _material() -> Any:
    return yaml.safe_load(files("artifact.workload").joinpath("data/task_texts.yaml").read_text("utf-8"))
