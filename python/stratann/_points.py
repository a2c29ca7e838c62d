"""Points of collections, their ids, and what calls return."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ._errors import ChangeError, Error, InputError
from ._payloads import Payload

#: An id of a point.
Id = Union[int, str, uuid.UUID]
#: Ids of points: a list of ids, or an array of whole numbers of shape (n,).
Ids = Union[Sequence[Id], NDArray[Any]]

#: Most bytes of a batch with its keys; a data folder takes twice as many.
_BATCH_BYTES = 4 << 20
#: Bytes that a data folder takes for a point beside its vector and twice its id.
_POINT_BYTES = 128


@dataclass(frozen=True)
class Upserted:
    """Points that are durable: every later search sees them."""

    #: Number of the newest change of the collection that wrote some of them.
    seq: int
    #: Ids that had no point before.
    new: int
    #: Ids whose earlier point was replaced.
    replaced: int
    #: Points that a later one of the same id in the same batch took the place of.
    repeated: int


@dataclass(frozen=True)
class Deleted:
    """Points that are gone: no later search sees them."""

    #: Number of the newest change of the collection.
    seq: int
    #: Points that are gone.
    deleted: int
    #: Ids that had no point.
    unknown: int
    #: Points that matched a filter, and that others changed or deleted before they could be deleted. Changed ones are
    #: there.
    changed: int = 0


@dataclass(frozen=True)
class PayloadChanged:
    """Points whose payloads were to change: every later search sees the new ones."""

    #: Number of the newest change of the collection.
    seq: int
    #: Points with another payload than before.
    changed: int
    #: Points whose payload is as it was.
    unchanged: int
    #: Ids that had no point. Of a filter: points that others changed or deleted meanwhile.
    unknown: int


@dataclass(frozen=True, eq=False)
class FoundPoints:
    """The nearest points of each query, closest first."""

    #: For each query a list of up to k ids: int, str or uuid.UUID.
    ids: list[list[Id]]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine. Infinite past
    #: the ids of a query.
    distances: NDArray[np.float32]
    #: Number of the newest change that the search saw. It saw all earlier ones.
    seq: int
    #: For each query the payloads of its ids, as they were read after the search: a dict, or None for a point without
    #: fields and for one that is gone. None without ``with_payload``.
    payloads: list[list[Payload | None]] | None = None
    #: Conditions of the filter for which payloads were read, for want of an index: the field, and what to do.
    unindexed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Point:
    """A point of a collection."""

    #: Its id.
    id: Id
    #: Its vector as it was given, shape (d,), of the dtype of the collection.
    vector: NDArray[Any]
    #: Number of the change that wrote it.
    seq: int
    #: Its payload; None where it has no fields.
    payload: Payload | None = None


@dataclass(frozen=True, eq=False)
class Page:
    """Points in the order of their ids: numbers, then UUIDs, then strings."""

    #: The points.
    points: list[Point]
    #: The id behind which the next page begins; None at the end.
    next: Id | None


def id_of(value: Any) -> int | str | bytes:
    """Converts an id for the compiled half, which gets a UUID as its bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 2**64:
        return int(value)
    raise InputError(f"{value!r} is no id; pass a whole number from 0 to 2^64 - 1, a string, or a uuid.UUID")


def ids_of(ids: Any) -> list[int | str | bytes]:
    if isinstance(ids, (str, bytes, uuid.UUID)) or not isinstance(ids, (Iterable, np.ndarray)):
        raise InputError(f"ids is {ids!r}; pass a list of ids, or an array of shape (n,)")
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise InputError(f"ids have shape {ids.shape}; pass an array of shape (n,)")
    named = [id_of(value) for value in ids]
    if not named:
        raise InputError("there is no id; pass one or more")
    return named


def shown(value: int | str | bytes) -> Id:
    """An id as its user has it."""
    return uuid.UUID(bytes=value) if isinstance(value, bytes) else value


def batches(
    ids: list[int | str | bytes],
    row_bytes: int,
    payloads: list[bytes | None] | None = None,
    *,
    most: int | None = None,
) -> Iterable[tuple[int, int]]:
    """First and last row, exclusive, of each batch, of up to `most` rows."""
    first, size = 0, 0
    for row, value in enumerate(ids):
        own = _POINT_BYTES + row_bytes + 2 * (4 * len(value) if isinstance(value, str) else 17)
        if payloads is not None:
            own += 4 + len(payloads[row] or b"")
        if row > first and (size + own > _BATCH_BYTES or row - first == most):
            yield first, row
            first, size = row, 0
        size += own
    yield first, len(ids)


def partly(error: Error, done: int, count: int) -> ChangeError:
    """The error of a call whose first `done` points are durable."""
    return ChangeError(f"{error}; the first {done} of {count} are durable", list(range(done)))
