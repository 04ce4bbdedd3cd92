"""Synthetic prompts of given lengths that repeat of each other exactly what a trajectory says they repeat."""

import random
from functools import cache
from typing import Any
from zlib import crc32

from artifact.workload.trajectory import Trajectory

_FILLER_WORDS = 1 << 19
_WORDS = """
act add age ago aid aim air all and any are arm art ask bad bag ban bar bay bed bet big bit box boy bus but
buy can cap car cat cup cut dad day did dog dry due ear eat egg end era eye fan far fat fee few fit fix fly
for fun gap gas get guy gym had has hat her him hip his hit hot how ice its jet job joy key kid lab law lay
leg let lie lip log lot low mad man map may mix mod mom net new nor not now nut odd oil old one our out own
pay pen per pet pie pin pop pot put rat raw ray red rid row run say sea see set she sir sit six sky son sum
sun tag tap tax tea ten the tie tip ton too top toy try two use van vet via was way web wet who win yes yet
you zip
"""
WORDS = tuple(_WORDS.split())
"""Three letters each and, with the space beside them, one token of the byte-pair vocabularies in use: of text made of
them, four bytes are a token."""
WORD_BYTES = 4


@cache
def filler() -> str:
    """Two megabytes of words in random order, the same in every process."""
    return "".join(f"{word} " for word in random.Random(0).choices(WORDS, k=_FILLER_WORDS))


class SessionPrompts:
    """The prompts of one session, call by call, as chat messages.

    A prompt is the workload's shared head, text of the session's own, the task text as the user's message, and a tool
    message that grows. Where a call repeats less than its predecessor's whole prompt (compaction), its own text
    departs from it at that point. One token is `bytes_per_token` ASCII characters.
    """

    def __init__(self, session_id: str, trajectory: Trajectory, bytes_per_token: int) -> None:
        self._session_id = session_id
        self._trajectory = trajectory
        self._bytes = bytes_per_token
        room = (min(trajectory.prompt_tokens) - trajectory.shared_head_tokens) * bytes_per_token
        task = trajectory.task_text.encode("ascii", "replace").decode()
        whole_tokens = min(len(task), room) // bytes_per_token * bytes_per_token
        self._task = task[:whole_tokens]
        self._opening = trajectory.prompt_tokens[0] * bytes_per_token - whole_tokens
        self._pieces: list[tuple[int, int, int]] = []  # (offset into the filler, start, end) of the own text
        self._next = 0

    def messages(self, call: int) -> list[dict[str, Any]]:
        """The messages of a call; calls are asked for in order, starting anywhere."""
        while self._next <= call:
            self._extend(self._next)
            self._next += 1
        text = filler()
        own = "".join(text[offset + start : offset + end] for offset, start, end in self._pieces)
        opening = [
            {"role": "system", "content": own[: self._opening]},
            {"role": "user", "content": self._task},
        ]
        grown = own[self._opening :]
        return [*opening, {"role": "tool", "tool_call_id": "t", "content": grown}] if grown else opening

    def _extend(self, call: int) -> None:
        t = self._trajectory
        length = max(t.prompt_tokens[call] * self._bytes - len(self._task), 0)
        if call == 0:
            head = min(t.shared_head_tokens * self._bytes, length)
            self._pieces = [(0, 0, head), (self._offset(0), head, length)]
            return
        repeated = (t.prompt_tokens[call] - t.new_tokens[call]) * self._bytes
        beyond_task = repeated - len(self._task)
        kept = beyond_task if beyond_task >= self._opening else min(repeated, self._opening)
        kept = min(kept, self._pieces[-1][2], length)
        cut = [(offset, start, min(end, kept)) for offset, start, end in self._pieces if start < kept]
        self._pieces = [*cut, (self._offset(call), kept, length)]

    def _offset(self, salt: int) -> int:
        """Where in the filler a text of this session begins, with a word; far enough from its end for any prompt."""
        place = crc32(f"{self._session_id}/{salt}".encode()) % (len(filler()) // 2)
        return place - place % WORD_BYTES
