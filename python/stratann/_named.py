"""Vectors of collections, with names or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._arrays import DTYPES, as_bytes, dtype_name, numbers, whole
from ._errors import InputError
from ._inputs import Vectors, vectors_of
from ._points import Ids, ids_of

#: Vectors by name: as without names, None for a name of no point; a list may have None for a point without one.
NamedVectors = Mapping[str, Union[Vectors, Sequence[Any], None]]
#: What the vectors of each name are: their dimensions, or a dict with ``dim``, ``metric``, ``dtype`` and ``kind``.
NamedSpecs = Mapping[str, Union[int, Mapping[str, Any]]]

_FIELDS = ("dim", "metric", "dtype", "kind")


@dataclass(frozen=True)
class VectorSpec:
    """What the vectors of a collection are, or those of a name."""

    #: Components of a vector.
    dim: int
    #: ``"l2"``, ``"ip"`` or ``"cosine"``.
    metric: str
    #: Name of the type of a component: ``"f32"``, ``"f16"``, ``"u8"`` or ``"i8"``.
    dtype: str
    #: Kind of index of its larger parts, or ``"auto"``.
    kind: str

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of a component."""
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class GivenVectors:
    """Vectors of a name for the points of a call."""

    name: str
    #: Those that are there, shape (m, d), C-contiguous.
    rows: NDArray[Any]
    #: Which points have one, shape (n,); None for all.
    has: NDArray[np.bool_] | None

    def part(self, first: int, end: int) -> tuple[str, NDArray[np.uint8], list[bool] | None]:
        """Those of some points, for the compiled half."""
        if self.has is None:
            return self.name, as_bytes(self.rows[first:end]), None
        before, own = int(self.has[:first].sum()), self.has[first:end]
        return self.name, as_bytes(self.rows[before : before + int(own.sum())]), own.tolist()


def unknown_name(name: str | None, specs: Mapping[str, VectorSpec]) -> str:
    """The text of an error."""
    if "" in specs:
        return f"unknown vector name {name!r}: vectors of this collection have no names; pass none"
    listed = ", ".join(map(repr, specs))
    if not name:
        return f"vectors of this collection have names: {listed}; pass one of them"
    return f"unknown vector name {name!r}; there are {listed}"


def rows_of(vectors: Vectors, what: str, spec: VectorSpec, *, one: bool = False) -> NDArray[Any]:
    """Converts vectors to a C-contiguous array of shape (n, d) and of the dtype of the collection."""
    rows = numbers(vectors_of(vectors, what), what, spec.dtype)
    if one and rows.ndim == 1:
        rows = rows.reshape(1, -1)
    if rows.ndim != 2 or rows.shape[1] != spec.dim:
        raise InputError(
            f"{what} have shape {rows.shape}; the collection has {spec.dim} dimensions: pass (n, {spec.dim})"
        )
    if not len(rows):
        raise InputError(f"{what} has no rows; pass one or more")
    wanted = spec.numpy_dtype
    if rows.dtype != wanted:
        if rows.dtype.kind != "f" or wanted.kind != "f":
            name = dtype_name(rows, what)
            raise InputError(f"{what} are {name}, the collection holds {spec.dtype}; convert them as you mean it")
        # Between float32 and float16.
        rows = numbers(rows.astype(np.float64), what, spec.dtype)
    return np.ascontiguousarray(rows)


def given_of(name: str, vectors: Any, spec: VectorSpec, count: int) -> GivenVectors:
    """Vectors of a name for `count` points, some of which may have none."""
    what = f"vectors[{name!r}]"
    has: NDArray[np.bool_] | None = None
    if vectors is None:
        vectors, has = [], np.zeros(count, np.bool_)
    elif isinstance(vectors, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(vectors)
        if mask.ndim == 2 and (mask.any(axis=1) != mask.all(axis=1)).any():
            raise InputError(f"{what} masks a part of a row; mask whole rows")
        has = ~mask.any(axis=tuple(range(1, mask.ndim)))
        vectors = vectors.data[has]
    elif isinstance(vectors, (list, tuple)) and any(own is None for own in vectors):
        has = np.array([own is not None for own in vectors], np.bool_)
        vectors = [own for own in vectors if own is not None]
    if has is not None and not has.any():
        rows: NDArray[Any] = np.empty((0, spec.dim), spec.numpy_dtype)
    else:
        rows = rows_of(vectors, what, spec)
    found = len(rows) if has is None else len(has)
    if found != count:
        raise InputError(f"there are {count} ids and {found} rows of {what}; pass a vector or None for each id")
    return GivenVectors(name, rows, has)


def spec_of(specs: Mapping[str, VectorSpec], name: str | None) -> VectorSpec:
    """What the vectors of a name are; without one those that have none."""
    if name is not None and not isinstance(name, str):
        raise InputError(f"vector_name is {name!r}; pass a str")
    spec = specs.get(name or "")
    if spec is None:
        raise InputError(unknown_name(name, specs))
    return spec


def given_by_name(
    ids: Ids, vectors: Any, spec_of: Callable[[str | None], VectorSpec]
) -> tuple[list[int | str | bytes], list[GivenVectors]]:
    """Ids, and the vectors of each name that is given."""
    if isinstance(vectors, Mapping):
        named = ids_of(ids)
        return named, [given_of(own, rows, spec_of(own), len(named)) for own, rows in vectors.items()]
    rows, named = rows_of(vectors, "vectors", spec_of(None)), ids_of(ids)
    if len(named) != len(rows):
        raise InputError(f"there are {len(named)} ids and {len(rows)} vectors; pass an id for each vector")
    return named, [GivenVectors("", rows, None)]


def row_bytes(given: list[GivenVectors]) -> int:
    """Bytes of the vectors of a point."""
    return sum(own.rows.shape[1] * own.rows.itemsize for own in given)


def specs_of(
    one: tuple[int | None, str | None, DTypeLike | None, str | None], vectors: NamedSpecs | None
) -> list[tuple[str, int, tuple[str, str, str]]]:
    """Vectors of a new collection, by name or without, for the compiled half."""
    if vectors is None:
        if one[0] is None:
            raise InputError("neither dim nor vectors is given; pass dim=384, or vectors={'title': 384}")
        return [("", *_spec_of("dim", *one))]
    if any(own is not None for own in one):
        raise InputError("vectors is given with dim, metric, dtype or kind; pass these for each name")
    if not isinstance(vectors, Mapping) or not vectors:
        raise InputError(f"vectors is {vectors!r}; pass a dict such as {{'title': {{'dim': 384, 'metric': 'cosine'}}}}")
    specs = []
    for name, spec in vectors.items():
        if not isinstance(name, str):
            raise InputError(f"a name of vectors is {name!r}; pass a str")
        own = dict(spec) if isinstance(spec, Mapping) else {"dim": spec}
        if wrong := [field for field in own if field not in _FIELDS]:
            raise InputError(f"vectors[{name!r}] has {wrong[0]!r}; use dim, metric, dtype and kind")
        specs.append((name, *_spec_of(f"vectors[{name!r}]: dim", *(own.get(field) for field in _FIELDS))))
    return specs


def _spec_of(
    what: str, dim: Any, metric: str | None, dtype: DTypeLike | None, kind: str | None
) -> tuple[int, tuple[str, str, str]]:
    count = whole(dim, what, 1)
    if count is None:
        raise InputError(f"{what} is missing; pass 1 to 4096")
    return count, (metric or "l2", dtype_of("float32" if dtype is None else dtype), kind or "auto")


def dtype_of(dtype: DTypeLike) -> str:
    """Returns the name of the type of a component."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    name = next((name for name, known in DTYPES.items() if known == wanted), None)
    if name is None:
        raise InputError(f"dtype is {dtype!r}; use float32, float16, uint8 or int8")
    return name
