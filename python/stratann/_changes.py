"""Changes of an index in memory nodes, and deletes in a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import Path, byte_size, fixed
from ._errors import ChangeError, InputError
from ._filters import is_id
from ._progress import Progress, listening


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
    if array.dtype.kind in "fO" and array.ndim == 1 and all(is_id(one) for one in ids):  # type: ignore[union-attr]
        # NumPy makes floats of numbers below and above 2^63.
        array = np.array(ids, np.uint64)
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


def delete(
    index: Path,
    ids: ArrayLike | None = None,
    *,
    undo: bool = False,
    ram_budget: int | str | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Deletes rows of an index in a folder. Indexes that are open keep their rows: open it again.

    Data files stay as they are: a new version says which rows are deleted, and every search passes over them.

    Args:
        index: the folder.
        ids: whole numbers of shape (n,), in any order. Those that no row has are ignored and counted.
        undo: take the last delete back instead.
        ram_budget: limit of all memory, bytes or such as ``"512MiB"``.
        progress: as in `build`.

    Returns:
        The report of ``stratann delete --json``: rows that were ``changed``, that are ``deleted`` now, that are
        ``left``; ``unknown`` and ``repeated`` ids, rows that were deleted ``already``, and the ``version``.

    Raises:
        InputError: no ids, or ids and ``undo``; a partition, or a kind that takes no filter; another writer.
        BudgetError, CorruptIndexError, DiskError: as in `open`.
    """
    if (ids is None) != undo:
        raise InputError("pass the ids to be deleted, or undo=True without any")
    named = np.empty(0, dtype=np.uint64) if ids is None else ids_of(ids)
    how = (undo, byte_size(ram_budget, "ram_budget"))
    with listening(progress) as on_progress:
        return json.loads(_stratann.delete(fixed(index), named, how, on_progress))
