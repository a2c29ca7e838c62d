"""Building an index, and computing exact neighbours."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import Path, byte_size, fixed, is_path, source, whole
from ._errors import InputError
from ._progress import Progress, listening


@dataclass(frozen=True)
class BuildReport:
    """Report of a build."""

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
    options = {name: given.get(name) for name in _stratann.parameters("build")}
    paths = {name: fixed(options[name]) for name in ("profile", "centroids") if options.get(name) is not None}
    budget = byte_size(given["ram_budget"], "ram_budget")
    return {**options, **paths, "kind": given["kind"], "ram_budget": budget, "ids": None}


def build(
    base: ArrayLike | Path,
    path: Path,
    kind: str = "auto",
    metric: str = "l2",
    *,
    ram_budget: int | str | None = None,
    threads: int | None = None,
    seed: int = 1,
    ids: ArrayLike | Path | None = None,
    on_bad_row: str = "fail",
    force: bool = False,
    resume: bool = False,
    progress: Progress = None,
    degree: int | None = None,
    build_list: int | None = None,
    alpha: float | None = None,
    passes: int | None = None,
    code_bytes: int | None = None,
    code_kind: str | None = None,
    codes: str | None = None,
    head_share: float | None = None,
    pack: bool | None = None,
    compress: bool | None = None,
    nodes_per_block: int | None = None,
    pages_per_block: int | None = None,
    exact_points: bool | None = None,
    cells: int | None = None,
    calibration_queries: int | None = None,
    clusters: int | None = None,
    plan: str | None = None,
    search_budget: int | str | None = None,
    profile: Path | None = None,
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
        ids: one uint64 per row, as an array or a file (``.npy``, ``.u64bin``); None for row numbers.
        on_bad_row: ``"fail"``, or ``"skip"`` rows with NaN, infinity or (cosine) zero length.
        force: replace an existing index.
        resume: continue an interrupted build of the same arguments.
        progress: True for bars (tqdm where installed, lines on stderr otherwise), or a callable ``(stage,
            done, total, unit)``, called in the calling thread.
        degree: most neighbours of a node, R; 64.
        build_list: beam length of the build, L; 128.
        alpha: pruning factor of edges, larger values keep longer edges; 1.2.
        passes: passes over all rows; 1.
        code_bytes: bytes of a vector's code; max(32, d / 4).
        code_kind: ``"opq"``, ``"pq"`` or ``"residual-opq"``.
        codes: ``"ram"``, or ``"disk"``: each block carries the codes of all neighbours, which takes a quarter
            of the RAM and three times the disk.
        head_share: share of the rows in the head graph.
        pack: pack neighbours into the same blocks.
        compress: assume compressed adjacency lists in the design of blocks.
        nodes_per_block: None chooses.
        pages_per_block: pages of 4 KiB; None chooses.
        exact_points: build the graph on float32 even where bytes suffice.
        cells: build the graph in at least this many overlapping parts; None for as many as `ram_budget`
            requires.
        calibration_queries: rows that measure the recall curve; 0 for no curve (`search` then needs
            ``search_list``, or ``nprobe``).
        clusters: number of inverted lists of a hybrid-ivf; 4 times the square root of the rows.
        plan: local index of the lists of a hybrid-ivf: ``"auto"`` (the cheapest for each list),
            ``"uniform-flat"``, ``"uniform-graph"`` or ``"uniform-ivf"``.
        search_budget: bytes of RAM of later searches, as int or text: which kinds ``"auto"`` considers, and which
            lists of a hybrid-ivf are scanned, divided or graphs; None for no limit (of lists: the smallest possible).
        profile: cost profile of this machine, from ``stratann profile``; None for that of the disk, which the
            first build measures for 8 seconds and keeps for later ones.
        nav_samples: sampled vectors per list in the navigation graph of a hybrid-ivf; 2.
        lists: number of inverted lists of a grid-ivf; the square root of the rows.
        centroids: a file of float32 vectors, the centroids of the lists of a grid-ivf; None to find them.
        list_share: inverted lists of a gpu-ivf, as a share of the rows; 0.1.
        epsilon: a vector of a gpu-ivf is also in lists whose centroids are farther than the nearest by this share of
            the distance, in 8 at most; 0.15.
        baselines: of the program ``stratann-lab`` alone; False.
        partitions: clusters of vectors of a remote-hnsw; 500, or one for 64 rows of small sets.
        representatives: how the vectors that represent clusters are chosen: ``"sample"`` (drawn) or ``"kmeans"``.
        overflow: bytes for vectors that are inserted later, for each two clusters; an eighth of their bytes.
        m: neighbours of a node of a remote-hnsw on upper layers, half of those on the bottom layer; 16.
        ef_construction: length of the beam that finds them; 200.

    Raises:
        InputError: a wrong argument or bad row; the message names it.
        BudgetError: `ram_budget` is too small; the message names the smallest that works.
        DiskError: the disk is full or not writable.

    >>> import numpy as np, os, stratann, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> base = np.random.default_rng(0).standard_normal((1000, 16), dtype=np.float32)
    >>> report = stratann.build(base, os.path.join(folder.name, "index"))
    >>> report.rows
    1000
    >>> folder.cleanup()
    """
    options = engine_options(locals())
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
        raise InputError(f"ids have shape {array.shape} and dtype {array.dtype}; pass one uint64 per row")
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
    ram_budget: int | str | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> Neighbors:
    """Computes the exact `k` nearest rows of `base` for every query by a full scan.

    Args:
        base: as in `build`.
        queries: an array of shape (nq, d), or a vector file, of the element type of `base` (float32 and
            float16 may mix).
        k: neighbours per query. With k above the number of rows there are fewer columns.
        metric, ram_budget, threads, progress: as in `build`.

    Raises:
        InputError: dimensions or types that do not match, a row with NaN or infinity.

    >>> import numpy as np, stratann
    >>> base = np.array([[0, 0], [3, 4], [1, 0]], dtype=np.float32)
    >>> truth = stratann.groundtruth(base, base[:1], k=2)
    >>> truth.ids, truth.distances
    (array([[0, 2]], dtype=uint64), array([[0., 1.]], dtype=float32))
    """
    with listening(progress) as on_progress:
        columns, ids, distances = _stratann.groundtruth(
            source(base, "base"),
            source(queries, "queries"),
            whole(k, "k"),
            metric,
            byte_size(ram_budget, "ram_budget"),
            whole(threads, "threads", 1),
            on_progress,
        )
    return Neighbors(ids.astype(np.uint64).reshape(-1, columns), distances.reshape(-1, columns))
