"""Arguments that are parameters of the engine, which checks them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from . import _stratann
from ._arrays import fixed
from ._errors import InputError, KeywordError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def refuses_unknown(stage: str) -> Callable[[_Function], _Function]:
    """Decorates a function whose keywords are parameters of a stage.

    A keyword that it does not have raises `KeywordError`, which names a similar one of the same kind of index.
    """

    def decorate(function: _Function) -> _Function:
        known = inspect.signature(function).parameters

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            unknown = next((name for name in keywords if name not in known), None)
            if unknown is not None:
                kind = keywords.get("kind", getattr(args[0], "kind", None) if args else None)
                raise KeywordError(_stratann.unknown(stage, str(kind), unknown, list(known)))
            return function(*args, **keywords)

        return cast(_Function, checked)

    return decorate


def parameters(stage: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns those of a stage that are given among the arguments of a function."""
    names = [name for name in _stratann.parameters(stage) if given.get(name) is not None]
    paths = {name: fixed(given[name]) for name in ("profile", "centroids") if name in names}
    return {**{name: given[name] for name in names}, **paths}


def search_parameters(given: dict[str, Any]) -> dict[str, Any]:
    """Returns those of a search. `static_order` is the older name of the opposite of `busy_last`."""
    found = parameters("search", given)
    if given.get("static_order") is not None:
        if not isinstance(given["static_order"], (bool, np.bool_)):
            raise InputError(f"static_order is {given['static_order']!r}; give True or False")
        found["busy_last"] = not given["static_order"]
    if found.get("io") == "io_uring":
        found["io"] = "uring"
    return found
