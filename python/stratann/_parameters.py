"""Arguments that are parameters of the engine, which checks them."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _stratann
from ._arrays import fixed
from ._errors import InputError, KeywordError


def parameters(stage: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns those of a stage that are given among the arguments of a function.

    Raises:
        KeywordError: a keyword in `unknown`, with a similar one of the same kind of index.
    """
    for name in given.get("unknown", ()):
        kind = given["kind"] if "kind" in given else getattr(given.get("self"), "kind", None)
        known = [known for known in given if known not in ("self", "unknown")]
        raise KeywordError(_stratann.unknown(stage, str(kind), name, known))
    names = [name for name in _stratann.parameters(stage) if given.get(name) is not None]
    paths = {name: fixed(given[name]) for name in ("profile", "centroids") if name in names}
    return {**{name: _listed(given[name]) for name in names}, **paths}


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


#: Sets of parameters that an index remembers.
_REMEMBERED_MAX = 64


def remembered_parameters(known: dict[Any, Any], given: dict[str, Any]) -> Any:
    """Returns those of a search as the engine reads them, from `known` where equal ones were given before.

    `given` are all arguments of the function in their order: the index and its queries come first, the two filters of
    ids, the three arguments about payloads, `progress` and `unknown` last.
    """
    values = tuple(given.values())[2:-7]
    key = (values, tuple(map(type, values)))
    try:
        found = known.get(key)
    except TypeError:
        # Lists cannot be looked up.
        return search_parameters(given)
    if found is None or given["unknown"]:
        found = _stratann.SearchParameters(search_parameters(given))
        if len(known) >= _REMEMBERED_MAX:
            known.clear()
        known[key] = found
    return found


def _listed(value: Any) -> Any:
    """Returns several values as a list, and one as it is."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, (tuple, range)) else value
