"""An open index and its search results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import DTYPES, Path, as_bytes, byte_size, dtype_name, fixed, numbers, rows_of, whole
from ._build import Neighbors
from ._changes import Changes, changed, ids_of
from ._errors import InputError, QueryError
from ._progress import Progress, listening
from ._results import SearchResult, result_of, truth_of
from ._techniques import effort, gpu_techniques, grid_techniques, remote_techniques


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
        self._path = fixed(path)
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

    @classmethod
    def _of_memory(cls, addresses: list[str], how: dict[str, Any]) -> Index:
        """Opens what memory nodes hold; see `open_memory`."""
        self = cls.__new__(cls)
        self._path, self._how = ",".join(addresses), how
        self._index = _stratann.Index.of_memory(addresses, how)
        for warning in self._index.warnings():
            warnings.warn(warning, stacklevel=3)
        return self

    @property
    def rows(self) -> int:
        """Number of vectors. Those in memory nodes are counted when something has changed."""
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
        ef: int | None = None,
        batch: int | None = None,
        doorbell: int | None = None,
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
            baseline: of the program ``stratann-lab`` alone.
            rule: on a gpu-ivf: what ends re-ranking; by default what costs less. ``"margin"``: the code distance of the
                next candidate; ``"changes"``: mini-batches that change few results; ``"static"``: `candidates`.
            candidates: on a gpu-ivf: most candidates to re-rank; None for the curve's, or 16 k + 128 with `nprobe`.
            batch_size: candidates of a mini-batch; None for the curve's, or 16.
            epsilon_stop: with the rule ``"changes"``: a mini-batch that changes at most this share of the results is
                without effect.
            beta: with the rule ``"changes"``: stop after this many of them, consecutively.
            margin: with the rule ``"margin"``: stop when the next candidate is farther by its code than is expected
                of a result by this share of the distance.
            ef: on a remote-hnsw: length of the beam in each cluster; None for the curve's, or 48 or 1.5 k with
                `nprobe`.
            batch: on a remote-hnsw: queries of a batch, for all of which a cluster is read once; None for 2000.
            doorbell: on a remote-hnsw: most reads of a round trip; None for 64.
            threads: None for one per core, at most one per query.
            mode: ``"barrier"`` (equal results for every order of reads) or ``"eager"`` (lower latency).
            width: concurrent reads of a query; None chooses by load: then answers of a disk-graph depend on the
                number of queries in flight and on their order. With a number they do not, in the mode ``"barrier"``.
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
            "remote": remote_techniques(ef, batch, doorbell),
            "threads": whole(threads, "threads", 1),
            "mode": mode,
            "width": whole(width, "width"),
            "in_flight": whole(in_flight, "in_flight"),
            "io": io,
        }
        with listening(progress) as on_progress:
            answers = self._index.search(as_bytes(rows), how, on_progress)
        columns, result = answers["k"], result_of(answers)
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
        short = np.count_nonzero(result.counts < result.ids.shape[1])
        if short:
            lack = "missing results have distance infinity; increase recall, search_list or nprobe"
            warnings.warn(f"{short} queries found fewer results than requested: {lack}", stacklevel=3)

    def info(self) -> dict[str, Any]:
        """The manifest: kind, metric, dtype, shape, parameters, files with checksums, recall curves and
        version. Of an index in memory nodes also ``memory_nodes``: what they hold now.
        """
        version, manifest = self._index.manifest()
        live = self._index.live_facts()
        nodes = {} if live is None else {"memory_nodes": json.loads(live)}
        return {**json.loads(manifest), "version": version, "path": self._path, **nodes}

    def upsert(
        self,
        ids: ArrayLike,
        vectors: ArrayLike,
        *,
        new_ids: bool = False,
        threads: int = 4,
        progress: Progress = None,
    ) -> Changes:
        """Inserts vectors into an index that `open_memory` opened. What is under an id is replaced.

        Every search that begins after the return finds them, on any compute node.

        Args:
            ids: an id for each vector, whole numbers below 2**64.
            vectors: shape (n, d), of the dtype of the index.
            new_ids: a promise that no id was ever inserted before, which saves a tombstone each.
            threads: threads, each with a connection of its own.
            progress: as in `build`.

        Raises:
            InputError: an index in a folder; bad vectors or ids, after which nothing is changed.
            ChangeError: some vectors are inserted and others are not; it tells which.
        """
        rows = self._queries(vectors)
        numbers = ids_of(ids, len(rows))
        with listening(progress) as on_progress:
            return changed(
                self._index.upsert(numbers, as_bytes(rows), bool(new_ids), whole(threads, "threads", 1), on_progress)
            )

    def delete(self, ids: ArrayLike, *, threads: int = 4, progress: Progress = None) -> Changes:
        """Deletes ids from an index that `open_memory` opened. Those that do not exist are no error.

        Args:
            ids: whole numbers.
            threads: as in `upsert`; so is `progress`.

        Raises:
            InputError: as in `upsert`; so is ChangeError.
        """
        with listening(progress) as on_progress:
            return changed(self._index.delete(ids_of(ids), whole(threads, "threads", 1), on_progress))

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
            np.ascontiguousarray(result.counts, dtype=np.uint32),
            result.ids.shape[1],
            truth_of(truth),
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
        if self._index.live_facts() is not None:
            raise InputError("an index in memory nodes is not tuned; tune its folder, and load that again")
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
        given = None if truth is None else truth_of(truth)
        with listening(progress) as on_progress:
            report = json.loads(_stratann.tune(self._path, rows, given, how, on_progress))
        old, self._index = self._index, _stratann.Index(self._path, self._how)
        old.close()
        return report

    def verify(self, *, progress: Progress = None) -> dict[str, Any]:
        """Reads the whole index in its folder, the newest version, or in its memory nodes, and reports what is wrong.

        Returns:
            The report of ``stratann verify --json``: ``violations_found`` is 0 for a sound index, ``violations`` lists
            file, offset and what is wrong.
        """
        with listening(progress) as on_progress:
            live = self._index.verify_memory(on_progress)
            return json.loads(_stratann.verify(self._path, on_progress) if live is None else live)

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
        ef: int | None = None,
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
            "remote": remote_techniques(ef),
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
        "remote": remote_techniques(),
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
    result = result_of(answers)
    if partial:
        result.stats["failed"] = answers["failed"]
    else:
        first._check_complete(result, answers["failed"])
    return result
