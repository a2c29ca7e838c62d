"""Results of searches, and ground truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import Path, fixed, is_path
from ._build import Neighbors
from ._errors import InputError


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Results of a batch of queries, closest first.

    The fields have names and cannot be unpacked as a pair: hnswlib returns (labels, distances), faiss
    (distances, labels), and code that unpacks the wrong order still runs.
    """

    #: Ids, shape (nq, k), uint64. Each number is a possible id: those past the count of a query mean nothing.
    ids: NDArray[np.uint64]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine.
    #: Infinite past the count of a query.
    distances: NDArray[np.float32]
    #: Microseconds from the start of each query to its answer, shape (nq,), float64.
    latency_us: NDArray[np.float64]
    #: `stats`, or the engine's figures that it is made from.
    _stats: Any = field(repr=False)
    #: Results of each query, shape (nq,), uint32: k, or fewer.
    counts: NDArray[np.uint32]

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
