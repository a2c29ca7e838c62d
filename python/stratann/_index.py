"""An open index and its search results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import DTYPES, Path, as_bytes, byte_size, dtype_name, fixed, numbers, rows_of
from ._build import Neighbors
from ._changes import Changes, changed, ids_of
from ._errors import InputError, QueryError
from ._filters import Filter, filters
from ._parameters import parameters, remembered_parameters, search_parameters
from ._payloads import NOT_TOGETHER, PointFilter, filter_of
from ._progress import Progress, listening
from ._results import SearchResult, points_of, result_of, truth_of


class Index:
    """An open index. Any number of threads may search it concurrently. Created by `open`."""

    def __init__(self, path: Path, parameters: dict[str, Any]) -> None:
        self._path, self._how = fixed(path), parameters
        self._index = _stratann.Index(self._path, self._how)
        self._remember()
        for warning in self._index.warnings():
            warnings.warn(warning, stacklevel=3)

    @classmethod
    def _of_memory(cls, addresses: list[str], how: dict[str, Any]) -> Index:
        """Opens what memory nodes hold; see `open_memory`."""
        self = cls.__new__(cls)
        self._path, self._how = ",".join(addresses), how
        self._index = _stratann.Index.of_memory(addresses, how)
        self._remember()
        for warning in self._index.warnings():
            warnings.warn(warning, stacklevel=3)
        return self

    def _remember(self) -> None:
        """Notes what each search needs of the index, and begins to note its parameters."""
        self._dim, self._dtype = self._index.dim, DTYPES[self._index.dtype]
        self._has_texts = self._index.has_texts
        self._searches: dict[Any, Any] = {}

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
        # parameters: search
        search_list: int | None = None,
        nprobe: int | None = None,
        early_stop: float | None = None,
        stop_slack: float | None = None,
        width: int | str | None = None,
        mode: str = "barrier",
        threads: int | None = None,
        in_flight: int | None = None,
        admission: str = "fixed",
        io: str = "auto",
        merge: bool = True,
        parts: str = "whole",
        patience: int | None = None,
        head: bool | None = None,
        whole_blocks: bool | None = None,
        seeds: bool | None = None,
        rerank: int | None = None,
        order: str | None = None,
        stop_early: bool | None = None,
        weights: bool | None = None,
        bounds: str | None = None,
        local_lists: int | None = None,
        local_list: int | None = None,
        votes: int | None = None,
        prune_dimension: bool | None = None,
        prune_code: bool | None = None,
        prune_vector: bool | None = None,
        prewarm: bool | None = None,
        fan_out: int | None = None,
        busy_last: bool | None = None,
        balance: bool | None = None,
        pipeline: bool | None = None,
        chain: bool | None = None,
        baseline: str | None = None,
        rule: str | None = None,
        candidates: int | None = None,
        batch_size: int | None = None,
        epsilon_stop: float | None = None,
        beta: int | None = None,
        margin: float | None = None,
        ef: int | None = None,
        scan_clusters: bool | None = None,
        batch: int | None = None,
        doorbell: int | None = None,
        # end of parameters
        static_order: bool | None = None,
        only: Filter = None,
        without: Filter = None,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
        with_payload: bool = False,
        progress: Progress = None,
        **unknown: NoReturn,
    ) -> SearchResult:
        """Finds the `k` nearest vectors of each query.

        The GIL is released. C-contiguous queries are used without a copy.

        Args:
            queries: shape (nq, d), or (d,) for one query, of the dtype of the index; float64 and lists are
                converted. One query gives results of shape (1, k).
            k: results per query. With k above the number of rows there are fewer columns, and a warning.
            recall: target recall@k, by the curve that the build measured; 0.95 unless `search_list` or
                `nprobe` is given.
            .. parameters: search
            search_list: of a disk-graph, flat: length of the beam, instead of a recall (L in DiskANN, ef in HNSW);
                several values make one run each.
            nprobe: of a hybrid-ivf, grid-ivf, gpu-ivf, remote-hnsw: most inverted lists to visit, or clusters to
                search in a remote-hnsw; several values make one run each.
            early_stop: of a hybrid-ivf: with `nprobe`: stop after this share of the lists, consecutively without a
                new result; never.
            stop_slack: of a disk-graph, hybrid-ivf: with `search_list`: stop when the best unread candidate is this
                many standard errors of its code distance farther than the k-th result. With `nprobe`: prune vectors
                that are this many standard errors beyond the k-th result [default: prune by exact bounds only]; never.
            width: concurrent reads of a query; auto reads more at once when few queries are in flight. With auto,
                answers depend on the number of queries in flight and on their order. With a number, and by default,
                they do not, in the mode barrier; 2 of a disk-graph that reads whole blocks, 8 of a flat, otherwise 1.
            mode: whether a step waits for all of its reads: ``barrier``: A step waits for all of its reads: equal
                results on every run; ``eager``: A step uses the reads that have arrived: lower latency, a few more
                reads; barrier.
            threads: threads; all cores.
            in_flight: queries in flight per thread; disk-graph 64; hybrid-ivf 16, or 8 where its codes do not fit in
                RAM; flat 1.
            admission: policy that admits the next query: ``one``: One query at a time per thread; ``batch``: A batch
                at a time: the next batch starts when the previous one has ended; ``fixed``: A fixed number: a query
                that ends is replaced at once; fixed.
            io: I/O back end: ``auto``: io_uring where the kernel allows it, else pread; ``uring``: io_uring, or an
                error; ``pread``: Threads that call pread; auto.
            merge: make equal reads that are under way once; true.
            parts: way to search several indexes as one, with --also, or the segments of a collection: ``whole``: The
                recall is that of the whole. The largest index is searched first, and its results bound the others;
                ``each``: Each by itself, with the recall for its own results; whole.
            patience: of a disk-graph: stop after this many consecutive reads without a new result; 0 for never; from
                the curve; never with `search_list`.
            head: of a disk-graph: take the first candidates from the head graph; true.
            whole_blocks: of a disk-graph, gpu-ivf: use all nodes of a block that was read; true.
            seeds: of a disk-graph: with a filter whose rows lie far from the query, walk once more, among them; true.
            rerank: of a disk-graph: walk by codes alone, and compare so many candidates in the end; with 0, compare
                nodes as their blocks arrive; as calibrated in memory; 0 from disk.
            order: of a hybrid-ivf: order in which lists are visited: ``evidence``: By distance to the centroid, less
                a gain for sampled vectors that were found; ``votes``: By the number of sampled vectors that were
                found, as in the paper; ``centroid``: By the distance to the centroid, without the navigation graph;
                ``expected``: By the expected number of results; chosen by calibration.
            stop_early: of a hybrid-ivf: stop where lists bring nothing more; true.
            weights: of a hybrid-ivf: weigh a list without a new result by what was to be expected of it, for the
                early stop; true.
            bounds: of a hybrid-ivf: bounds that prune vectors before they are read; they never change a result:
                ``off``: None: every vector of a visited list is read; ``centroid``: Distances to centroids, as in the
                paper; ``code``: Codes with the radius of their error; ``both``: Both; both.
            local_lists: of a hybrid-ivf: sub-lists to scan in a divided list; as planned.
            local_list: of a hybrid-ivf: length of the beam in a list with a graph; 32.
            votes: of a hybrid-ivf: sampled vectors of the navigation graph that count towards the rank of their
                lists; 64.
            prune_dimension: of a grid-ivf: drop a vector as soon as its first components exceed the threshold; true.
            prune_code: of a grid-ivf: drop a vector by its code, before any of its components is read; true.
            prune_vector: of a grid-ivf: let the threshold fall from list to list; true.
            prewarm: of a grid-ivf: score some vectors of every list first, for a first threshold; true.
            fan_out: of a grid-ivf: rows of lists to visit at a time, where they are divided over servers. More of
                them take less time and more work: each row is pruned by those that have ended; 1.
            busy_last: of a grid-ivf: let slices on busy servers come last; true.
            balance: of a grid-ivf: let the loads of servers count: for the order of slices, and among replicas; true.
            pipeline: of a grid-ivf: visit the slices of a row one after another, each pruning for those that follow;
                true.
            chain: of a grid-ivf: let one job visit the rows of whole lists one after another, and reply at the end of
                its way; true.
            baseline: of a gpu-ivf, remote-hnsw: search as another system does, or without some techniques: ``spann``:
                Lists of vectors on disk are read whole (SPANN); ``hi+pq``: Lists of codes on disk are read whole,
                then each candidate is read; ``hi+gpu``: As spann, with vectors copied to a GPU; ``hi+pq+gpu``: As
                hi+pq, with codes copied to a GPU; ``rummy-like``: Lists of vectors in RAM, copied to a GPU (RUMMY);
                ``mi-cpu``: Codes in RAM, a fixed number of candidates, a read for each; ``mi-gpu``: The same with
                codes on a GPU; ``static-n``: The smallest fixed number of candidates that reaches the recall;
                ``no-dedup``: Algorithm 1 with a read for each candidate; ``no-layout``: Algorithm 1 over vectors in
                the order of rows.
            rule: of a gpu-ivf: what ends re-ranking: ``static``: A fixed number of candidates is re-ranked;
                ``changes``: Mini-batches that change few results end it (FusionANNS, algorithm 1); ``margin``: The
                code distance of the next candidate ends it; the cheaper of margin and changes with `recall`, margin
                otherwise.
            candidates: of a gpu-ivf: most candidates to re-rank; from the curve; 16 k + 128 with `nprobe`.
            batch_size: of a gpu-ivf: candidates of a mini-batch; from the curve; 16 with `nprobe`.
            epsilon_stop: of a gpu-ivf: with `rule` changes: a mini-batch that changes at most this share of the
                results is without effect.
            beta: of a gpu-ivf: with `rule` changes: stop after this many mini-batches without effect, consecutively.
            margin: of a gpu-ivf: with `rule` margin: stop when the next candidate is farther by its code than the
                last result by so many standard errors of its distance; with codes that were trained, by this share of
                the distance.
            ef: of a remote-hnsw: length of the beam in each cluster (efSearch); from the curve; 48 or 1.5 k with
                `nprobe`.
            scan_clusters: of a remote-hnsw: compare all vectors of a cluster where that is faster than a search of
                its graph; true.
            batch: of a remote-hnsw: queries of a batch: each cluster that they need is read once for all of them;
                2000.
            doorbell: of a remote-hnsw: most reads of a round trip. While one is searched the next is under way: the
                memory of both is needed. Without this option `ram_budget` may shorten them; 64.
            .. end of parameters
            static_order: the opposite of `busy_last`.
            only: return only rows with these ids, of shape (n,), in any order; or a mask of shape (rows,) over the
                rows of an index without ids of its own; or a list of one of these for each query. Recall is that among
                the rows that match. Where fewer than `k` match, `counts` is less. Ids that no row has are ignored. An
                index in memory nodes takes no masks.
            without: return no row with these ids, given as in `only`.
            filter: return only rows whose payloads match, of an index that was built with payloads: a dict in Qdrant's
                form, such as ``{"must": [{"key": "color", "match": {"value": "red"}}]}``, or text, such as
                ``"color = 'red' and price < 50"``, or one of `stratann.filters`. `only` and `without` go with it not.
            indexed_only: whether to refuse a filter with conditions that no index answers. Otherwise payloads are read
                for these, and ``unindexed`` names them.
            with_payload: whether to return the payloads of the results.
            progress: as in `build`.

        Raises:
            InputError: wrong dimension, dtype or argument, NaN in a query, or a recall below 1 on an
                index without a curve; a filter that is wrong, with the place, or of an index without payloads.
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
        how = remembered_parameters(self._searches, locals())
        rows = as_bytes(self._queries(queries))
        asked = None
        if only is not None or without is not None:
            asked = filters(only, without, len(rows) // max(1, self._dim * self._dtype.itemsize), self.rows)
        if filter is not None or indexed_only or with_payload or self._has_texts:
            if asked is not None:
                raise InputError(NOT_TOGETHER)
            wanted = filter_of(filter, indexed_only), bool(with_payload)
            with listening(progress) as on_progress:
                answers, points = self._index.search_points(rows, how, wanted, on_progress)
            result = points_of(answers, points)
        elif progress is None:
            answers = self._index.search(rows, how, asked, None)
            result = result_of(answers)
        else:
            with listening(progress) as on_progress:
                answers = self._index.search(rows, how, asked, on_progress)
            result = result_of(answers)
        columns = answers["k"]
        if columns < k:
            warnings.warn(
                f"k is {k}, the index has {self.rows} rows: {columns} columns are returned", stacklevel=2
            )
        if answers["short"]:
            warnings.warn(
                f"{answers['short']} queries found fewer than {columns} results; {self._harder} finds more",
                stacklevel=2,
            )
        if answers["short"] or answers["failed"]:
            self._check_complete(result, answers["failed"])
        return result

    @property
    def _harder(self) -> str:
        return "a longer search_list" if self.kind in ("disk-graph", "flat") else "a larger nprobe"

    def _queries(self, queries: ArrayLike) -> NDArray[Any]:
        if isinstance(queries, np.ndarray) and queries.dtype == self._dtype and queries.flags.c_contiguous:
            # What needs no conversion needs no look at it.
            if queries.ndim in (1, 2) and queries.shape[-1] == self._dim:
                return queries.reshape(-1, self._dim)
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
        # parameters: upsert
        threads: int = 4,
        batch: int = 64,
        # end of parameters
        progress: Progress = None,
        **unknown: NoReturn,
    ) -> Changes:
        """Inserts vectors into an index that `open_memory` opened. What is under an id is replaced.

        Every search that begins after the return finds them, on any compute node.

        Args:
            ids: an id for each vector, whole numbers below 2**64.
            vectors: shape (n, d), of the dtype of the index.
            new_ids: a promise that no id was ever inserted before, which saves a tombstone each.
            progress: as in `build`.

            .. parameters: upsert
            threads: threads, each with a connection of its own; 4.
            batch: changes that a thread makes side by side: what they need is asked for in one request. With 1 each
                change makes its own requests (to compare); 64.
            .. end of parameters

        Raises:
            InputError: an index in a folder; bad vectors or ids, after which nothing is changed.
            ChangeError: some vectors are inserted and others are not; it tells which.
        """
        how = parameters("update", locals())
        rows = self._queries(vectors)
        numbers = ids_of(ids, len(rows))
        with listening(progress) as on_progress:
            return changed(self._index.upsert(numbers, as_bytes(rows), bool(new_ids), how, on_progress))

    def delete(
        self,
        ids: ArrayLike,
        *,
        # parameters: delete
        threads: int = 4,
        batch: int = 64,
        # end of parameters
        progress: Progress = None,
        **unknown: NoReturn,
    ) -> Changes:
        """Deletes ids from an index that `open_memory` opened. Those that do not exist are no error.

        Args:
            ids: whole numbers.
            threads, batch, progress: as in `upsert`.

        Raises:
            InputError: as in `upsert`; so is ChangeError.
        """
        how = parameters("update", locals())
        with listening(progress) as on_progress:
            return changed(self._index.delete(ids_of(ids), how, on_progress))

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
        # parameters: tune
        threads: int | None = None,
        recall: Sequence[float] | None = None,
        k: Sequence[int] | None = None,
        sample: int = 1000,
        seed: int = 1,
        # end of parameters
        progress: Progress = None,
        **unknown: NoReturn,
    ) -> dict[str, Any]:
        """Measures the recall curves again, publishes them as a new version, and opens it here.

        Half of the queries fit the curves, the other half check them. Data files do not change. Meanwhile the index is
        open twice: `ram_budget` holds for each.

        Args:
            queries: as in `search`; None for rows of the index, each excluded from its own results.
            truth: their ground truth: what `groundtruth` returned, ids of shape (nq, k), or a file. Ids are those
                of the index.
            progress: as in `build`.

            .. parameters: tune
            threads: threads; they do not change the result; all cores.
            recall: recalls at which the new curve is checked; 0.9,0.95,0.99.
            k: values of k with their own curve; others use the next larger one; 1,10,100.
            sample: rows of the index to draw when no queries are given; 1000.
            seed: seed of the sample of rows; 1.
            .. end of parameters

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
        given = parameters("tune", locals())
        budget = byte_size(self._how.get("ram_budget"), "ram_budget")
        rows = None if queries is None else as_bytes(self._queries(queries))
        known = None if truth is None else truth_of(truth)
        with listening(progress) as on_progress:
            report = json.loads(_stratann.tune(self._path, rows, known, given, budget, on_progress))
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
        # parameters: explain
        search_list: int | None = None,
        nprobe: int | None = None,
        early_stop: float | None = None,
        stop_slack: float | None = None,
        parts: str = "whole",
        patience: int | None = None,
        head: bool | None = None,
        whole_blocks: bool | None = None,
        seeds: bool | None = None,
        rerank: int | None = None,
        order: str | None = None,
        stop_early: bool | None = None,
        weights: bool | None = None,
        bounds: str | None = None,
        local_lists: int | None = None,
        local_list: int | None = None,
        votes: int | None = None,
        prune_dimension: bool | None = None,
        prune_code: bool | None = None,
        prune_vector: bool | None = None,
        prewarm: bool | None = None,
        baseline: str | None = None,
        rule: str | None = None,
        candidates: int | None = None,
        batch_size: int | None = None,
        epsilon_stop: float | None = None,
        beta: int | None = None,
        margin: float | None = None,
        ef: int | None = None,
        scan_clusters: bool | None = None,
        # end of parameters
        width: int | str = 1,
        only: Filter = None,
        without: Filter = None,
        **unknown: NoReturn,
    ) -> dict[str, Any]:
        """Traces one query step by step: what it reads, and why. Arguments are those of `search`.

        Returns:
            The document of ``stratann explain --json``: the setting, ``rounds``, ``visits``, ``lists`` or ``batches``,
            ``ids``, ``distances`` and ``counters``; and with `only` or `without` the ``filter``: how many rows match,
            the way to them, the ``prices`` of all ways, whether it gave way, and blocks without a row that matches.
        """
        how = search_parameters(locals())
        rows = self._queries(query)
        if len(rows) != 1:
            raise InputError(f"query has {len(rows)} rows; pass one query")
        asked = None if only is None and without is None else filters(only, without, 1, self.rows)
        return json.loads(self._index.explain(as_bytes(rows), how, asked))

    def memory(self) -> dict[str, int]:
        """Bytes of RAM by component, and their ``total``. Those of a search are in its ``stats["memory"]``."""
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
