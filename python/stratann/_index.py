"""An open index and its search results."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import DTYPES, Path, as_bytes, byte_size, dtype_name, is_path, numbers, rows_of, whole
from ._build import Neighbors
from ._errors import InputError, QueryError
from ._progress import Progress, listening
from ._techniques import effort, gpu_techniques, grid_techniques


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Results of a batch of queries, closest first.

    The fields have names and cannot be unpacked as a pair: hnswlib returns (labels, distances), faiss
    (distances, labels), and code that unpacks the wrong order still runs.
    """

    #: Ids, shape (nq, k), uint64.
    ids: NDArray[np.uint64]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine.
    distances: NDArray[np.float32]
    #: Microseconds from the start of each query to its answer, shape (nq,), float64.
    latency_us: NDArray[np.float64]
    #: Cost of the search: ``queries``, ``seconds``, ``qps``, ``latency_us`` (mean, p50, p95, p99), ``stage_us``
    #: (its mean by route, access and verify), ``cpu_us`` per query, ``threads``, ``params``, counters
    #: ``per_query`` (means) and in ``totals``, ``io_backend``, ``memory`` by component in bytes. ``reads``,
    #: ``pages_read`` and ``bytes_read`` do not include cache hits. For a hybrid-ivf, ``clusters`` counts visited
    #: inverted lists.
    stats: dict[str, Any]


class Index:
    """An open index. Any number of threads may search it concurrently. Created by `open`."""

    def __init__(
        self,
        path: Path,
        ram_budget: int | str | None = None,
        cache_budget: int | str = "auto",
        *,
        preload: bool = False,
        head_budget: int | str | None = None,
        learning: str = "on",
        epoch_queries: int = 2000,
        scorer: str = "auto",
        device: int | None = None,
        gpu_budget: int | str | None = None,
        spill: bool = False,
        early_tables: bool = True,
        baselines: str = "none",
    ) -> None:
        self._path = os.fspath(path)
        self._how = {
            "ram_budget": byte_size(ram_budget, "ram_budget"),
            "cache_budget": None if cache_budget == "auto" else byte_size(cache_budget, "cache_budget") or 0,
            "preload": preload,
            "head_budget": byte_size(head_budget, "head_budget"),
            "learning": learning,
            "epoch_queries": epoch_queries,
            "scorer": scorer,
            "device": whole(device, "device"),
            "gpu_budget": byte_size(gpu_budget, "gpu_budget"),
            "spill": spill,
            "early_tables": early_tables,
            "baselines": baselines,
        }
        self._index = _stratann.Index(self._path, self._how)
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
        """``"disk-graph"``, ``"hybrid-ivf"``, ``"grid-ivf"``, ``"gpu-ivf"``, ``"remote-hnsw"`` or ``"flat"``."""
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
        prune_dimension: bool = True,
        prune_vector: bool = True,
        prewarm: bool = True,
        fan_out: int = 1,
        static_order: bool = False,
        balance: bool = True,
        pipeline: bool = True,
        baseline: str | None = None,
        rule: str | None = None,
        candidates: int | None = None,
        batch_size: int | None = None,
        epsilon_stop: float | None = None,
        beta: int | None = None,
        margin: float | None = None,
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
            queries: shape (nq, d), or (d,) for one query, of the dtype of the index; float64 and lists are
                converted. One query gives results of shape (1, k).
            k: results per query. With k above the number of rows there are fewer columns, and a warning.
            recall: target recall@k, by the curve that the build measured; 0.95 unless `search_list` or
                `nprobe` is given.
            search_list: beam length instead of a recall, on a disk-graph.
            nprobe: most inverted lists to visit, or clusters of a remote-hnsw, instead of a recall.
            early_stop: with `nprobe`: stop after this share of the lists, consecutively without a new result;
                None for never.
            stop_slack: with `search_list`: stop when the best candidate is this many standard errors of its
                code distance farther than the k-th result. With `nprobe`: prune vectors that are this many
                standard errors beyond the k-th result; None to prune by exact bounds only.
            prune_dimension: on a grid-ivf: drop vectors whose first components exceed the threshold. This and the
                next two switches are for comparisons; none changes an answer, and other kinds ignore them.
            prune_vector: on a grid-ivf: let the threshold fall from list to list.
            prewarm: on a grid-ivf: score some vectors first, for a first threshold.
            fan_out: rows of lists that a grid-ivf visits at a time, 1 to 64, where servers divide it.
            static_order: where servers divide a grid-ivf: visit slices in their order, whatever the load.
            balance: where servers divide a grid-ivf: let their loads count, also among replicas.
            pipeline: where servers divide a grid-ivf: visit the slices of a row one after another, not all at once.
            baseline: on a gpu-ivf: search as another system does, or without some techniques: ``"spann"``,
                ``"hi+pq"``, ``"hi+gpu"``, ``"hi+pq+gpu"``, ``"rummy-like"``, ``"mi-cpu"``, ``"mi-gpu"``,
                ``"static-n"``, ``"no-dedup"`` or ``"no-layout"``. Some need files that `build` writes with
                ``baselines=True`` and `open` reads with its own ``baselines``.
            rule: on a gpu-ivf: what ends re-ranking; by default what costs less. ``"margin"``: the code distance of the
                next candidate; ``"changes"``: mini-batches that change few results; ``"static"``: `candidates`.
            candidates: on a gpu-ivf: most candidates to re-rank; None for the curve's, or 16 k + 128 with `nprobe`.
            batch_size: candidates of a mini-batch; None for the curve's, or 16.
            epsilon_stop: with the rule ``"changes"``: a mini-batch that changes at most this share of the results is
                without effect.
            beta: with the rule ``"changes"``: stop after this many of them, consecutively.
            margin: with the rule ``"margin"``: stop when the next candidate is farther by its code than is expected
                of a result by this share of the distance.
            threads: None for one per core, at most one per query.
            mode: ``"barrier"`` (equal results for every order of reads) or ``"eager"`` (lower latency).
            width: concurrent reads of a query; None chooses by load.
            in_flight: queries in flight per thread; None chooses.
            io: ``"auto"``, ``"io_uring"`` or ``"pread"``.
            progress: as in `build`.

        Raises:
            InputError: wrong dimension, dtype or argument, NaN in a query, or a recall below 1 on an
                index without a curve.
            BudgetError: the `ram_budget` of the index does not allow this search.
            CorruptIndexError: a damaged file.
            QueryError: some queries failed; it holds the reasons and the results of the others.

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
            **effort(k, recall, search_list, nprobe, early_stop, stop_slack),
            "grid": grid_techniques(
                prune_dimension, prune_vector, prewarm, fan_out, static_order, balance, pipeline
            ),
            "gpu": gpu_techniques(baseline, rule, candidates, batch_size, epsilon_stop, beta, margin),
            "threads": whole(threads, "threads", 1),
            "mode": mode,
            "width": whole(width, "width"),
            "in_flight": whole(in_flight, "in_flight"),
            "io": io,
        }
        with listening(progress) as on_progress:
            answers = self._index.search(as_bytes(rows), how, on_progress)
        columns, result = answers["k"], _result(answers)
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
        return "a longer search_list" if self.kind in ("disk-graph", "flat") else "a larger nprobe"

    def _queries(self, queries: ArrayLike) -> NDArray[Any]:
        array = numbers(queries, "queries", self._index.dtype)
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
            lack = "missing results have distance infinity; increase recall, search_list or nprobe"
            warnings.warn(f"{short} queries found fewer results than requested: {lack}", stacklevel=3)

    def info(self) -> dict[str, Any]:
        """The manifest: kind, metric, dtype, shape, parameters, files with checksums, recall curves and
        version.
        """
        version, manifest = self._index.manifest()
        return {**json.loads(manifest), "version": version, "path": self._path}

    def recall(
        self,
        queries: ArrayLike,
        result: SearchResult,
        truth: Neighbors | ArrayLike | Path,
    ) -> float:
        """Computes the mean recall@k of a search: the share of the true k nearest that were found.

        The ground truth is compared with the results first: that of another index, of other queries or of another
        metric is an error and no recall.

        Args:
            queries: those of the search.
            result: its results.
            truth: as in `tune`, with k or more neighbours per query.

        Raises:
            InputError: ground truth that does not belong to this index and these queries.
        """
        rows = self._queries(queries)
        ids, distances = result.ids.reshape(-1), result.distances.reshape(-1)
        if len(result.ids) != len(rows):
            raise InputError(f"result has {len(result.ids)} queries, not {len(rows)}; pass the queries of the search")
        return _stratann.recall(
            self._index,
            as_bytes(rows),
            np.ascontiguousarray(ids, dtype=np.uint64),
            np.ascontiguousarray(distances, dtype=np.float32),
            result.ids.shape[1],
            _truth(truth),
        )

    def tune(
        self,
        queries: ArrayLike | None = None,
        truth: Neighbors | ArrayLike | Path | None = None,
        *,
        recall: Sequence[float] = (0.9, 0.95, 0.99),
        k: Sequence[int] = (1, 10, 100),
        sample: int = 1000,
        seed: int = 1,
        threads: int | None = None,
        progress: Progress = None,
    ) -> dict[str, Any]:
        """Measures the recall curves again, publishes them as a new version, and opens it here.

        Half of the queries fit the curves, the other half check them. Data files do not change. Meanwhile the index is
        open twice: `ram_budget` holds for each.

        Args:
            queries: as in `search`; None for rows of the index, each excluded from its own results.
            truth: their ground truth: what `groundtruth` returned, ids of shape (nq, k), or a file. Ids are those
                of the index.
            recall: recalls at which the new curves are checked.
            k: values of k with their own curve.
            sample: rows to draw when no queries are given.
            seed: seed of that.
            threads: None for one per core.
            progress: as in `build`.

        Returns:
            The report of ``stratann tune --json``: ``version``, ``source``, ``fitted_on``, ``checked_on``, ``checks``
            (``k``, ``asked``, ``measured``, ``reads`` and the setting) and ``curves``.

        Raises:
            InputError: a flat index, too few queries, or ground truth of another index or metric.
        """
        if (queries is None) != (truth is None):
            raise InputError("queries and truth go together; give both, or none to tune with rows of the index")
        how = {
            "k": list(k),
            "recall": list(recall),
            "sample": sample,
            "seed": seed,
            "threads": threads,
            "ram_budget": self._how["ram_budget"],
        }
        rows = None if queries is None else as_bytes(self._queries(queries))
        given = None if truth is None else _truth(truth)
        with listening(progress) as on_progress:
            report = json.loads(_stratann.tune(self._path, rows, given, how, on_progress))
        old, self._index = self._index, _stratann.Index(self._path, self._how)
        old.close()
        return report

    def verify(self, *, progress: Progress = None) -> dict[str, Any]:
        """Reads the whole index in its folder, the newest version, and reports what is wrong.

        Returns:
            The report of ``stratann verify --json``: ``violations_found`` is 0 for a sound index, ``violations`` lists
            file, offset and what is wrong.
        """
        with listening(progress) as on_progress:
            return json.loads(_stratann.verify(self._path, on_progress))

    def explain(
        self,
        query: ArrayLike,
        k: int = 10,
        recall: float | None = None,
        *,
        search_list: int | None = None,
        nprobe: int | None = None,
        early_stop: float | None = None,
        stop_slack: float | None = None,
        prune_dimension: bool = True,
        prune_vector: bool = True,
        prewarm: bool = True,
        baseline: str | None = None,
        rule: str | None = None,
        candidates: int | None = None,
        batch_size: int | None = None,
        epsilon_stop: float | None = None,
        beta: int | None = None,
        margin: float | None = None,
        width: int = 1,
    ) -> dict[str, Any]:
        """Traces one query step by step: what it reads, and why. Arguments are those of `search`.

        Returns:
            The document of ``stratann explain --json``: the setting, ``rounds``, ``visits``, ``lists`` or ``batches``,
            ``ids``, ``distances`` and ``counters``.
        """
        rows = self._queries(query)
        if len(rows) != 1:
            raise InputError(f"query has {len(rows)} rows; pass one query")
        how = {
            "k": k,
            "recall": recall,
            "search_list": search_list,
            "nprobe": nprobe,
            "early_stop": early_stop,
            "stop_slack": stop_slack,
            "grid": grid_techniques(prune_dimension, prune_vector, prewarm),
            "gpu": gpu_techniques(baseline, rule, candidates, batch_size, epsilon_stop, beta, margin),
            "threads": 1,
            "mode": "barrier",
            "width": width,
            "in_flight": None,
            "io": "auto",
        }
        return json.loads(self._index.explain(as_bytes(rows), how))

    def memory(self) -> dict[str, int]:
        """Bytes of RAM by component, and their ``total``. ``stats["memory"]`` of a search includes the
        search.
        """
        return self._index.memory()

    def close(self) -> None:
        """Releases memory and files when running searches have ended."""
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


def search_together(
    indexes: Sequence[Index],
    queries: ArrayLike,
    k: int = 10,
    recall: float | None = None,
    *,
    search_list: int | None = None,
    nprobe: int | None = None,
    early_stop: float | None = None,
    stop_slack: float | None = None,
    threads: int | None = None,
    width: int | None = None,
    partial: bool = False,
    progress: Progress = None,
) -> SearchResult:
    """Searches several open indexes as one: the `k` nearest vectors of each query in all of them.

    The indexes are searched at the same time, as far as there are threads. Their kinds may differ. Ids are those of
    the indexes: a vector that two of them hold under one id is found once.

    Args:
        indexes: 1 to 64 open indexes with equal dimension, dtype and metric.
        queries: as in `Index.search`: shape (nq, d), or (d,) for one query.
        k: results per query.
        recall: target recall@k of each index; 0.95 unless `search_list` or `nprobe` is given.
        search_list: as in `Index.search`, for each index; so are `nprobe`, `early_stop`, `stop_slack` and `width`.
        threads: None for one per core. They are divided over the indexes.
        partial: whether a query that an index fails has the results of the others. ``stats["failed"]`` then lists
            (query, why) with the name of the index; otherwise `QueryError` does.
        progress: as in `build`.

    Raises:
        InputError: no index, indexes of other vectors, a closed one, or as in `Index.search`.
        QueryError: some queries failed; it holds the reasons and the results of the others.

    >>> import numpy as np, os, stratann, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> base = np.arange(80, dtype=np.float32).reshape(40, 2)
    >>> paths = [os.path.join(folder.name, name) for name in ("old", "new")]
    >>> _ = stratann.build(base[:20], paths[0], kind="flat")
    >>> _ = stratann.build(base[20:], paths[1], kind="flat", ids=np.arange(20, 40, dtype=np.uint64))
    >>> with stratann.open(paths[0]) as old, stratann.open(paths[1]) as new:
    ...     r = stratann.search_together([old, new], base[19:21], k=1)
    >>> r.ids.reshape(-1).tolist()
    [19, 20]
    >>> folder.cleanup()
    """
    if not indexes:
        raise InputError("no index is given; pass 1 to 64 open indexes")
    other = next((index for index in indexes if not isinstance(index, Index)), None)
    if other is not None:
        raise InputError(f"indexes holds a {type(other).__name__}; pass indexes that `open` returned")
    first = indexes[0]
    rows = first._queries(queries)
    how = {
        **effort(k, recall, search_list, nprobe, early_stop, stop_slack),
        "grid": grid_techniques(),
        "gpu": gpu_techniques(),
        "threads": whole(threads, "threads", 1),
        "mode": "barrier",
        "width": whole(width, "width"),
        "in_flight": None,
        "io": "auto",
    }
    with listening(progress) as on_progress:
        answers = _stratann.search_together(
            [index._index for index in indexes], as_bytes(rows), how, partial, on_progress
        )
    result = _result(answers)
    if partial:
        result.stats["failed"] = answers["failed"]
    else:
        first._check_complete(result, answers["failed"])
    return result


def _result(answers: dict[str, Any]) -> SearchResult:
    columns = answers["k"]
    return SearchResult(
        answers["ids"].reshape(-1, columns),
        answers["distances"].reshape(-1, columns),
        answers["latency_us"],
        answers["stats"],
    )


def _truth(truth: Neighbors | ArrayLike | Path) -> Any:
    """Converts ground truth for the engine: a path, or k, ids and distances."""
    if is_path(truth):
        return os.fspath(truth)  # type: ignore[arg-type]
    given = truth.distances if isinstance(truth, Neighbors) else np.empty(0)
    ids = np.asarray(truth.ids if isinstance(truth, Neighbors) else truth)
    if ids.ndim != 2 or ids.dtype.kind not in "ui" or ids.shape[1] == 0:
        raise InputError(f"truth has shape {ids.shape} and dtype {ids.dtype}; pass ids of shape (queries, k)")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > 0xFFFFFFFF):
        raise InputError("truth has ids below 0 or above 4294967295; ground truth has ids of 32 bits")
    narrow = np.ascontiguousarray(ids, dtype=np.uint32).reshape(-1)
    return ids.shape[1], narrow, np.ascontiguousarray(given, dtype=np.float32).reshape(-1)


def open(
    path: Path,
    ram_budget: int | str | None = None,
    cache_budget: int | str = "auto",
    *,
    preload: bool = False,
    head_budget: int | str | None = None,
    learning: str = "on",
    epoch_queries: int = 2000,
    scorer: str = "auto",
    device: int | None = None,
    gpu_budget: int | str | None = None,
    spill: bool = False,
    early_tables: bool = True,
    baselines: str = "none",
) -> Index:
    """Opens the index in the folder `path`.

    Args:
        path: the index folder.
        ram_budget: limit in bytes of the open index and its searches, as int or text; None for no limit.
        cache_budget: memory that caches blocks, in bytes as int or text. ``"auto"``: half of what `ram_budget`
            leaves, and without it up to half of the memory that is available. 0: every read is made and counted.
        preload: whether all blocks are read into the cache at once, when it has room for them.
        head_budget: bytes of it for list codes of a hybrid-ivf, which then need no reads; None for the rest.
        learning: whether a hybrid-ivf learns from its queries: ``"on"``, ``"frozen"`` (it uses earlier
            statistics without updating them) or ``"off"``. The statistics are kept in the folder.
        epoch_queries: queries per learning epoch.
        scorer: what ranks the codes of a gpu-ivf: ``"auto"`` (a GPU where one can be used, otherwise the threads of
            the search), ``"cuda"`` or ``"cpu"``.
        device: number of the GPU; 0.
        gpu_budget: limit in bytes of the GPU's memory; None for nine tenths of what is free.
        spill: whether the threads of the search rank codes that do not fit on the GPU; otherwise they are refused.
        early_tables: whether a GPU builds the look-up table of a query while the processor finds its candidates.
        baselines: files of a gpu-ivf for baselines: ``"none"``, ``"disk"``, or ``"ram"`` with lists of vectors in RAM.

    Raises:
        InputError: no index, an index of a newer format, or a wrong argument.
        BudgetError: the index does not fit; the message names the smallest budget that does.
        CorruptIndexError: a damaged or missing file.
    """
    return Index(
        path,
        ram_budget,
        cache_budget,
        preload=preload,
        head_budget=head_budget,
        learning=learning,
        epoch_queries=epoch_queries,
        scorer=scorer,
        device=device,
        gpu_budget=gpu_budget,
        spill=spill,
        early_tables=early_tables,
        baselines=baselines,
    )
