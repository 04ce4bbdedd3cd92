"""Token counts of text where a trace records none, without a network: `bpe-openai` carries its vocabularies."""

import json
from functools import cache
from typing import Any

VOCABULARY = "o200k_base"
"""Other models' tokenisers differ from it by tens of percent (Claude's counts about 1.2 times as many)."""


@cache
def _encoding() -> Any:
    import bpe_openai  # building the tables takes 0.2 s, which numeric formats should not pay

    return bpe_openai.get_encoding(VOCABULARY)


def count_tokens(text: str) -> int:
    """Tokens of `text` in the vocabulary `VOCABULARY`."""
    return len(_encoding().encode_ordinary(text)) if text else 0


def content_text(content: Any) -> str:
    """The text of a chat message's content: a string, or a list of blocks (text, thinking, tool use, tool result)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(content_text, content)))
    if isinstance(content, dict):
        if content.get("type") == "tool_use":
            return f"{content.get('name', '')} {_flat(content.get('input'))}"
        return content_text(next((content[k] for k in ("text", "thinking", "content") if k in content), ""))
    return str(content)


def _flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
