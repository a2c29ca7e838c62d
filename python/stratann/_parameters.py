"""Arguments that are parameters of the engine, which checks them."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _stratann
from ._arrays import fixed
from ._errors import InputError


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
