"""Filters of a search: the rows that it may return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import InputError

#: Ids, a mask over all rows, or one of the two for each query.
Filter = Union[ArrayLike, Sequence[ArrayLike], None]


def filters(only: Filter, without: Filter, queries: int, rows: int, owner: str = "the index") -> Any:
    """Returns whether a filter names what may not be returned, whether each query has its own or is a mask, and ids.

    Raises:
        InputError: both kinds of filter, ids that are no ids, a mask of another length, or another number of filters
            than queries.
    """
    if only is not None and without is not None:
        raise InputError("only and without are both given; give one of them")
    name, value = ("only", only) if without is None else ("without", without)
    each = _is_for_each(value)
    given = list(value) if each else [value]  # type: ignore[arg-type, call-overload]
    if each and len(given) != queries:
        raise InputError(f"{name} has {len(given)} filters for {queries} queries; give one for each, or one for all")
    has_mask = any(np.asarray(one).dtype == np.bool_ for one in given)
    return without is not None, each, has_mask, [_ids(one, name, (rows, owner)) for one in given]


def named_ids(only: Filter, without: Filter, queries: int, why: str) -> Any:
    """As `filters`, for rows that have no numbers here, and None without a filter. `why` tells why a mask is refused.

    Raises:
        InputError: a mask, or as in `filters`.
    """
    if only is None and without is None:
        return None
    name, value = ("only", only) if without is None else ("without", without)
    for one in value if _is_for_each(value) else [value]:  # type: ignore[union-attr]
        if np.asarray(one).dtype == np.bool_:
            raise InputError(f"{name} is a mask, and {why}; give ids, such as those of np.flatnonzero(mask)")
    return filters(only, without, queries, 0)


def _is_for_each(value: Any) -> bool:
    """Returns whether a filter has a part for each query."""
    if isinstance(value, np.ndarray):
        return value.ndim == 2
    return isinstance(value, (list, tuple)) and any(np.ndim(part) > 0 for part in value)


def _ids(value: ArrayLike, name: str, of: tuple[int, str]) -> NDArray[np.uint64]:
    rows, owner = of
    array = np.asarray(value)
    if array.dtype.kind in "fO" and array.ndim == 1 and all(is_id(one) for one in value):  # type: ignore[union-attr]
        # NumPy makes floats of numbers below and above 2^63.
        array = np.array(value, np.uint64)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; give ids of shape (n,), or a list of these for each query")
    if array.dtype == np.bool_:
        if len(array) != rows:
            raise InputError(f"{name} is a mask of {len(array)} rows, {owner} has {rows}; give a value for each row")
        return np.flatnonzero(array).astype(np.uint64)
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has dtype {array.dtype}; give integers, or booleans for a mask")
    if array.dtype.kind == "i" and array.min() < 0:
        raise InputError(f"{name} has the negative id {array.min()}; ids start at 0")
    return np.ascontiguousarray(array, np.uint64)


def is_id(value: Any) -> bool:
    """Returns whether a number is an integer that an id can be."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < 2**64
