"""For big-ann-benchmarks (https://github.com/harsha-simhadri/big-ann-benchmarks).

The class that its `config.yaml` names.
"""

from __future__ import annotations

import glob
import os
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
        from benchmark.algorithms.base import BaseANN
    except ImportError:
        BaseANN = object

_METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
_SUFFIXES = {"float32": "fbin", "uint8": "u8bin", "int8": "i8bin"}


class Stratann(BaseANN):
    """`index_params` are arguments of `stratann.build`, and ``cache_budget`` of `stratann.open`; query
    arguments are `search`'s.
    """

    def __init__(self, metric: str, index_params: dict[str, Any]) -> None:
        if metric not in _METRICS:
            raise NotImplementedError(
                f"stratann has no metric {metric!r}; {', '.join(_METRICS)} are possible"
            )
        self._metric = _METRICS[metric]
        self._build_options = dict(index_params)
        self._cache_budget = self._build_options.pop("cache_budget", 0)
        self._search_options: dict[str, Any] = {}
        self._index: stratann.Index | None = None
        self._last: stratann.SearchResult | None = None
        options = sorted(self._build_options.items())
        self._build_name = "_".join(["stratann", metric, *(f"{key}-{value}" for key, value in options)])
        self.name = self._build_name

    def track(self) -> str:
        """T2: codes in RAM, vectors on SSD."""
        return "T2"

    def fit(self, dataset: str) -> None:
        data = _dataset(dataset)
        folder = self._folder(data)
        options = {"kind": "disk-graph", "ram_budget": None, "on_bad_row": "skip", **self._build_options}
        with tempfile.TemporaryDirectory(prefix="stratann-") as links:
            # The suffix gives the format; a part of a set has a longer name behind the suffix.
            base = os.path.join(links, "base." + _SUFFIXES[np.dtype(data.dtype).name])
            os.symlink(os.path.abspath(data.get_dataset_fn()), base)
            stratann.build(base, folder, metric=self._metric, force=True, **options)
        self._open(folder)

    def load_index(self, dataset: str) -> bool:
        folder = self._folder(_dataset(dataset))
        if not glob.glob(os.path.join(glob.escape(folder), "manifest-*.json")):
            return False
        self._open(folder)
        return True

    def index_files_to_store(self, dataset: str) -> tuple[str, str, list[str]]:
        folder = self._folder(_dataset(dataset))
        names = sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
        return folder, "", names

    def set_query_arguments(self, query_args: dict[str, Any]) -> None:
        self._search_options = dict(query_args)
        self.name = f"{self._build_name}_{query_args}"

    def query(self, X: NDArray[Any], k: int) -> None:
        if self._index is None:
            raise RuntimeError("call fit or load_index first")
        rows = np.asarray(X, dtype=self._index.dtype)
        self._last = self._index.search(rows, k, **self._search_options)

    def range_query(self, X: NDArray[Any], radius: float) -> None:
        raise NotImplementedError("stratann finds the k nearest; it has no range search")

    def get_results(self) -> NDArray[np.uint64]:
        if self._last is None:
            raise RuntimeError("call query first")
        return self._last.ids

    def get_range_results(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        raise NotImplementedError("stratann finds the k nearest; it has no range search")

    def get_additional(self) -> dict[str, Any]:
        if self._last is None:
            return {}
        counters = self._last.stats["per_query"]
        latency_us = self._last.stats["latency_us"]
        return {
            "dist_comps": counters["full_comparisons"] + counters["code_comparisons"],
            "mean_ssd_ios": counters["reads"],
            "mean_latency": latency_us["mean"],
        }

    def get_memory_usage(self) -> float | None:
        return resident_kb()

    def done(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def __str__(self) -> str:
        return self.name

    def _folder(self, data: Any) -> str:
        return os.path.join("data", "indices", self.track(), self._build_name, data.short_name())

    def _open(self, folder: str) -> None:
        self.done()
        self._index = stratann.open(folder, cache_budget=self._cache_budget)


def _dataset(name: str) -> Any:
    """The benchmark's own description of a set: its file, element type and short name."""
    from benchmark.datasets import DATASETS

    return DATASETS[name]()
