"""An open index, and what a search gives."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import DTYPES, Path, as_bytes, byte_size, dtype_name, rows_of
from ._errors import InputError, QueryError
from ._progress import Progress, listening


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Answers to a batch of queries, closest first.

    By name only, never as a pair: hnswlib gives (labels, distances), faiss (distances, labels), and code that
    unpacks the wrong one still runs.
    """

    #: Ids, shape (nq, k), uint64.
    ids: NDArray[np.uint64]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine.
    distances: NDArray[np.float32]
    #: Microseconds from the start of each query to its answer, shape (nq,), float64.
    latency_us: NDArray[np.float64]
    #: What it cost: ``queries``, ``seconds``, ``qps``, ``latency_us`` (mean, p50, p95, p99), ``stage_us`` (its mean as
    #: route, access and verify), ``cpu_us`` per query, ``threads``, ``params``, counters ``per_query`` (means) and in
    #: ``totals``, ``io_backend``, ``memory`` by component in bytes. Of a hybrid-ivf the counters ``clusters``,
    #: ``fruitful_clusters``, ``lists``, ``pruned``, ``pinned_hits`` and ``result_clusters`` say most.
    stats: dict[str, Any]


class Index:
    """An index that is open for search, from any number of threads at once. Made by `open`."""

    def __init__(
        self,
        path: Path,
        ram_budget: int | str | None = None,
        cache_budget: int | str = 0,
        *,
        head_budget: int | str | None = None,
        learning: str = "on",
        epoch_queries: int = 2000,
    ) -> None:
        self._path = os.fspath(path)
        how = {
            "ram_budget": byte_size(ram_budget, "ram_budget"),
            "cache_budget": byte_size(cache_budget, "cache_budget") or 0,
            "head_budget": byte_size(head_budget, "head_budget"),
            "learning": learning,
            "epoch_queries": epoch_queries,
        }
        self._index = _stratann.Index(self._path, how)
        for warning in self._index.warnings():
            warnings.warn(warning, stacklevel=3)

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return self._index.rows

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self._index.dim

    @property
    def metric(self) -> str:
        """``"l2"``, ``"ip"`` or ``"cosine"``."""
        return self._index.metric

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a component; queries must have it."""
        return DTYPES[self._index.dtype]

    @property
    def kind(self) -> str:
        """``"disk-graph"``, ``"hybrid-ivf"`` or ``"flat"``."""
        return self._index.kind

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._index.closed

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        recall: float | None = None,
        *,
        search_list: int | None = None,
        nprobe: int | None = None,
        early_stop: float | None = None,
        stop_slack: float | None = None,
        threads: int | None = None,
        mode: str = "barrier",
        width: int | None = None,
        in_flight: int | None = None,
        io: str = "auto",
        progress: Progress = None,
    ) -> SearchResult:
        """Finds the `k` nearest vectors of each query.

        The GIL is released. C-contiguous queries are used without a copy.

        Args:
            queries: shape (nq, d), or (d,) for one query, of the index' dtype. One query gives results of
                shape (1, k).
            k: results per query. With fewer rows than that, there are as many columns as rows, and a warning
                says so.
            recall: mean recall@k wanted, from the curve that the build measured; 0.95 unless `search_list`
                or `nprobe` is given.
            search_list: beam length instead of a recall, on a disk-graph.
            nprobe: clusters visited at most instead of a recall, on a hybrid-ivf.
            early_stop: with `nprobe`: stop after this share of the clusters, one after another, brought
                nothing; None for never.
            stop_slack: with `search_list`: stop once candidates are farther than the k-th result by so many
                standard errors of their code distance. With `nprobe`: discard a vector that lies beyond the
                k-th result by so many; None for only when it is certain to.
            threads: None for one per core, at most one per query.
            mode: ``"barrier"`` (the same answers whatever arrives first) or ``"eager"`` (lower latency).
            width: reads in one round; None picks by load.
            in_flight: queries under way in each thread; None picks.
            io: ``"auto"``, ``"io_uring"`` or ``"pread"``.
            progress: as in `build`.

        Raises:
            InputError: wrong dimension, dtype or argument, NaN in a query, or a recall that the curve does
                not reach.
            BudgetError: the index' `ram_budget` does not allow this search.
            CorruptIndexError: a damaged file.
            QueryError: some queries failed; it holds the reasons and the answers of the others.

        >>> import numpy as np, os, stratann, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> base = np.arange(40, dtype=np.float32).reshape(20, 2)
        >>> path = os.path.join(folder.name, "index")
        >>> report = stratann.build(base, path, kind="flat")
        >>> with stratann.open(path) as index:
        ...     r = index.search(base[3], k=2)
        >>> r.ids.shape, r.ids[0].tolist()[0], r.distances[0].tolist()[0]
        ((1, 2), 3, 0.0)
        >>> folder.cleanup()
        """
        rows = self._queries(queries)
        how = {
            "k": k,
            "recall": recall,
            "search_list": search_list,
            "nprobe": nprobe,
            "early_stop": early_stop,
            "stop_slack": stop_slack,
            "threads": threads,
            "mode": mode,
            "width": width,
            "in_flight": in_flight,
            "io": io,
        }
        with listening(progress) as on_progress:
            answers = self._index.search(as_bytes(rows), how, on_progress)
        columns = answers["k"]
        result = SearchResult(
            answers["ids"].reshape(-1, columns),
            answers["distances"].reshape(-1, columns),
            answers["latency_us"],
            answers["stats"],
        )
        if columns < k:
            warnings.warn(
                f"k is {k}, the index has {self.rows} rows: {columns} columns are returned", stacklevel=2
            )
        if answers["short"]:
            warnings.warn(
                f"{answers['short']} queries found fewer than {columns} results; {self._harder} finds more",
                stacklevel=2,
            )
        self._check_complete(result, answers["failed"])
        return result

    @property
    def _harder(self) -> str:
        return "a larger nprobe" if self.kind == "hybrid-ivf" else "a longer search_list"

    def _queries(self, queries: ArrayLike) -> NDArray[Any]:
        array = np.asarray(queries)
        name = dtype_name(array, "queries")
        if name != self._index.dtype:
            wanted = f"pass queries.astype(np.{self.dtype.name})"
            raise InputError(
                f"queries are {name} ({array.dtype}), the index holds {self._index.dtype}: {wanted}"
            )
        rows = rows_of(array[np.newaxis] if array.ndim == 1 else array, "queries", warn=False)
        if rows.shape[1] != self.dim:
            raise InputError(f"queries have {rows.shape[1]} dimensions, the index has {self.dim}")
        return rows

    @staticmethod
    def _check_complete(result: SearchResult, failed: Any) -> None:
        if failed:
            number, why = failed[0]
            message = f"{len(failed)} of {len(result.ids)} queries failed, the first is query {number}: {why}"
            raise QueryError(message, failed, result)
        short = np.count_nonzero(np.isposinf(result.distances[:, -1:]))
        if short:
            lack = "the places left over have distance infinity; search harder"
            warnings.warn(f"{short} queries found fewer results than asked for: {lack}", stacklevel=3)

    def info(self) -> dict[str, Any]:
        """What the index was built as: kind, metric, dtype, shape, parameters, files with checksums, recall
        curves, version.
        """
        version, manifest = self._index.manifest()
        return {**json.loads(manifest), "version": version, "path": self._path}

    def memory(self) -> dict[str, int]:
        """Bytes of RAM by component, and their ``total``; searches add what their ``stats["memory"]``
        says.
        """
        return self._index.memory()

    def close(self) -> None:
        """Gives memory and files back, once searches that still run have ended."""
        self._index.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        shape = f"{self.rows} rows of {self.dim} {self._index.dtype}"
        return f"<stratann.Index {self._path!r}: {self.kind}, {shape}, {self.metric}{state}>"


def open(
    path: Path,
    ram_budget: int | str | None = None,
    cache_budget: int | str = 0,
    *,
    head_budget: int | str | None = None,
    learning: str = "on",
    epoch_queries: int = 2000,
) -> Index:
    """Opens the index in the folder `path`.

    Args:
        path: what `build` was given.
        ram_budget: bytes that the open index and its searches may take, as int or text; None for no limit.
        cache_budget: of it, bytes for a cache of blocks; 0 for none.
        head_budget: of it, bytes for codes of a hybrid-ivf, which need not be read then; None for what is
            left of `ram_budget`.
        learning: whether a hybrid-ivf learns from its queries: ``"on"``, ``"frozen"`` (it uses what it learnt
            before, and learns no more) or ``"off"`` (it does neither). What it learns is kept in the folder.
        epoch_queries: queries after which it has learnt from them.

    Raises:
        InputError: no index there, one of a newer format, or a wrong argument.
        BudgetError: the index does not fit; the message names the budget that does.
        CorruptIndexError: a damaged or missing file.
    """
    return Index(
        path,
        ram_budget,
        cache_budget,
        head_budget=head_budget,
        learning=learning,
        epoch_queries=epoch_queries,
    )
