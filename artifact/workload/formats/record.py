"""A record that knows where it stands in its file, and the error that says so; reading and writing of JSON."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SKIP_ADVICE = "correct it, or leave the session out with --skip-bad (skip_bad=True)"


class TraceError(ValueError):
    """A trace that cannot be read or written as it stands: which file, line and field, what is wrong, what to do.

    `line` is None where the file is one JSON document; `field` is then a path into it, such as `requests[3].in`.
    """

    def __init__(
        self, path: Path, problem: str, *, line: int | None = None, field: str = "", advice: str = SKIP_ADVICE
    ) -> None:
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(": ".join(filter(None, [place, field, f"{problem}; {advice}"])))
        self.path, self.line, self.field, self.problem, self.advice = path, line, field, problem, advice


class Record:
    """One JSON object or CSV row that knows its place, so that a bad field can be named."""

    __slots__ = ("data", "line", "path", "prefix")

    def __init__(self, data: Mapping[str, Any], path: Path, line: int | None = None, prefix: str = "") -> None:
        self.data, self.path, self.line, self.prefix = data, path, line, prefix

    def error(self, key: str, problem: str, advice: str = SKIP_ADVICE) -> TraceError:
        return TraceError(self.path, problem, line=self.line, field=self.prefix + key, advice=advice)

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def require(self, key: str) -> Any:
        value = self.data.get(key)
        if value is None:
            raise self.error(key, "missing")
        return value

    def count(self, key: str, low: int = 0) -> int:
        """A whole number of at least `low`; a float or a string that is one will do (CSV, pandas)."""
        value = self.data.get(key)
        if type(value) is not int:
            value = self._whole(key, value)
        if value < low:
            raise self.error(key, f"{value} is below {low}")
        return value

    def _whole(self, key: str, value: Any) -> int:
        number = self.number(key)
        if not number.is_integer():
            raise self.error(key, f"{value!r} is not a whole number")
        return int(number)

    def number(self, key: str, low: float = -math.inf) -> float:
        """A finite number of at least `low`."""
        value = self.require(key)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(key, f"{value!r} is not a finite number")
        if number < low:
            raise self.error(key, f"{value} is below {low:g}")
        return number

    def text(self, key: str) -> str:
        """An identifier: a string or a whole number, as a string."""
        value = self.require(key)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(key, f"{value!r} is not a string or a whole number")
        return str(value)

    def items(self, key: str) -> list[Any]:
        value = self.require(key)
        if not isinstance(value, list):
            raise self.error(key, "is not a list")
        return value

    def ids(self, key: str) -> list[int | str]:
        """A list of whole numbers or strings."""
        values = self.items(key)
        if not set(map(type, values)) <= {int, str}:
            raise self.error(key, "holds something that is neither a whole number nor a string")
        return values

    def child(self, key: str) -> "Record":
        """The object under `key`; raises where it is missing or no object."""
        return self._nested(key, self.require(key))

    def children(self, key: str) -> list["Record"]:
        return [self._nested(f"{key}[{i}]", value) for i, value in enumerate(self.items(key))]

    def _nested(self, key: str, value: Any) -> "Record":
        if not isinstance(value, dict):
            raise self.error(key, "is not an object")
        return Record(value, self.path, self.line, f"{self.prefix}{key}.")

    def time_s(self, key: str) -> float:
        """Seconds since 1970 of an ISO 8601 time stamp or of a number of seconds."""
        value = self.require(key)
        if not isinstance(value, str):
            return self.number(key)
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise self.error(key, f"{value!r} is no ISO 8601 time") from None


def json_lines(path: Path) -> Iterator[tuple[str, Record | TraceError]]:
    """Each non-empty line, as text and as the object it holds; the error in its place where it holds none."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield text, TraceError(path, f"not JSON ({error})", line=number)
                continue
            if isinstance(data, dict):
                yield text, Record(data, path, number)
            else:
                yield text, TraceError(path, "not a JSON object", line=number)


def json_document(path: Path) -> Any:
    """The whole file as JSON. Raises `TraceError` naming the line where it breaks off."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
    except json.JSONDecodeError as error:
        raise TraceError(path, f"not JSON ({error.msg})", line=error.lineno) from None
    except RecursionError:
        raise TraceError(path, "not JSON (nested too deeply)") from None


def document_record(path: Path) -> Record:
    data = json_document(path)
    if not isinstance(data, dict):
        raise TraceError(path, "not a JSON object")
    return Record(data, path)


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")


def iso_time(seconds: float) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    return datetime.fromtimestamp(round(seconds, 6), tz=UTC).isoformat().replace("+00:00", "Z")


def write_json_document(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
