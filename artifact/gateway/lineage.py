"""Recognising a conversation by the messages it repeats.

Two uses: naming sessions of clients that send no id (opt-in), and noticing a header that changes with every request,
which would otherwise leave one idle session behind a call.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

AMBIGUOUS = ""
_SYSTEM = ("system", "developer")


def message_hashes(body: Mapping[str, Any]) -> list[tuple[int, bool]]:
    """(hash, was written after the conversation began) of each message beyond the system prompt.

    Reads `messages` (chat, Anthropic) or `input` (responses); anything else has no messages.
    """
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list):
        return []
    hashes, answered = [], False
    for message in messages:
        if not isinstance(message, dict) or message.get("role") in _SYSTEM:
            continue
        answered = answered or message.get("role") != "user"
        content = message.get("content")
        tools = message.get("tool_calls") or message.get("arguments") or message.get("output")
        text = content if isinstance(content, str) else repr(content)
        hashes.append((hash((repr(message.get("role")), text, repr(tools) if tools else None)), answered))
    return hashes


class Lineage:
    """A bounded index from a message's hash to the one session that holds it.

    A call that already holds an answer continues the session that holds most of its messages: so a session survives
    compaction that keeps any of them verbatim. A call of opening messages alone is a new session, also when another
    one opened with the same words. System prompts never count, and a message seen in two sessions stops counting:
    losing a lineage costs one more admission, merging two strangers would mix up their accounts.
    """

    def __init__(self, capacity: int = 200_000) -> None:
        self.capacity = capacity
        self._owner: OrderedDict[int, str] = OrderedDict()

    def find(self, hashes: list[tuple[int, bool]]) -> str | None:
        if not any(later for _, later in hashes):
            return None
        votes = Counter(owner for key, _ in hashes if (owner := self._owner.get(key)))
        return votes.most_common(1)[0][0] if votes else None

    def learn(self, hashes: list[tuple[int, bool]], session_id: str) -> None:
        """Remember that these messages belong to the session; forgets the longest unused beyond the capacity."""
        for key, _ in hashes:
            owner = self._owner.get(key)
            self._owner[key] = session_id if owner in (None, session_id) else AMBIGUOUS
            self._owner.move_to_end(key)
        while len(self._owner) > self.capacity:
            self._owner.popitem(last=False)


class ChurnDetector:
    """Notices conventions whose id changes within one conversation.

    Only sessions' first calls are looked at: with a stable id a conversation has one of them, while under a header
    that changes with every request each call is a first call that repeats the messages of another "session".
    """

    def __init__(self, window: int = 16, threshold: float = 0.5) -> None:
        self.window, self.threshold = window, threshold
        self._lineage = Lineage(capacity=20_000)
        self._continued: dict[str, list[bool]] = {}

    def first_call(self, source: str, session_id: str, body: Mapping[str, Any]) -> bool:
        """Take note of a session's first call; True once its convention has proven to change with every request."""
        hashes = message_hashes(body)
        if not any(later for _, later in hashes):
            self._lineage.learn(hashes, session_id)
            return False  # an opening call proves nothing either way
        owner = self._lineage.find(hashes)
        seen = self._continued.setdefault(source, [])
        seen.append(owner is not None and owner != session_id)
        self._lineage.learn(hashes, session_id)
        del seen[: -self.window]
        return len(seen) >= self.window and sum(seen) > self.threshold * self.window
