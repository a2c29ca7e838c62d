"""Points of collections, their ids, and what calls return."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Union

import numpy as np
from numpy.typing import NDArray

from ._errors import ChangeError, Error, InputError
from ._inputs import Payload, ids_in
from ._tables import Tabular

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
    #: Ids whose point was left as it was, by ``if_absent`` or ``if_unchanged_since``.
    skipped: list[Id] = field(default_factory=list)


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
    #: Conditions of the filter for which payloads were read, for want of an index.
    unindexed: list[str] = field(default_factory=list)


class Count(int):
    """A number of points."""

    #: At least and at most so many points: the number itself, unless it is an estimate.
    least: int
    most: int
    #: Conditions of the filter for which payloads were read, for want of an index.
    unindexed: list[str]

    @classmethod
    def of(cls, points: Sequence[int], unindexed: Sequence[str]) -> Count:
        """A number, the least and the most, with what is said of the filter."""
        about, least, most = points
        count = cls(about)
        count.least, count.most = least, most
        count.unindexed = list(unindexed)
        return count


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


@dataclass(frozen=True)
class VectorsChanged:
    """Points with other vectors: every later search sees them."""

    #: Number of the newest change of the collection that wrote some of them.
    seq: int
    #: Points that were written again.
    changed: int


@dataclass(frozen=True, eq=False)
class Point:
    """A point of a collection."""

    #: Its id.
    id: Id
    #: Its vector as it was given, shape (d,), of the dtype of the collection; None where vectors have names.
    vector: NDArray[Any] | None
    #: Number of the change that wrote it.
    seq: int
    #: Its payload; None where it has no fields.
    payload: Payload | None = None
    #: The vectors that it has, by name; None where vectors have no names.
    vectors: dict[str, NDArray[Any]] | None = None

    def __repr__(self) -> str:
        more = "" if self.payload is None else f", {len(self.payload)} fields"
        own = {"": self.vector} if self.vectors is None else self.vectors
        shapes = [f"{name} {one.size} x {one.dtype}".strip() for name, one in own.items() if one is not None]
        return f"<stratann.Point {self.id!r}: {', '.join(shapes) or 'no vector'}, seq {self.seq}{more}>"


@dataclass(frozen=True, eq=False)
class Page(Tabular):
    """Points in the order of their ids: numbers, then UUIDs, then strings; or in the order of a field.

    As a table it has the columns ``id``, ``seq``, ``payload`` and ``vector``.
    """

    #: The points.
    points: list[Point]
    #: Where the next page begins: an id, or a string that names a place in the order of a field; None at the end.
    next: Id | None
    #: Number of the newest change that the page has.
    seq: int = 0
    #: Conditions of the filter for which payloads were read, for want of an index.
    unindexed: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __repr__(self) -> str:
        return f"<stratann.Page: {len(self.points)} points, next {self.next!r}, seq {self.seq}>"

    def _columns(self) -> dict[str, list[Any]]:
        columns = {name: [getattr(one, name) for one in self.points] for name in ("id", "seq", "payload")}
        if all(one.vectors is None for one in self.points):
            return {**columns, "vector": [one.vector for one in self.points]}
        names = sorted({name for one in self.points for name in one.vectors or {}})
        for name in names:
            columns[f"vectors.{name}"] = [(one.vectors or {}).get(name) for one in self.points]
        return columns


def id_of(value: Any) -> int | str | bytes:
    """Converts an id for the compiled half, which gets a UUID as its bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the id {value!r} is no Unicode: {error.reason}; pass whole characters") from None
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 2**64:
        return int(value)
    raise InputError(f"{value!r} is no id; pass a whole number from 0 to 2^64 - 1, a string, or a uuid.UUID")


def ids_of(ids: Any) -> list[int | str | bytes]:
    ids = ids_in(ids)
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
    bytes_max: int | None = None,
) -> Iterable[tuple[int, int]]:
    """First and last row, exclusive, of each batch, of up to `most` rows and `bytes_max` bytes."""
    first, size = 0, 0
    limit = _BATCH_BYTES if bytes_max is None else min(bytes_max, _BATCH_BYTES)
    for row, value in enumerate(ids):
        own = _POINT_BYTES + row_bytes + 2 * (4 * len(value) if isinstance(value, str) else 17)
        if payloads is not None:
            own += 4 + len(payloads[row] or b"")
        if row > first and (size + own > limit or row - first == most):
            yield first, row
            first, size = row, 0
        size += own
    yield first, len(ids)


def in_parts(
    parts: Iterable[tuple[int, int]], count: int, change: Callable[[int, int], tuple[int, ...]]
) -> tuple[int, ...]:
    """Makes several changes one after another. Returns the number of the last one, and the sums of what they count.

    Raises:
        ChangeError: a later one failed.
    """
    seq, sums = 0, (0, 0, 0)
    for first, end in parts:
        try:
            seq, *done = change(first, end)
        except Error as error:
            if first == 0:
                raise
            raise partly(error, first, count) from error
        sums = tuple(before + own for before, own in zip(sums, done))  # type: ignore[assignment]
    return seq, *sums


def partly(error: Error, done: int, count: int) -> ChangeError:
    """The error of a call whose first `done` points are durable."""
    return ChangeError(f"{error}; the first {done} of {count} are durable", list(range(done)))
