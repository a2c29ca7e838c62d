"""Building an index, and computing exact neighbours."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import Path, byte_size, fixed, is_path, source
from ._errors import InputError
from ._filters import Filter, filters
from ._parameters import parameters
from ._payloads import Schema, schema_of
from ._point_source import KeptPayloads, point_source
from ._points import Ids
from ._progress import Progress, listening


@dataclass(frozen=True)
class BuildReport:
    """Report of a build."""

    #: Kind of the index; with ``kind="auto"`` the one that was chosen.
    kind: str
    #: Wall-clock seconds of this call.
    seconds: float
    #: Peak resident set of the process so far, including arrays and Python.
    peak_rss_bytes: int
    #: Bytes of all files of the index.
    index_bytes: int
    #: Seconds by stage, without stages that an interrupted build had finished.
    stages: dict[str, float]
    #: Vectors in the index.
    rows: int
    #: Rows that were left out (``on_bad_row="skip"``).
    skipped_rows: int
    #: Choices of the build, such as nodes per block.
    facts: dict[str, Any]
    #: Curves that do not reach the usual recall of 0.95: ``k``, ``asked``, ``reached``. Searches that ask for it go
    #: through everything.
    unreached: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Exact neighbours, closest first; ties by row number. The fields have names because libraries disagree
    about the order of the pair.
    """

    #: Row numbers, shape (nq, k), uint64.
    ids: NDArray[np.uint64]
    #: Distances, shape (nq, k), float32.
    distances: NDArray[np.float32]


def engine_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the engine's options from the arguments of a function like `build`, without ids."""
    budget = byte_size(given["ram_budget"], "ram_budget")
    return {**parameters("build", given), "kind": given["kind"], "ram_budget": budget, "ids": None}


def build(
    base: ArrayLike | Path,
    path: Path,
    kind: str = "auto",
    metric: str = "l2",
    *,
    ram_budget: int | str | None = None,
    threads: int | None = None,
    seed: int = 1,
    ids: ArrayLike | Ids | Path | None = None,
    payload: KeptPayloads | None = None,
    schema: Schema | None = None,
    vector_column: str | None = None,
    on_bad_row: str = "fail",
    force: bool = False,
    resume: bool = False,
    progress: Progress = None,
    # parameters: build
    profile: Path | None = None,
    calibration_queries: int | None = None,
    degree: int | None = None,
    build_list: int | None = None,
    alpha: float | None = None,
    passes: int | None = None,
    code_bytes: int | None = None,
    code_bits: int | None = None,
    codes: str | None = None,
    head_share: float | None = None,
    pack: bool | None = None,
    compress: bool | None = None,
    nodes_per_block: int | None = None,
    pages_per_block: int | None = None,
    exact_points: bool | None = None,
    cells: int | None = None,
    clusters: int | None = None,
    plan: str | None = None,
    search_budget: int | str | None = None,
    nav_samples: float | None = None,
    lists: int | None = None,
    centroids: Path | None = None,
    list_share: float | None = None,
    epsilon: float | None = None,
    baselines: bool | None = None,
    partitions: int | None = None,
    representatives: str | None = None,
    overflow: int | str | None = None,
    m: int | None = None,
    ef_construction: int | None = None,
    # end of parameters
    **unknown: NoReturn,
) -> BuildReport:
    """Builds an index of `base` in the folder `path`.

    The GIL is released. Ctrl-C, or an exception in `progress`, stops the build, publishes nothing, and keeps
    finished stages for ``resume=True``.

    Args:
        base: an array of shape (n, d), float32, float16, uint8 or int8, or a vector file (see
            `read_vectors`). A C-contiguous array is used without a copy; others are copied, with a warning.
            float64 and lists are converted to float32. Do not write to it during the build.
        path: the index folder. A folder with an index is refused unless `force`.
        kind: ``"auto"`` (the kind whose queries are predicted to cost least, in the RAM given), ``"disk-graph"``
            (graph on disk, codes in RAM), ``"hybrid-ivf"`` (inverted lists on disk, each with its own local index:
            for RAM far below the size of the vectors), ``"grid-ivf"`` (inverted lists in RAM, which drop most vectors
            after a few of their components), ``"gpu-ivf"`` (codes on a GPU or in RAM, vectors on disk),
            ``"remote-hnsw"`` (clusters of vectors, each with an HNSW, for memory nodes) or ``"flat"`` (exact scan).
        metric: ``"l2"`` (squared), ``"ip"`` (minus the inner product) or ``"cosine"`` (one minus the cosine).
            Smaller is closer.
        ram_budget: limit in bytes of the engine, as int or text (``"2GiB"``); None for no limit. It does not include
            Python and the array `base`.
        threads: None for one per core. The index does not depend on it.
        seed: seed of all random choices; equal arguments give equal bytes.
        ids: one uint64 per row, as an array or a file (``.npy``, ``.u64bin``); None for row numbers. With `payload`,
            a list of n ids, each an int, a str or a ``uuid.UUID``; or, of a file of points, the name of the column of
            ids (``"id"``, or row numbers where there is no such column).
        payload: keep ids of any form, and payloads, which searches filter by and return: a list of n dicts or Nones,
            or a table of pandas, polars or pyarrow with n rows; False for ids alone. `base` may be a file of points
            then (``.parquet``, ``.arrow``, ``.feather``, ``.jsonl``), whose columns are chosen: True for all, False for
            none, or a list of names. Two rows cannot have the same id. None keeps vectors and numbers alone.
        schema: with `payload`: fields that are indexed, each with a kind or a list of kinds, as in
            ``{"price": "float", "title": ["keyword", "text"]}``: ``"keyword"``, ``"integer"``, ``"float"``,
            ``"bool"``, ``"datetime"``, ``"uuid"`` and ``"text"``. Filters on other fields read payloads.
        vector_column: of a file of points: the column of vectors; ``"vector"``, or the only list of numbers.
        on_bad_row: ``"fail"``, or ``"skip"`` rows with NaN, infinity or (cosine) zero length.
        force: replace an existing index.
        resume: continue an interrupted build of the same arguments.
        progress: True for bars (tqdm where installed, lines on stderr otherwise), or a callable ``(stage,
            done, total, unit)``, called in the calling thread.
        .. parameters: build
        profile: of a hybrid-ivf: cost profile, from `stratann profile`; that of the disk, measured once for 8 s and
            then kept in STRATANN_CACHE or ~/.cache/stratann, so that equal builds get equal plans.
        calibration_queries: of a disk-graph, hybrid-ivf, grid-ivf, gpu-ivf, remote-hnsw: rows that calibrate
            `recall`, at most; with 0, searches need `search_list` or `nprobe`. Sets of fewer than 50 times as many
            rows calibrate with a row in 50, but no fewer than 100; 500.
        degree: of a disk-graph: most neighbours of a node: more neighbours find more per read and take more space in
            a block; 64.
        build_list: of a disk-graph: length of the beam that finds neighbours: a longer one builds slower and better;
            128.
        alpha: of a disk-graph: pruning factor of edges (alpha in DiskANN): larger values keep longer edges; 1.2.
        passes: of a disk-graph: passes over all rows; 1.
        code_bytes: of a disk-graph, hybrid-ivf, gpu-ivf: bytes of RAM per vector for its code. Larger codes need
            fewer reads: raise this first when RAM is left, lower it first when RAM is short; max(32, dimensions / 4);
            4 bits a dimension where all codes fit 64 MiB, and an eighth of `ram_budget` (disk-graph); half a byte per
            component of a float and 8, a quarter of others and 4 (hybrid-ivf); max(36, dimensions / 4 + 4) (gpu-ivf).
        code_bits: of a disk-graph, hybrid-ivf, gpu-ivf: bits of each dimension in a vector's code, on average; as
            many as fit `code_bytes`.
        codes: of a disk-graph: place of the codes during searches. With disk, RAM holds only the head graph with its
            codes and one bit per vector: about a quarter: ``ram``: All codes in RAM: fewest bytes read, smallest
            index; ``disk``: Each block stores the codes of all neighbours: a quarter of the RAM, an index about three
            times as large; ram.
        head_share: of a disk-graph: share of the rows in the head graph, the entry points of searches in RAM; 0.05.
        pack: of a disk-graph: pack nodes that are near in the graph into the same blocks; true.
        compress: of a disk-graph: assume compressed adjacency lists when choosing the nodes of a block; true.
        nodes_per_block: of a disk-graph: nodes per block; as many as fit.
        pages_per_block: of a disk-graph: pages of 4 KiB per block, up to 16; chosen by the build.
        exact_points: of a disk-graph: build the graph on f32 even where bytes suffice; false.
        cells: of a disk-graph: build the graph in at least this many overlapping parts; as `ram_budget` requires.
        clusters: of a hybrid-ivf: number of inverted lists; 4 times the square root of the rows.
        plan: of a hybrid-ivf: local index of the inverted lists: ``auto``: The cheapest local index for each list;
            ``uniform-flat``: Scan all codes of a list; ``uniform-graph``: A graph over the vectors of each list;
            ``uniform-ivf``: Divide each list into sub-lists; auto.
        search_budget: of a hybrid-ivf: rAM of later searches, such as 64MiB: which kinds kind="auto" considers, and
            which lists are scanned, divided or graphs; no limit for auto; the smallest possible for lists.
        nav_samples: of a hybrid-ivf: sampled vectors in the navigation graph, per list; 2.
        lists: of a grid-ivf: number of inverted lists; the square root of the rows.
        centroids: of a grid-ivf: centroids of the inverted lists: a file of f32 vectors; found by k-means.
        list_share: of a gpu-ivf: inverted lists, as a share of the rows; 0.1.
        epsilon: of a gpu-ivf: put a vector also in lists whose centroids are farther than the nearest by this share
            of the distance, in 8 at most; 0.15.
        baselines: of a gpu-ivf: write files that searches with `baseline` need, and measure their recall (to
            compare); false.
        partitions: of a remote-hnsw: number of clusters of vectors; 500, or one for 64 rows of small sets.
        representatives: of a remote-hnsw: how the vectors that represent clusters are chosen: ``sample``: Vectors
            drawn uniformly; ``kmeans``: The vectors nearest to the centroids of k-means: clusters of more equal size;
            sample.
        overflow: of a remote-hnsw: room for vectors that are inserted later, for each two clusters, such as 768KiB;
            an eighth of their bytes.
        m: of a remote-hnsw: neighbours of a node on upper layers, half of those on the bottom layer; 16.
        ef_construction: of a remote-hnsw: length of the beam that finds neighbours: a longer one builds slower and
            better; 200.
        .. end of parameters

    Raises:
        InputError: a wrong argument or bad row; the message names it. With `payload` also an id that two rows have,
            a payload that is no JSON (NaN among its values), another number of ids or payloads than of rows, and
            ``kind="remote-hnsw"``.
        BudgetError: `ram_budget` is too small; the message names the smallest that works.
        DiskError: the disk is full or not writable.

    >>> import numpy as np, os, stratann, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> base = np.random.default_rng(0).standard_normal((1000, 16), dtype=np.float32)
    >>> report = stratann.build(base, os.path.join(folder.name, "index"))
    >>> report.rows
    1000
    >>> ids, payload = [f"sku {row}" for row in range(1000)], [{"price": row % 50} for row in range(1000)]
    >>> shop = os.path.join(folder.name, "shop")
    >>> report = stratann.build(base, shop, "flat", ids=ids, payload=payload, schema={"price": "integer"})
    >>> with stratann.open(shop) as index:
    ...     r = index.search(base[7], k=1, filter="price < 10", with_payload=True)
    >>> r.ids[0, 0], r.payloads
    ('sku 7', [[{'price': 7}]])
    >>> folder.cleanup()
    """
    options = engine_options(locals())
    if payload is not None or schema is not None or vector_column is not None:
        points, fields = point_source(base, ids, payload, vector_column), schema_of(schema or {})
        with listening(progress) as on_progress:
            report = _stratann.build_points(points, fields, fixed(path), options, on_progress)
        return BuildReport(**json.loads(report))
    vectors = source(base, "base")
    with listening(progress) as on_progress:
        if ids is None or is_path(ids):
            options["ids"] = None if ids is None else fixed(ids)  # type: ignore[arg-type]
            report = _stratann.build(vectors, fixed(path), options, on_progress)
        else:
            report = _build_with_ids(vectors, path, options, on_progress, checked_ids(ids))  # type: ignore[arg-type]
    return BuildReport(**json.loads(report))


def checked_ids(ids: ArrayLike) -> NDArray[Any]:
    """Checks ids, one per row, and converts them to integers of 64 bits."""
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise InputError(
            f"ids have shape {array.shape} and dtype {array.dtype}; pass one uint64 per row, or payload=False to keep "
            "ids that are strings or UUIDs"
        )
    # Signed ids stay signed: the engine names the row of a negative one.
    return array.astype("<u8" if array.dtype.kind == "u" else "<i8", copy=False)


def _build_with_ids(
    vectors: Any, path: Path, options: dict[str, Any], on_progress: Any, ids: NDArray[Any]
) -> str:
    """Passes ids to the engine as a file, which an out-of-core build reads once without holding it."""
    with tempfile.TemporaryDirectory(prefix="stratann-") as folder:
        file = os.path.join(folder, "ids.npy")
        np.save(file, ids)
        options["ids"] = file
        try:
            return _stratann.build(vectors, fixed(path), options, on_progress)
        except InputError as e:
            raise InputError(str(e).replace(file, "ids")) from None


def groundtruth(
    base: ArrayLike | Path,
    queries: ArrayLike | Path,
    k: int = 100,
    metric: str = "l2",
    *,
    # parameters: groundtruth
    threads: int | None = None,
    on_bad_row: str = "fail",
    ram_budget: int | str | None = None,
    # end of parameters
    only: Filter = None,
    without: Filter = None,
    progress: Progress = None,
    **unknown: NoReturn,
) -> Neighbors:
    """Computes the exact `k` nearest rows of `base` for every query by a full scan.

    Args:
        base: as in `build`.
        queries: an array of shape (nq, d), or a vector file, of the element type of `base` (float32 and
            float16 may mix).
        k: neighbours per query. With k above the number of rows there are fewer columns.
        only: neighbours are rows with these numbers, of shape (n,), in any order; or a mask of shape (rows,); or a list
            of one of these for each query. A query of which fewer rows match than of others has the number 4294967295
            at an infinite distance in the place of the rest.
        without: neighbours are none of these rows, given as in `only`.
        metric, progress: as in `build`.

        .. parameters: groundtruth
        threads: threads; they do not change the result; all cores.
        on_bad_row: treatment of rows without valid distances (NaN, infinite, zero under cosine): ``fail``: Stop at
            the first bad row and name it; ``skip``: Leave bad rows out and count them; fail.
        ram_budget: limit of all memory, such as 512MiB; no limit.
        .. end of parameters

    Raises:
        InputError: dimensions or types that do not match, a row with NaN or infinity, a filter without rows.

    >>> import numpy as np, stratann
    >>> base = np.array([[0, 0], [3, 4], [1, 0]], dtype=np.float32)
    >>> truth = stratann.groundtruth(base, base[:1], k=2)
    >>> truth.ids, truth.distances
    (array([[0, 2]], dtype=uint64), array([[0., 1.]], dtype=float32))
    """
    how = parameters("truth", locals())
    with listening(progress) as on_progress:
        rows, asked = source(base, "base"), source(queries, "queries")
        named = None
        if only is not None or without is not None:
            named = filters(only, without, _rows_in(asked), _rows_in(rows), "the base")
        columns, ids, distances = _stratann.groundtruth(rows, asked, how, named, on_progress)
    return Neighbors(ids.astype(np.uint64).reshape(-1, columns), distances.reshape(-1, columns))


def _rows_in(vectors: Any) -> int:
    """Number of rows of what `source` returned."""
    return _stratann.shape_of(vectors)[0] if isinstance(vectors, str) else vectors[1]
