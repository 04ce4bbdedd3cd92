"""From a recorded conversation to calls: recorded counts and times where there are any, else counted ones."""

from typing import Any

from artifact.workload.formats.base import Call, Collector, appended
from artifact.workload.formats.record import Record
from artifact.workload.formats.tokens import VOCABULARY, content_text, count_tokens


class Transcript:
    """Told what was said and which calls were made, in order, it works out each call's tokens and gap.

    A gap runs from the end of a response to the last thing said before the next call. Where nothing said has a time,
    it runs to the time of the next response, which includes that response's own duration. Times must not decrease;
    with `parallel_tools` only those of responses must not, since tools report in any order.
    """

    def __init__(self, out: Collector, parallel_tools: bool = False) -> None:
        self._out = out
        self._parallel_tools = parallel_tools
        self._prompts: list[int] = []
        self._outputs: list[int] = []
        self._cached: list[int | None] = []
        self._gaps_s: list[float] = []
        self._said: list[Any] = []  # contents since the last call
        self._said_s: float | None = None  # when the last of them was said
        self._ended_s: float | None = None  # end of the last call's response
        self._latest_s = float("-inf")

    def say(self, content: Any, place: Record, time_key: str = "") -> None:
        """Something that is not the model's: system prompt, user message or tool result; `time_key` holds its time."""
        self._said.append(content)
        time_s = self._time_s(place, time_key, ordered=not self._parallel_tools)
        if time_s is not None:
            self._said_s = max(time_s, self._said_s or time_s)

    def call(
        self,
        content: Any,
        place: Record,
        time_key: str = "",
        *,
        prompt: int | None = None,
        output: int | None = None,
        cached: int | None = None,
        end_s: float | None = None,
    ) -> None:
        """A model's response; its recorded tokens as far as there are any; `end_s` where it ends after its time."""
        time_s = self._time_s(place, time_key)
        self._gaps_s.append(self._gap_s(time_s) if self._prompts else 0.0)
        if prompt is None:
            before = self._prompts[-1] + self._outputs[-1] if self._prompts else 0
            prompt = before + sum(count_tokens(content_text(said)) for said in self._said)
            self._out.note(f"prompts counted from the visible text ({VOCABULARY})")
        if output is None:
            output = count_tokens(content_text(content))
            self._out.note(f"outputs counted from the visible text ({VOCABULARY})")
        self._prompts.append(prompt)
        self._outputs.append(output)
        self._cached.append(cached)
        self._ended_s = time_s if end_s is None else end_s
        self._said, self._said_s = [], None

    def _time_s(self, place: Record, key: str, ordered: bool = True) -> float | None:
        if not key or not place.has(key):
            return None
        time_s = place.time_s(key)
        if ordered:
            if time_s < self._latest_s:
                raise place.error(key, f"{place.data[key]} is before the preceding time stamp of the session")
            self._latest_s = time_s
        return time_s

    def _gap_s(self, response_s: float | None) -> float:
        until_s = response_s if self._said_s is None else self._said_s
        if until_s is None or self._ended_s is None:
            self._out.note("gaps not recorded, taken as 0 s")
            return 0.0
        if self._said_s is None:
            self._out.note("gaps derived from time stamps: they include the next response's time")
        # Tools may report back while the response that called them is still being logged.
        return max(until_s - self._ended_s, 0.0)

    def calls(self) -> list[Call]:
        new = appended(self._prompts, self._cached)
        return [Call(*row) for row in zip(self._prompts, new, self._outputs, self._gaps_s, strict=True)]
