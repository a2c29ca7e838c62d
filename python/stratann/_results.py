"""Results of searches, and ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import Path, fixed, is_path
from ._build import Neighbors
from ._errors import InputError
from ._inputs import Payload
from ._payloads import loaded
from ._points import shown


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Results of a batch of queries, closest first.

    The fields have names and cannot be unpacked as a pair: hnswlib returns (labels, distances), faiss
    (distances, labels), and code that unpacks the wrong order still runs.
    """

    #: Ids, shape (nq, k), uint64. Each number is a possible id: those past the count of a query mean nothing. Of an
    #: index with ids that are strings or UUIDs an array of objects: int, str and uuid.UUID, None past the count.
    ids: NDArray[Any]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine.
    #: Infinite past the count of a query.
    distances: NDArray[np.float32]
    #: Microseconds from the start of each query to its answer, shape (nq,), float64.
    latency_us: NDArray[np.float64]
    #: `stats`, or the engine's figures that it is made from.
    _stats: Any = field(repr=False)
    #: Results of each query, shape (nq,), uint32: k, or fewer.
    counts: NDArray[np.uint32]
    #: For each query the payloads of its results: a dict, or None for a row without. None without ``with_payload``.
    payloads: list[list[Payload | None]] | None = None
    #: Conditions of the filter for which payloads were read, for want of an index: the field, and what to do.
    unindexed: Sequence[str] = ()

    @property
    def stats(self) -> dict[str, Any]:
        """Cost of the search, made when it is first asked for.

        ``queries``, ``seconds``, ``qps``, ``latency_us`` (mean, p50, p95, p99), ``stage_us`` (its mean by route, access
        and verify), ``cpu_us`` per query, ``threads``, ``params``, counters ``per_query`` (means) and in ``totals``,
        ``io_backend``, ``memory`` by component in bytes. ``reads``, ``pages_read`` and ``bytes_read`` do not include
        cache hits. For a hybrid-ivf, ``clusters`` counts visited inverted lists.
        """
        if not isinstance(self._stats, dict):
            object.__setattr__(self, "_stats", self._stats.as_dict())
        return self._stats  # type: ignore[no-any-return]


def result_of(answers: dict[str, Any]) -> SearchResult:
    columns = answers["k"]
    return SearchResult(
        answers["ids"].reshape(-1, columns),
        answers["distances"].reshape(-1, columns),
        answers["latency_us"],
        answers["stats"],
        answers["counts"],
    )


def points_of(answers: dict[str, Any], points: tuple[Any, Any, list[str]]) -> SearchResult:
    """Results of an index with ids of any form, or with payloads."""
    plain = result_of(answers)
    ids, payloads, unindexed = points
    own, counts = plain.ids, plain.counts.tolist()
    if ids is not None:
        own = np.full(plain.ids.shape, None, object)
        for query, of_query in enumerate(_divided(ids, counts)):
            for rank, one in enumerate(of_query):
                own[query, rank] = shown(one)
    if payloads is not None:
        payloads = [[loaded(one) for one in of_query] for of_query in _divided(payloads, counts)]
    return replace(plain, ids=own, payloads=payloads, unindexed=unindexed)


def _divided(values: list[Any], counts: list[int]) -> list[list[Any]]:
    """Divides values of all results by their queries."""
    ends = np.cumsum([0, *counts]).tolist()
    return [values[first:end] for first, end in zip(ends, ends[1:])]


def truth_of(truth: Neighbors | ArrayLike | Path) -> Any:
    """Converts ground truth for the engine: a path, or k, ids and distances."""
    if is_path(truth):
        return fixed(truth)  # type: ignore[arg-type]
    given = truth.distances if isinstance(truth, Neighbors) else np.empty(0)
    ids = np.asarray(truth.ids if isinstance(truth, Neighbors) else truth)
    if ids.ndim != 2 or ids.dtype.kind not in "ui" or ids.shape[1] == 0:
        raise InputError(f"truth has shape {ids.shape} and dtype {ids.dtype}; pass ids of shape (queries, k)")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > 0xFFFFFFFF):
        raise InputError("truth has ids below 0 or above 4294967295; ground truth has ids of 32 bits")
    narrow = np.ascontiguousarray(ids, dtype=np.uint32).reshape(-1)
    return ids.shape[1], narrow, np.ascontiguousarray(given, dtype=np.float32).reshape(-1)
