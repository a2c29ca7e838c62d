"""Collections: points that change."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._arrays import as_bytes, byte_size, real, whole
from ._errors import InputError
from ._found import FoundPoints, found_of
from ._inputs import Payload, Payloads, Vectors
from ._jobs import Job
from ._named import NamedVectors, VectorSpec, given_by_name, row_bytes, rows_of, spec_of
from ._payloads import (
    PointFilter,
    Schema,
    chosen_of,
    filter_of,
    keys_of,
    loaded,
    path_of,
    payload_of,
    payloads_of,
    schema_of,
)
from ._points import (
    Count,
    Deleted,
    Id,
    Ids,
    Page,
    PayloadChanged,
    Point,
    Upserted,
    VectorsChanged,
    batches,
    id_of,
    ids_of,
    in_parts,
    shown,
)
from ._progress import Progress, listening
from ._remote import ReplyTooLongError


class _Kept(enum.Enum):
    """The value of a limit that stays as it is."""

    KEPT = "as it is"


#: Bytes of the queries of one call of the compiled half.
_QUERY_BYTES = 4 << 20
#: Points of one change of payloads, whose size is not known before they are read.
_CHANGED_AT_ONCE = 1024


class Collection:
    """A collection of a client, for any number of threads. Created by `Client.create_collection` and
    `Client.collection`.

    Ids are ints from 0 to 2^64 - 1, strings of 1 to 255 bytes, and UUIDs. A string that is a UUID in its canonical form
    is that UUID, and is returned as a `uuid.UUID`.
    """

    def __init__(self, folder: Any, name: str, specs: list[tuple[str, int, str, str, str]], threads: int) -> None:
        self._folder = folder
        self._name = name
        self._threads = threads
        self._specs = {own: VectorSpec(*spec) for own, *spec in specs}

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def vectors(self) -> dict[str, VectorSpec]:
        """What the vectors of each name are: ``dim``, ``metric``, ``dtype`` and ``kind``. Without names there is one,
        of the name ``""``."""
        return dict(self._specs)

    @property
    def dim(self) -> int:
        """Components of a vector, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._spec(None).dim

    @property
    def metric(self) -> str:
        """``"l2"``, ``"ip"`` or ``"cosine"``, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._spec(None).metric

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a component, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._spec(None).numpy_dtype

    @property
    def kind(self) -> str:
        """Kind of index of its larger parts, or ``"auto"``, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._spec(None).kind

    def upsert(
        self,
        ids: Ids,
        vectors: Vectors | NamedVectors,
        payload: Payloads | None = None,
        *,
        if_absent: bool = False,
        if_unchanged_since: int | None = None,
    ) -> Upserted:
        """Writes points, each in place of an earlier one of its id, its payload included.

        Up to about 4 MiB are one change: all of it or none is written. More are written as several changes, one after
        another. Of several points of an id the last one counts; with a condition that of the first change that has one.

        Args:
            ids: n ids: ints, strings or `uuid.UUID`, an array of whole numbers of shape (n,), or a column of pyarrow,
                pandas or polars.
            vectors: shape (n, d), of the dtype of the collection; float32, float64 and lists are converted to it, and
                so is a column of lists of pyarrow, pandas or polars, or a table of numbers of the last two. Where
                vectors have names, a dict with such vectors for each name: a list may have None for a point without a
                vector of the name, a NumPy masked array masks its row, and a name that is None or left out is of no
                point.
            payload: n dicts of what JSON has, each up to 1 MiB as JSON and 100 levels, or None for a point without one;
                None for none at all; or a table with n rows, whose missing values are null. A dict without fields is
                none. Whole numbers of more than 64 bits become floats.
            if_absent: whether to write only points of ids that have none; others are left, and are in ``skipped``.
            if_unchanged_since: the number of a change, such as ``seq`` of a `Point`, a search or an upsert: points that
                a later change wrote are left, and are in ``skipped``.

        Raises:
            InputError: both conditions; NaN or infinity, a zero vector under cosine, another shape, an unknown name, an
                id that is none,
                a payload that is no dict or has what JSON has not, another number of payloads.
            BusyError: there is no room, or the quota is used up; nothing was written.
            CorruptIndexError: the data folder is read-only; see `Client.read_only`.
            UnknownOutcomeError: writing failed midway.
            ChangeError: some changes of a large call are made, and a later one is not; the error before it says why.
            MissingError: the collection was dropped.
            DiskError: the disk is full; nothing was written. Deletes are still possible.
        """
        named, given = given_by_name(ids, vectors, self._spec)
        payloads = payloads_of(payload, len(named))
        if if_absent and if_unchanged_since is not None:
            raise InputError("if_absent and if_unchanged_since are both given; pass one of them")
        only = (bool(if_absent), whole(if_unchanged_since, "if_unchanged_since", 0))
        skipped: list[Id] = []

        def write(first: int, end: int) -> tuple[int, ...]:
            some = None if payloads is None else payloads[first:end]
            own = [one.part(first, end) for one in given]
            *done, left = self._folder.upsert(self._name, named[first:end], own, some, only)
            skipped.extend(shown(one) for one in left)
            return tuple(done)

        parts = batches(named, row_bytes(given), payloads, bytes_max=self._batch_bytes_max)
        return Upserted(*in_parts(parts, len(named), write), skipped)

    def update_vectors(self, ids: Ids, vectors: Vectors | NamedVectors) -> VectorsChanged:
        """Changes vectors of points that are there; vectors of other names and payloads stay.

        Each point is written again as a whole. Up to about 4 MiB of new vectors are one change: all of it or none is
        written. More are written as several changes, one after another.

        Args:
            ids: n ids, as in `upsert`.
            vectors: as in `upsert`. A name whose vectors are None loses its vector in all of these points, and an entry
                that is None in its point; names that are left out stay as they are.

        Raises:
            InputError: an id without a point, and as in `upsert`.
            BusyError, CorruptIndexError, UnknownOutcomeError, ChangeError, MissingError, DiskError: as in `upsert`.
                Changes before an error stay.
        """
        named, given = given_by_name(ids, vectors, self._spec)
        if not given:
            raise InputError("vectors has no name; pass one or more")

        def write(first: int, end: int) -> tuple[int, ...]:
            own = [one.part(first, end) for one in given]
            seq, changed = self._folder.update_vectors(self._name, named[first:end], own)
            return seq, changed, 0, 0

        parts = batches(named, row_bytes(given), most=_CHANGED_AT_ONCE, bytes_max=self._batch_bytes_max)
        seq, changed = in_parts(parts, len(named), write)[:2]
        return VectorsChanged(seq, changed)

    def delete(
        self, ids: Ids | None = None, *, filter: PointFilter | None = None, indexed_only: bool = False
    ) -> Deleted:
        """Deletes points: those of ids, or those that match a filter. Ids without a point are counted.

        A filter deletes the points that match now, up to 4,096 in one change. A point that others change meanwhile
        stays, and is counted.

        Args:
            ids: n ids, as in `upsert`.
            filter: as in `search`, in place of ids; ``{}`` matches all points.
            indexed_only: as in `search`.

        Raises:
            InputError: neither ids nor a filter, or both; and as in `upsert` and `search`.
            MissingError, UnknownOutcomeError, ChangeError: as in `upsert`. Changes before an error stay.
        """
        named, matching = chosen_of(ids, filter, indexed_only)
        if named is None:
            seq, deleted, changed, unindexed = self._folder.delete_matching(self._name, matching)
            return Deleted(seq, deleted, 0, changed, list(unindexed))

        def remove(first: int, end: int) -> tuple[int, ...]:
            done: tuple[int, ...] = self._folder.delete(self._name, named[first:end])
            return done

        parts = batches(named, 0, bytes_max=self._batch_bytes_max)
        seq, gone, unknown = in_parts(parts, len(named), remove)[:3]
        return Deleted(seq, gone, unknown)

    def search(
        self,
        vectors: Vectors,
        k: int = 10,
        recall: float = 0.95,
        *,
        vector_name: str | None = None,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
        with_payload: bool = False,
        with_vectors: bool = False,
    ) -> FoundPoints:
        """Finds the `k` nearest points of each query, or of those that match a filter.

        Args:
            vectors: queries, shape (nq, d), or (d,) for one query; converted as in `upsert`. Up to about 4 MiB see one
                state of the collection, and of a server as many as it takes in one request.
            k: results of each query, 1 to 16384.
            recall: share of the true k nearest that is asked for, above 0 and up to 1.
            vector_name: name of the vectors that are searched, where they have names. Points without one are no
                results.
            filter: a dict in Qdrant's form, such as ``{"must": [{"key": "color", "match": {"value": "red"}}]}``, or
                text, such as ``"color = 'red' and price < 50"``, or one of `stratann.filters`; None for all points.
            indexed_only: whether to refuse a filter with conditions that no index answers. Otherwise payloads are read
                for these, and ``unindexed`` names them.
            with_payload: whether to return the payloads of the results, as the search saw them; up to 64 MiB.
            with_vectors: whether to return the vectors of the results, those that are searched.

        Raises:
            InputError: NaN, another shape, an unknown `vector_name`, `k` or `recall` out of range; a filter that is
                wrong, with the place, or with `indexed_only` one that lacks an index, with the fields.
            MissingError: the collection was dropped.
            BusyError: there is no memory to open the collection.
        """
        spec = self._spec(vector_name)
        rows = rows_of(vectors, "vectors", spec, one=True)
        count, share = whole(k, "k", 1) or 1, real(recall, "recall")
        matching, wanted = filter_of(filter, indexed_only), (bool(with_payload), bool(with_vectors))
        parts = []
        each = max(1, min(_QUERY_BYTES // (rows.shape[1] * rows.itemsize), self._queries_max))
        first = 0
        while first < len(rows):
            some = as_bytes(rows[first : first + each])
            how = (count, 0.95 if share is None else share, self._threads, vector_name)
            try:
                parts.append(self._folder.search(self._name, some, how, matching, wanted))
            except ReplyTooLongError:
                # A server has a limit of the memory of an answer.
                if each == 1:
                    raise
                each = (min(each, len(rows) - first) + 1) // 2
                continue
            first += each
        return found_of(parts, count, (spec.metric, spec.numpy_dtype))

    def get(self, ids: Ids) -> list[Point | None]:
        """Returns the point of each id with its vector and its payload, or None where there is none.

        Args:
            ids: up to 16384 ids, as in `upsert`, whose vectors have at most 8 MiB, and their payloads 64 MiB.

        Raises:
            InputError: more, or an id that is none.
        """
        points = self._folder.get(self._name, ids_of(ids))
        return [None if point is None else self._point(point) for point in points]

    def count(self, *, filter: PointFilter | None = None, indexed_only: bool = False, exact: bool = True) -> Count:
        """Returns the number of points, or of those that match a filter. It is an int; its attribute ``unindexed`` has
        the conditions for which payloads were read, and ``least`` and ``most`` say between which numbers it is.

        Args:
            filter: as in `search`.
            indexed_only: as in `search`.
            exact: False for an estimate: where no index decides, at most 256 payloads of each part are read.

        Raises:
            InputError: a filter that is wrong, with the place, or that `indexed_only` refuses.
        """
        return Count.of(*self._folder.count(self._name, filter_of(filter, indexed_only), exact))

    def scroll(
        self,
        after: Id | None = None,
        limit: int = 1000,
        *,
        order_by: str | None = None,
        descending: bool = False,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
    ) -> Page:
        """Returns points in the order of their ids: numbers, then UUIDs, then strings; or in the order of a field.

        Points with a value in the field come once each: at their least value, or descending at their greatest. Those
        with equal values are in the order of their ids. Pages follow one another also while the collection changes.

        Args:
            after: where the page begins: ``next`` of the page before, or without `order_by` any id; None for the first
                page.
            limit: most points, 1 to 16384. A page has at most about 8 MiB of vectors and payloads.
            order_by: the path of a field with a ``"float"``, ``"integer"`` or ``"datetime"`` index.
            descending: whether the greatest values come first.
            filter: as in `search`: only points that match.
            indexed_only: as in `search`.

        Raises:
            InputError: `limit` out of range, an id that is none, a filter that is wrong, with the place, or that
                `indexed_only` refuses; a field without an index that keeps an order, or whose index is not made yet;
                `after` of another order.
        """
        most, matching = whole(limit, "limit", 1) or 1, filter_of(filter, indexed_only)
        if order_by is None:
            if descending:
                raise InputError("descending has no use without order_by; pass the field that points are ordered by")
            behind = None if after is None else id_of(after)
            points, following, *rest = self._folder.scroll(self._name, behind, most, matching)
            following = None if following is None else shown(following)
        else:
            if after is not None and not isinstance(after, str):
                raise InputError(f"after is {after!r}; pass the next of the page before, or None for the first page")
            order, place = (path_of(order_by, "order_by"), bool(descending)), None if after is None else str(after)
            points, following, *rest = self._folder.scroll_ordered(self._name, order, place, most, matching)
        return Page([self._point(point) for point in points], following, rest[0], list(rest[1]))

    def set_payload(
        self,
        payload: Payload,
        ids: Ids | None = None,
        *,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
        key: str | None = None,
    ) -> PayloadChanged:
        """Sets fields of payloads; other fields stay.

        Up to 1,024 ids with about 4 MiB of vectors and new fields are one change, and so are up to 1,024 points that
        match a filter. More are several changes, one after another.

        Args:
            payload: the fields, a dict as in `upsert`.
            ids: n ids, as in `upsert`.
            filter: as in `search`, in place of ids; ``{}`` matches all points.
            indexed_only: as in `search`.
            key: the path of the object whose fields are set, such as ``"a.b"`` or ``"a[].b"``; None for the payload
                itself.

        Raises:
            InputError: a payload that is none or would be beyond its limits, neither ids nor a filter, or both, a path
                that is none.
            BusyError, CorruptIndexError, UnknownOutcomeError, ChangeError, MissingError, DiskError: as in `upsert`.
                Changes before an error stay.
        """
        paths = [] if key is None else [path_of(key, "key")]
        return self._change_payload(("set", payload_of(payload), paths), chosen_of(ids, filter, indexed_only))

    def overwrite_payload(
        self,
        payload: Payload,
        ids: Ids | None = None,
        *,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
    ) -> PayloadChanged:
        """Puts a payload in place of those of points.

        Args:
            payload: a dict as in `upsert`.
            ids: n ids, as in `upsert`.
            filter: as in `search`, in place of ids; ``{}`` matches all points.
            indexed_only: as in `search`.

        Raises:
            InputError, BusyError, CorruptIndexError, UnknownOutcomeError, ChangeError, MissingError, DiskError: as in
                `set_payload`.
        """
        return self._change_payload(("overwrite", payload_of(payload), []), chosen_of(ids, filter, indexed_only))

    def delete_payload_keys(
        self,
        keys: Sequence[str],
        ids: Ids | None = None,
        *,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
    ) -> PayloadChanged:
        """Removes fields of payloads.

        Args:
            keys: paths of fields, such as ``["color", "a.b"]``.
            ids: n ids, as in `upsert`.
            filter: as in `search`, in place of ids; ``{}`` matches all points.
            indexed_only: as in `search`.

        Raises:
            InputError, BusyError, CorruptIndexError, UnknownOutcomeError, ChangeError, MissingError, DiskError: as in
                `set_payload`.
        """
        return self._change_payload(("delete_keys", None, keys_of(keys)), chosen_of(ids, filter, indexed_only))

    def clear_payload(
        self, ids: Ids | None = None, *, filter: PointFilter | None = None, indexed_only: bool = False
    ) -> PayloadChanged:
        """Removes payloads; points and vectors stay.

        Args:
            ids: n ids, as in `upsert`.
            filter: as in `search`, in place of ids; ``{}`` matches all points.
            indexed_only: as in `search`.

        Raises:
            InputError, BusyError, CorruptIndexError, UnknownOutcomeError, ChangeError, MissingError, DiskError: as in
                `set_payload`.
        """
        return self._change_payload(("clear", None, []), chosen_of(ids, filter, indexed_only))

    def set_schema(self, schema: Schema) -> None:
        """Sets which fields of payloads are indexed, and no others.

        Parts that are made from now on have these indexes; `compact` makes them for all points. Conditions of a filter
        on other fields read payloads; `FoundPoints.unindexed` names them.

        Args:
            schema: for the path of each field a kind of index or a list of kinds: ``"keyword"``, ``"integer"``,
                ``"float"``, ``"bool"``, ``"datetime"``, ``"uuid"``, ``"text"``. Up to 1,000 fields; ``{}`` for none.

        Raises:
            InputError: a path or a kind that is none, or too many fields.
            MissingError: the collection was dropped.
            UnknownOutcomeError: writing failed midway; `schema` tells.
        """
        self._folder.set_schema(self._name, schema_of(schema))

    def schema(self) -> dict[str, list[str]]:
        """Returns the kinds of indexes of each field of payloads that is indexed.

        Raises:
            MissingError: the collection was dropped.
        """
        fields: dict[str, list[str]] = json.loads(self._folder.schema(self._name))
        return fields

    def compact(self, progress: Progress = None) -> None:
        """Makes one segment of all points, which searches read at the least cost. An interruption leaves the collection
        as it was; a server goes on.

        Args:
            progress: as in `build`.

        Raises:
            DiskError, BudgetError, CorruptIndexError: a full disk, memory, damage.
        """
        with listening(progress) as on_progress:
            self._folder.compact(self._name, on_progress)

    def compact_later(self) -> Job:
        """Has the same done in the background. Of several compactions that wait one is done.

        Returns:
            A handle: ``job.wait()`` waits for the end, ``job.progress`` says how far it is.

        Raises:
            CorruptIndexError: the data folder is read-only.
            MissingError: the collection was dropped.
        """
        self._folder.compact_later(self._name)
        return Job(self._folder, self._name, "compact")

    def jobs(self) -> list[str]:
        """Returns the kinds of jobs that wait or run: ``"checkpoint"``, ``"minor_merge"``, ``"merge"``.

        Raises:
            MissingError: the collection was dropped.
        """
        return list(self.info()["jobs"])

    def set_limits(
        self,
        *,
        memory_quota: int | str | _Kept | None = _Kept.KEPT,
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
        """Returns what the collection is made of: ``name``, ``dim``, ``metric``, ``dtype``, ``kind`` or these
        by name in ``vectors``, ``points``, ``seq``, ``delta_points``, ``delta_bytes``, ``segments``,
        ``indexes_built``, ``payloads_folded`` and ``rows_taken_over`` (whose neighbours in a graph are those of
        an older one): what checkpoints and merges have made since the folder was opened, ``trouble``: why the
        last one failed, or None, ``trouble_code``, ``jobs``: kinds of jobs that wait or run, ``progress`` of
        those that run, ``schema``: that of `schema`, ``memory_bytes``, ``memory_quota_bytes`` and
        ``memory_minimum_bytes``."""
        described: dict[str, Any] = json.loads(self._folder.info(self._name))
        return described

    @property
    def _batch_bytes_max(self) -> int | None:
        most: int | None = getattr(self._folder, "batch_bytes_max", None)
        return most

    @property
    def _queries_max(self) -> int:
        most: int = getattr(self._folder, "queries_max", 1 << 30)
        return most

    def _spec(self, name: str | None) -> VectorSpec:
        """What the vectors of a name are; without one those that have none."""
        return spec_of(self._specs, name)

    def _change_payload(
        self, update: tuple[str, bytes | None, list[str]], chosen: tuple[list[int | str | bytes] | None, Any]
    ) -> PayloadChanged:
        named, matching = chosen
        if named is None:
            return PayloadChanged(*self._folder.change_payload(self._name, matching, update))
        own_bytes = sum(own.dim * own.numpy_dtype.itemsize for own in self._specs.values())
        own_bytes += len(update[1] or b"")

        def change(first: int, end: int) -> tuple[int, ...]:
            done: tuple[int, ...] = self._folder.change_payload(self._name, named[first:end], update)
            return done

        parts = batches(named, own_bytes, most=_CHANGED_AT_ONCE, bytes_max=self._batch_bytes_max)
        return PayloadChanged(*in_parts(parts, len(named), change))

    def _point(self, point: tuple[int | str | bytes, int, Any, bytes | Payload | None]) -> Point:
        id_, seq, own, payload = point
        if not isinstance(own, dict):
            return Point(shown(id_), own.view(self.dtype), seq, loaded(payload))
        vectors = {name: one.view(self._specs[name].numpy_dtype) for name, one in own.items()}
        return Point(shown(id_), None, seq, loaded(payload), vectors)

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        each = [f"{name} {own.dim} x {own.dtype}, {own.metric}".strip() for name, own in self._specs.items()]
        return f"<stratann.Collection {self._name!r}: {'; '.join(each)}>"
