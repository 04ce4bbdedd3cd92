"""What a call used, read from the bytes that pass by without holding them up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifact.gateway.wire import parse_object

_KEEP = 16 << 10  # usage stands in an Anthropic stream's first event, otherwise at the end
_JSON_KEEP = 4 << 20
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `cached_tokens` is None where the engine does not say."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


class UsageReader:
    """Fed with a response's pieces as they pass; `result` afterwards. Keeps a bounded part of it."""

    def __init__(self, event_stream: bool) -> None:
        self.event_stream = event_stream
        self.events = 0
        self._head = b""
        self._tail = bytearray()
        self._limit = 2 * _KEEP if event_stream else _JSON_KEEP

    def feed(self, piece: bytes) -> None:
        if self.event_stream:
            self.events += piece.count(b"data:")
            if len(self._head) < _KEEP:
                self._head += piece[: _KEEP - len(self._head)]
        self._tail += piece
        if len(self._tail) > self._limit:
            del self._tail[: -self._limit // 2]

    def result(self) -> Usage | None:
        """The reported usage, or None when the response holds none."""
        if not self.event_stream:
            body = parse_object(bytes(self._tail)) or {}
            found = body.get("usage", body.get("meta_info"))
            return _usage(found) if isinstance(found, dict) else None
        merged = {**_embedded(self._head, last=False), **_embedded(bytes(self._tail), last=True)}
        return _usage(merged) if merged else None


def _embedded(text: bytes, last: bool) -> dict[str, Any]:
    """The last (first) non-null `"usage": {…}` object in a piece of an event stream, in SGLang's own dialect
    `"meta_info"`. Inside a JSON string its quotes would be escaped, so generated text cannot pose as usage."""
    key = b'"usage":' if b'"usage":' in text else b'"meta_info":'
    at = text.rfind(key) if last else text.find(key)
    while at >= 0:
        rest = text[at + len(key) :].decode("utf-8", "replace").lstrip()
        if rest.startswith("{"):
            try:
                found: dict[str, Any] = _DECODER.raw_decode(rest)[0]
                return found
            except (ValueError, RecursionError):
                return {}
        at = text.rfind(key, 0, at) if last else text.find(key, at + 1)
    return {}


def _usage(raw: Mapping[str, Any]) -> Usage | None:
    """From OpenAI's chat and responses forms, SGLang's own, or Anthropic's, where cached tokens are counted apart."""
    if "prompt_tokens" in raw:
        prompt, output = _int(raw.get("prompt_tokens")), _int(raw.get("completion_tokens"))
        details = raw.get("prompt_tokens_details")
    elif "input_tokens" in raw:
        prompt, output = _int(raw.get("input_tokens")), _int(raw.get("output_tokens"))
        details = raw.get("input_tokens_details")
        if "cache_read_input_tokens" in raw:
            read = _int(raw["cache_read_input_tokens"])
            return Usage(prompt + read + _int(raw.get("cache_creation_input_tokens")), output, read)
    else:
        return None
    cached = (details if isinstance(details, dict) else raw).get("cached_tokens")
    return Usage(prompt, output, _int(cached) if cached is not None else None)


def _int(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
