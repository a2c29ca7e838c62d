"""Collections of a data folder: points that change, in this process."""

from __future__ import annotations

import enum
import json
import os
import re
import uuid
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _stratann
from ._arrays import DTYPES, Path, as_bytes, byte_size, dtype_name, fixed, numbers, real, whole
from ._errors import ChangeError, Error, InputError
from ._progress import Progress, listening

#: An id of a point.
Id = Union[int, str, uuid.UUID]
#: Ids of points: a list of ids, or an array of whole numbers of shape (n,).
Ids = Union[Sequence[Id], NDArray[Any]]


class _Kept(enum.Enum):
    """The value of a limit that stays as it is."""

    KEPT = "as it is"


#: Most bytes of a batch with its keys; a data folder takes twice as many.
_BATCH_BYTES = 4 << 20
#: Bytes that a data folder takes for a point beside its vector and twice its id.
_POINT_BYTES = 128
#: Bytes of the queries of one call of the compiled half.
_QUERY_BYTES = 4 << 20
#: What is no path, but the address of a server.
_ADDRESS = re.compile(r"https?://|[\w.\-]+:\d+$|\[[\da-fA-F:]+\]:\d+$")


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


@dataclass(frozen=True, eq=False)
class Point:
    """A point of a collection."""

    #: Its id.
    id: Id
    #: Its vector as it was given, shape (d,), of the dtype of the collection.
    vector: NDArray[Any]
    #: Number of the change that wrote it.
    seq: int


@dataclass(frozen=True, eq=False)
class Page:
    """Points in the order of their ids: numbers, then UUIDs, then strings."""

    #: The points.
    points: list[Point]
    #: The id behind which the next page begins; None at the end.
    next: Id | None


class Client:
    """Collections of a data folder, which this process opens. No other process can open it meanwhile.

    Any number of threads may use a client. After a fork, the child must open a client of its own once the parent has
    closed its client.

    Args:
        path: the data folder; made where there is none.
        ram_budget: limit in bytes of the memory of the data folder, as int or text; None for no limit.
        threads: threads of a search; None for all cores.

    Raises:
        InputError: another process has the folder open, which the message names; a folder of something else.
        BudgetError: the budget is too small.
        CorruptIndexError, DiskError: a damaged file, or a folder that cannot be written.

    >>> import numpy as np, os, stratann, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> client = stratann.Client(os.path.join(folder.name, "data"))
    >>> photos = client.create_collection("photos", dim=2)
    >>> photos.upsert([7, "seven"], np.array([[1, 0], [0, 1]], np.float32))
    Upserted(seq=1, new=2, replaced=0, repeated=0)
    >>> photos.search([[0.9, 0.1]], k=1).ids
    [[7]]
    >>> client.close()
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, ram_budget: int | str | None = None, threads: int | None = None) -> None:
        text = os.fspath(path)
        if isinstance(text, str) and _ADDRESS.match(text) and not os.path.exists(text):
            raise InputError(f"{text} is the address of a server; for an index use stratann.connect({text!r})")
        self._path = fixed(path)
        self._threads = whole(threads, "threads", 1) or os.cpu_count() or 1
        self._folder = _stratann.DataFolder(self._path, byte_size(ram_budget, "ram_budget"))
        if (why := self._folder.read_only()) is not None:
            warnings.warn(f"{self._path} is read-only: {why}", RuntimeWarning, stacklevel=2)

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written: the storage engine is damaged, and segments are searched as they were. None for
        a data folder that is whole."""
        return self._folder.read_only()

    def create_collection(
        self,
        name: str,
        *,
        dim: int,
        metric: str = "l2",
        dtype: DTypeLike = "float32",
        kind: str = "auto",
        memory_quota: int | str | None = None,
        memory_minimum: int | str = 0,
    ) -> Collection:
        """Creates an empty collection.

        Args:
            name: 1 to 255 bytes without control characters and ``/``.
            dim: components of a vector, 1 to 4096.
            metric: ``"l2"``, ``"ip"`` or ``"cosine"``.
            dtype: float32, float16, uint8 or int8.
            kind: kind of index of its larger parts; ``"auto"`` leaves the choice to each of them.
            memory_quota: the most memory of its newest points and open segments, in bytes or as text; None for no
                quota.
            memory_minimum: memory that other collections never take, in bytes or as text.

        Raises:
            InputError: a name that is taken, a minimum that has no room, or a wrong argument.
        """
        count = whole(dim, "dim", 1)
        limits = byte_size(memory_quota, "memory_quota"), byte_size(memory_minimum, "memory_minimum") or 0
        self._folder.create(_name(name), count or 0, (metric, _dtype_name(dtype), kind), limits)
        return self.collection(name)

    def collection(self, name: str) -> Collection:
        """Returns a collection by its name.

        Raises:
            MissingError: there is none.
        """
        dim, metric, dtype, kind = self._folder.describe(_name(name))
        return Collection(self, name, (dim, metric, dtype, kind))

    def collections(self) -> list[dict[str, Any]]:
        """Returns ``name``, ``dim``, ``metric``, ``dtype`` and ``kind`` of each collection; of a damaged one ``name``
        and ``error``."""
        listed: list[dict[str, Any]] = json.loads(self._folder.collections())
        return listed

    def drop_collection(self, name: str) -> None:
        """Drops a collection with all of its points.

        Raises:
            MissingError: there is none.
        """
        self._folder.drop(_name(name))

    def close(self) -> None:
        """Closes the data folder. What calls have returned is durable without it."""
        self._folder.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed, or of a process that this one was forked from."""
        return self._folder.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stratann.Client {self._path}{', closed' if self.closed else ''}>"


class Collection:
    """A collection of a client, for any number of threads. Created by `Client.create_collection` and
    `Client.collection`.

    Ids are ints from 0 to 2^64 - 1, strings of 1 to 255 bytes, and UUIDs. A string that is a UUID in its canonical form
    is that UUID, and is returned as a `uuid.UUID`.
    """

    def __init__(self, client: Client, name: str, spec: tuple[int, str, str, str]) -> None:
        self._client = client
        self._folder = client._folder
        self._name = name
        self._dim, self._metric, self._dtype, self._kind = spec

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self._dim

    @property
    def metric(self) -> str:
        """``"l2"``, ``"ip"`` or ``"cosine"``."""
        return self._metric

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a component."""
        return DTYPES[self._dtype]

    @property
    def kind(self) -> str:
        """Kind of index of its larger parts, or ``"auto"``."""
        return self._kind

    def upsert(self, ids: Ids, vectors: ArrayLike) -> Upserted:
        """Writes points, each in place of an earlier one of its id.

        Up to about 4 MiB are one change: all of it or none is written. More are written as several changes, one after
        another. Of several points of an id the last one counts.

        Args:
            ids: n ids: ints, strings or `uuid.UUID`, or an array of whole numbers of shape (n,).
            vectors: shape (n, d), of the dtype of the collection; float32, float64 and lists are converted to it.

        Raises:
            InputError: NaN or infinity, a zero vector under cosine, another shape, an id that is none.
            BusyError: there is no room, or the quota is used up; nothing was written.
            CorruptIndexError: the data folder is read-only; see `Client.read_only`.
            UnknownOutcomeError: writing failed midway.
            ChangeError: some changes of a large call are made, and a later one is not; the error before it says why.
            MissingError: the collection was dropped.
            DiskError: the disk is full; nothing was written. Deletes are still possible.
        """
        rows, named = self._rows(vectors, "vectors"), _ids(ids)
        if len(named) != len(rows):
            raise InputError(f"there are {len(named)} ids and {len(rows)} vectors; pass an id for each vector")
        seq, counts = 0, [0, 0, 0]
        for first, end in _batches(named, rows.shape[1] * rows.itemsize):
            try:
                seq, *done = self._folder.upsert(self._name, named[first:end], as_bytes(rows[first:end]))
            except Error as error:
                if first == 0:
                    raise
                raise _partly(error, first, len(named)) from error
            counts = [before + own for before, own in zip(counts, done)]
        return Upserted(seq, *counts)

    def delete(self, ids: Ids) -> Deleted:
        """Deletes points. Ids without a point are counted.

        Args:
            ids: n ids, as in `upsert`.

        Raises:
            InputError, MissingError, UnknownOutcomeError, ChangeError: as in `upsert`.
        """
        named = _ids(ids)
        seq, deleted, unknown = 0, 0, 0
        for first, end in _batches(named, 0):
            try:
                seq, *done = self._folder.delete(self._name, named[first:end])
            except Error as error:
                if first == 0:
                    raise
                raise _partly(error, first, len(named)) from error
            deleted, unknown = deleted + done[0], unknown + done[1]
        return Deleted(seq, deleted, unknown)

    def search(self, vectors: ArrayLike, k: int = 10, recall: float = 0.95) -> FoundPoints:
        """Finds the `k` nearest points of each query.

        Args:
            vectors: queries, shape (nq, d), or (d,) for one query; converted as in `upsert`. Up to about 4 MiB see one
                state of the collection.
            k: results of each query, 1 to 16384.
            recall: share of the true k nearest that is asked for, above 0 and up to 1.

        Raises:
            InputError: NaN, another shape, `k` or `recall` out of range.
            MissingError: the collection was dropped.
            BusyError: there is no memory to open the collection.
        """
        rows = self._rows(vectors, "vectors", one=True)
        count, share = whole(k, "k", 1) or 1, real(recall, "recall")
        ids: list[list[Id]] = []
        distances = np.full((len(rows), count), np.inf, np.float32)
        seq, each = 0, max(1, _QUERY_BYTES // (rows.shape[1] * rows.itemsize))
        for first in range(0, len(rows), each):
            found = self._folder.search(
                self._name,
                as_bytes(rows[first : first + each]),
                count,
                0.95 if share is None else share,
                self._client._threads,
            )
            seq, at = found[0], 0
            for query, own in enumerate(found[1], first):
                distances[query, : len(own)] = found[2][at : at + len(own)]
                at += len(own)
                ids.append([_shown(id_) for id_ in own])
        return FoundPoints(ids, distances, seq)

    def get(self, ids: Ids) -> list[Point | None]:
        """Returns the point of each id, or None where there is none.

        Args:
            ids: n ids, as in `upsert`, whose vectors have at most 8 MiB.
        """
        points = self._folder.get(self._name, _ids(ids))
        return [None if point is None else self._point(point) for point in points]

    def count(self) -> int:
        """Returns the number of points."""
        return self._folder.count(self._name)

    def scroll(self, after: Id | None = None, limit: int = 1000) -> Page:
        """Returns points in the order of their ids: numbers, then UUIDs, then strings.

        Args:
            after: the id behind which the page begins; None for the first page.
            limit: most points, 1 to 16384. A page has at most about 8 MiB of vectors.
        """
        behind = None if after is None else _id(after)
        points, following = self._folder.scroll(self._name, behind, whole(limit, "limit", 1) or 1)
        return Page([self._point(point) for point in points], None if following is None else _shown(following))

    def compact(self, progress: Progress = None) -> None:
        """Makes one segment of all points, which searches read at the least cost. An interruption leaves the collection
        as it was.

        Args:
            progress: as in `build`.

        Raises:
            DiskError, BudgetError, CorruptIndexError: a full disk, memory, damage.
        """
        with listening(progress) as on_progress:
            self._folder.compact(self._name, on_progress)

    def set_limits(
        self,
        *,
        memory_quota: int | str | None | _Kept = _Kept.KEPT,
        memory_minimum: int | str | _Kept = _Kept.KEPT,
    ) -> None:
        """Changes the limits of the memory of the collection. What is not given stays as it is.

        Args:
            memory_quota: the most memory of its newest points and open segments, in bytes or as text; None for no
                quota.
            memory_minimum: memory that other collections never take, in bytes or as text.

        Raises:
            InputError: a quota below the minimum, or a minimum that has no room beside those of other collections.
            MissingError: the collection was dropped.
        """
        quota = minimum = None
        if not isinstance(memory_quota, _Kept):
            quota = (byte_size(memory_quota, "memory_quota"),)
        if not isinstance(memory_minimum, _Kept):
            minimum = byte_size(memory_minimum, "memory_minimum") or 0
        self._folder.set_limits(self._name, quota, minimum)

    def verify(self) -> dict[str, int]:
        """Compares all that is stored of the collection. Returns its ``points`` and its newest change, ``seq``.

        Raises:
            CorruptIndexError: at the first difference, which the message names.
        """
        seq, points = self._folder.verify(self._name)
        return {"points": points, "seq": seq}

    def info(self) -> dict[str, Any]:
        """Returns what the collection is made of: ``name``, ``dim``, ``metric``, ``dtype``, ``kind``, ``points``,
        ``seq``, ``delta_points``, ``delta_bytes``, ``segments``, ``trouble``: why the last checkpoint or merge failed,
        or None, ``jobs``: kinds of jobs that wait or run, ``memory_bytes``, ``memory_quota_bytes`` and
        ``memory_minimum_bytes``."""
        described: dict[str, Any] = json.loads(self._folder.info(self._name))
        return described

    def _rows(self, vectors: ArrayLike, what: str, *, one: bool = False) -> NDArray[Any]:
        """Converts vectors to a C-contiguous array of shape (n, d) and of the dtype of the collection."""
        rows = numbers(vectors, what, self._dtype)
        if one and rows.ndim == 1:
            rows = rows.reshape(1, -1)
        if rows.ndim != 2 or rows.shape[1] != self._dim:
            raise InputError(
                f"{what} have shape {rows.shape}; the collection has {self._dim} dimensions: pass (n, {self._dim})"
            )
        if not len(rows):
            raise InputError(f"{what} has no rows; pass one or more")
        if rows.dtype != self.dtype:
            if rows.dtype.kind != "f" or self.dtype.kind != "f":
                name = dtype_name(rows, what)
                raise InputError(f"{what} are {name}, the collection holds {self._dtype}; convert them as you mean it")
            # Between float32 and float16.
            rows = numbers(rows.astype(np.float64), what, self._dtype)
        return np.ascontiguousarray(rows)

    def _point(self, point: tuple[int | str | bytes, int, NDArray[np.uint8]]) -> Point:
        return Point(_shown(point[0]), point[2].view(self.dtype), point[1])

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"<stratann.Collection {self._name!r}: {self._dim} x {self._dtype}, {self._metric}>"


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InputError(f"the name of a collection is {name!r}; pass a str")
    return name


def _dtype_name(dtype: DTypeLike) -> str:
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


def _id(value: Any) -> int | str | bytes:
    """Converts an id for the compiled half, which gets a UUID as its bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 2**64:
        return int(value)
    raise InputError(f"{value!r} is no id; pass a whole number from 0 to 2^64 - 1, a string, or a uuid.UUID")


def _ids(ids: Any) -> list[int | str | bytes]:
    if isinstance(ids, (str, bytes, uuid.UUID)) or not isinstance(ids, (Iterable, np.ndarray)):
        raise InputError(f"ids is {ids!r}; pass a list of ids, or an array of shape (n,)")
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise InputError(f"ids have shape {ids.shape}; pass an array of shape (n,)")
    named = [_id(value) for value in ids]
    if not named:
        raise InputError("there is no id; pass one or more")
    return named


def _shown(value: int | str | bytes) -> Id:
    """An id as its user has it."""
    return uuid.UUID(bytes=value) if isinstance(value, bytes) else value


def _batches(ids: list[int | str | bytes], row_bytes: int) -> Iterable[tuple[int, int]]:
    """First and last row, exclusive, of each batch."""
    first, size = 0, 0
    for row, value in enumerate(ids):
        own = _POINT_BYTES + row_bytes + 2 * (4 * len(value) if isinstance(value, str) else 17)
        if row > first and size + own > _BATCH_BYTES:
            yield first, row
            first, size = row, 0
        size += own
    yield first, len(ids)


def _partly(error: Error, done: int, count: int) -> ChangeError:
    """The error of a call whose first `done` points are durable."""
    return ChangeError(f"{error}; the first {done} of {count} are durable", list(range(done)))
