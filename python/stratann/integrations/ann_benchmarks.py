"""For ann-benchmarks (https://github.com/erikbern/ann-benchmarks): the class that its `module.py` names."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import stratann

from ._process import resident_kb

if TYPE_CHECKING:
    BaseANN = object
else:
    try:
        from ann_benchmarks.algorithms.base.module import BaseANN
    except ImportError:
        BaseANN = object

_METRICS = {"euclidean": "l2", "angular": "cosine"}


class Stratann(BaseANN):
    """`method_param` holds arguments of `stratann.build`, and ``cache_budget`` of `stratann.open`."""

    def __init__(self, metric: str, method_param: dict[str, Any]) -> None:
        if metric not in _METRICS:
            raise NotImplementedError(
                f"stratann has no metric {metric!r}; {', '.join(_METRICS)} are possible"
            )
        self._metric = _METRICS[metric]
        self._build_options = dict(method_param)
        self._cache_budget = self._build_options.pop("cache_budget", 0)
        self._search_options: dict[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._index: stratann.Index | None = None
        self._last: stratann.SearchResult | None = None
        self.name = f"stratann({method_param})"

    def fit(self, X: NDArray[Any]) -> None:
        self.done()
        self._folder = tempfile.TemporaryDirectory(prefix="stratann-")
        # Some sets have zero vectors, which have no angle.
        rows = np.ascontiguousarray(X, dtype=np.float32)
        options = {"kind": "disk-graph", "ram_budget": None, "on_bad_row": "skip", **self._build_options}
        stratann.build(rows, self._folder.name + "/index", metric=self._metric, **options)
        self._index = stratann.open(self._folder.name + "/index", cache_budget=self._cache_budget)

    def set_query_arguments(self, search_list: int) -> None:
        self._search_options = {"search_list": search_list}
        self.name = f"stratann({self._build_options}, search_list={search_list})"

    def query(self, q: NDArray[Any], n: int) -> NDArray[np.uint64]:
        ids: NDArray[np.uint64] = self._search(q, n, threads=1).ids[0]
        return ids

    def batch_query(self, X: NDArray[Any], n: int) -> None:
        self._search(X, n, threads=None)

    def get_batch_results(self) -> NDArray[np.uint64]:
        return self._answers().ids

    def get_batch_latencies(self) -> NDArray[np.float64]:
        """Seconds from the start of each query to its answer."""
        return self._answers().latency_us / 1e6

    def get_additional(self) -> dict[str, Any]:
        return {} if self._last is None else dict(self._last.stats["per_query"])

    def get_memory_usage(self) -> float | None:
        return resident_kb()

    def done(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __str__(self) -> str:
        return self.name

    def _search(self, queries: NDArray[Any], n: int, threads: int | None) -> stratann.SearchResult:
        if self._index is None:
            raise RuntimeError("call fit first")
        rows = np.asarray(queries, dtype=np.float32)
        self._last = self._index.search(rows, n, threads=threads, **self._search_options)
        return self._last

    def _answers(self) -> stratann.SearchResult:
        if self._last is None:
            raise RuntimeError("call batch_query first")
        return self._last
