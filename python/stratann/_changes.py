"""Changes of an index in memory nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import ChangeError, InputError


@dataclass(frozen=True)
class Changes:
    """Changes that are acknowledged: every search that begins now sees them."""

    #: Number of vectors or ids.
    count: int
    #: Where they are: ``"memory"``, which ends with its memory node.
    place: str
    #: Groups that this process has rebuilt since it opened the index.
    groups_rebuilt: int


def ids_of(ids: ArrayLike, rows: int | None = None) -> NDArray[np.uint64]:
    """Converts ids; there must be `rows` of them."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "ui"):
        raise InputError(f"ids have shape {array.shape} and dtype {array.dtype}; pass whole numbers of shape (n,)")
    if rows is not None and len(array) != rows:
        raise InputError(f"there are {len(array)} ids and {rows} vectors; pass an id for each vector")
    if array.size and array.dtype.kind == "i" and int(array.min()) < 0:
        raise InputError(f"ids have {int(array.min())}; pass whole numbers from 0")
    return np.ascontiguousarray(array, dtype=np.uint64)


def changed(made: dict[str, Any]) -> Changes:
    """Raises the error of a call that ended early."""
    if "error" in made:
        raise ChangeError(made["error"], made["acknowledged"])
    return Changes(made["count"], made["place"], made["groups_rebuilt"])
