"""Prompts as lists of block hashes (Mooncake, Bailian, weka): equal ids mean equal content of whole blocks."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import count

from artifact.workload.trajectory import Trajectory


def leading_equal(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many leading items `a` and `b` have in common."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next((i for i in range(n) if a[i] != b[i]), n)


def repeated_tokens(
    before: Sequence[Hashable], before_prompt: int, ids: Sequence[Hashable], prompt: int, block_tokens: int
) -> int:
    """How many of `prompt` tokens the preceding prompt held, going by both prompts' block ids.

    The ids locate the end of the repeated prefix only to within a block. Where every whole block of the preceding
    prompt recurs, the whole preceding prompt counts as repeated, since sessions append.
    """
    whole = before_prompt // block_tokens
    common = leading_equal(before[:whole], ids)
    return min(before_prompt if common == whole else common * block_tokens, prompt)


class BlockNames:
    """Names the blocks of sessions' prompts with successive integers: a block has the id of an earlier one exactly
    where it repeats it as a whole, be it in the session's preceding prompt or in the shared head."""

    def __init__(self, block_tokens: int, first: int = 0) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens: {block_tokens} is below 1")
        self.block_tokens = block_tokens
        self._fresh = count(first)
        self._head: list[int] = []

    def prompts(self, trajectory: Trajectory, partial: bool = True) -> Iterator[list[int]]:
        """Ids of each call's prompt; its last, incomplete block gets one too if `partial`."""
        head = trajectory.shared_head_tokens
        self._head.extend(next(self._fresh) for _ in range(head // self.block_tokens - len(self._head)))
        ids = self._head
        for i, (prompt, new) in enumerate(zip(trajectory.prompt_tokens, trajectory.new_tokens, strict=True)):
            kept = max(prompt - new if i else 0, head) // self.block_tokens
            blocks = -(-prompt // self.block_tokens) if partial else prompt // self.block_tokens
            ids = ids[:kept] + [next(self._fresh) for _ in range(blocks - kept)]
            yield ids


def common_head(first_prompts: Sequence[Sequence[Hashable]]) -> int:
    """Leading blocks that the first prompts of all sessions have in common; none where there is but one session."""
    return min((leading_equal(first_prompts[0], ids) for ids in first_prompts[1:]), default=0)
