"""Registering hooks so that each is known to have applied; SGLang itself only logs a hook that did not."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True, slots=True)
class Hook:
    """Wrap `target` so that `around(original, *args, **kwargs)` runs in its place."""

    target: str
    around: Callable[..., Any]


def before(step: Callable[..., None]) -> Callable[..., Any]:
    """An around that runs `step(*args, **kwargs)` first."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step(*args, **kwargs)
        return original(*args, **kwargs)

    return around


def after(step: Callable[..., None]) -> Callable[..., Any]:
    """An around that runs `step(*args, **kwargs)` once the original has returned; its result stands."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        step(*args, **kwargs)
        return result

    return around


def missing(hooks: list[Hook]) -> list[str]:
    """Targets that do not exist in the installed engine: what moved."""
    absent = []
    for hook in hooks:
        try:
            resolve_name(hook.target.replace(":", "."))
        except (AttributeError, ImportError, ValueError):
            absent.append(hook.target)
    return absent


def merged(hooks: list[Hook]) -> dict[str, Callable[..., Any]]:
    """One around a target: several features may want the same place, and the engine's registry warns of doubles."""
    chains: dict[str, Callable[..., Any]] = {}
    for hook in hooks:
        inner = chains.get(hook.target)
        chains[hook.target] = hook.around if inner is None else _nest(hook.around, inner)
    return chains


def _nest(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return outer(functools.partial(inner, original), *args, **kwargs)

    return around
