"""Copies of an object with all it refers to, by pickle.

`copy.deepcopy` takes the bound methods of compiled objects for plain functions: the events of a copied simulation would
call the original's engine.
"""

import io
import pickle
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any, TypeVar

T = TypeVar("T")


def copied(original: T, shared: Iterable[Any] = ()) -> T:
    """A copy that has in common with the original only `shared` (by identity), functions and types."""
    kept = {id(thing): thing for thing in shared}
    buffer = io.BytesIO()
    _Pickler(buffer, kept).dump(original)
    buffer.seek(0)
    copy: T = _Unpickler(buffer, kept).load()
    return copy


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, kept: dict[int, Any]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.kept = kept

    def persistent_id(self, thing: Any) -> int | None:
        if isinstance(thing, FunctionType | type):
            self.kept[id(thing)] = thing
        return id(thing) if id(thing) in self.kept else None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MethodType):  # by its function: SimPy binds classes to their environment, too
            return MethodType, (thing.__func__, thing.__self__)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, kept: dict[int, Any]) -> None:
        super().__init__(buffer)
        self.kept = kept

    def persistent_load(self, name: int) -> Any:
        return self.kept[name]
