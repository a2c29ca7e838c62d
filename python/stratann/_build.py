"""Building an index, and exact neighbours."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._arrays import Path, byte_size, is_path, source
from ._errors import InputError
from ._progress import Progress, listening


@dataclass(frozen=True)
class BuildReport:
    """What a build did."""

    #: Wall-clock seconds of this call.
    seconds: float
    #: Largest resident set of the process so far, arrays and Python included.
    peak_rss_bytes: int
    #: Bytes of all files of the index.
    index_bytes: int
    #: Seconds by stage; stages that an earlier, interrupted build had finished are not in it.
    stages: dict[str, float]
    #: Vectors in the index.
    rows: int
    #: Rows that were left out (``on_bad_row="skip"``).
    skipped_rows: int
    #: What was decided on the way, such as nodes per block.
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Exact neighbours, closest first; ties by row number. By name only: libraries disagree about the order
    of the pair.
    """

    #: Row numbers, shape (nq, k), uint64.
    ids: NDArray[np.uint64]
    #: Distances, shape (nq, k), float32.
    distances: NDArray[np.float32]


#: Arguments of a build that the engine takes as they are.
_OPTIONS = (
    "kind",
    "metric",
    "threads",
    "seed",
    "on_bad_row",
    "force",
    "resume",
    "degree",
    "build_list",
    "alpha",
    "passes",
    "code_bytes",
    "code_kind",
    "codes",
    "head_share",
    "pack",
    "compress",
    "nodes_per_block",
    "pages_per_block",
    "exact_points",
    "cells",
    "calibration_queries",
)
#: The same of `hybrid-ivf`, which not every kind of build takes.
_CLUSTER_OPTIONS = ("clusters", "plan", "nav_samples")


def engine_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a build for the engine, out of the arguments of a function like `build`; ids apart."""
    profile = given.get("profile")
    return {name: given[name] for name in _OPTIONS} | {
        **{name: given.get(name) for name in _CLUSTER_OPTIONS},
        "ram_budget": byte_size(given["ram_budget"], "ram_budget"),
        "search_budget": byte_size(given.get("search_budget"), "search_budget"),
        "profile": None if profile is None else os.fspath(profile),
        "ids": None,
    }


def build(
    base: ArrayLike | Path,
    path: Path,
    kind: str = "disk-graph",
    metric: str = "l2",
    *,
    ram_budget: int | str | None = "2GiB",
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
) -> BuildReport:
    """Builds an index of `base` in the folder `path`.

    The GIL is released. Ctrl-C, or an exception in `progress`, stops the build, publishes nothing, and keeps
    what is done for ``resume=True``.

    Args:
        base: an array of shape (n, d), float32, float16, uint8 or int8, or a vector file (see
            `read_vectors`). A C-contiguous array is used as it is, without a copy; any other is copied, with
            a warning. Do not write to it meanwhile.
        path: the index folder; refused when it holds an index, unless `force`.
        kind: ``"disk-graph"`` (graph on SSD, codes in RAM), ``"hybrid-ivf"`` (clusters on SSD, each with a
            local index of its own: for memory far smaller than the vectors) or ``"flat"`` (exact scan).
        metric: ``"l2"`` (squared), ``"ip"`` (minus the inner product) or ``"cosine"`` (one minus the cosine).
            Smaller is closer.
        ram_budget: bytes that the engine may take, as int or text; None for no limit. What `base` itself
            takes as an array, and Python, come on top.
        threads: None for one per core. The index does not depend on it.
        seed: of all random choices; equal arguments give equal bytes.
        ids: one uint64 per row, as an array or a file (``.npy``, ``.u64bin``); None for row numbers.
        on_bad_row: ``"fail"``, or ``"skip"`` rows with NaN, infinity or (cosine) no direction.
        force: replace an index that is there.
        resume: go on with an interrupted build of the same arguments.
        progress: True for bars (tqdm where installed, lines on stderr otherwise), or a callable ``(stage,
            done, total, unit)``, called in the calling thread.
        degree: most neighbours of a node, R; 64.
        build_list: beam length of the build, L; 128.
        alpha: how much longer than a detour an edge may be; 1.2.
        passes: how often every row is inserted; 1.
        code_bytes: bytes of a vector's code; max(32, d / 4).
        code_kind: ``"opq"``, ``"pq"`` or ``"residual-opq"``.
        codes: ``"ram"``, or ``"disk"``: each block carries the codes of all neighbours, which takes a quarter
            of the RAM and three times the disk.
        head_share: share of the rows in the head graph.
        pack: put nodes that are near in the graph into the same blocks.
        compress: plan with compressed neighbour lists.
        nodes_per_block: None picks.
        pages_per_block: of 4 KiB; None picks.
        exact_points: build on floats even where bytes would do.
        cells: build the graph in at least so many overlapping parts; None for as many as `ram_budget` asks
            for.
        calibration_queries: rows that measure the recall curve; 0 for no curve (`search` then needs
            ``search_list``, or ``nprobe``).
        clusters: of a hybrid-ivf; 4 times the square root of the rows.
        plan: which local index the clusters of a hybrid-ivf get: ``"auto"`` (the one that costs least,
            cluster by cluster), ``"uniform-flat"``, ``"uniform-graph"`` or ``"uniform-ivf"``.
        search_budget: bytes of RAM that searches of a hybrid-ivf will have, as int or text: decides which
            clusters are scanned, divided or graphs; None for as little as there can be.
        profile: file with what reads and distances cost here, from ``stratann profile``; None to measure
            now, which takes 12 seconds.
        nav_samples: sampled vectors in the navigation graph of a hybrid-ivf, for each cluster; 2.

    Raises:
        InputError: a wrong argument or bad row; the message names it.
        BudgetError: `ram_budget` cannot work; the message names the smallest that does.
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
            options["ids"] = None if ids is None else os.fspath(ids)  # type: ignore[arg-type]
            report = _stratann.build(vectors, os.fspath(path), options, on_progress)
        else:
            report = _build_with_ids(vectors, path, options, on_progress, checked_ids(ids))  # type: ignore[arg-type]
    return BuildReport(**json.loads(report))


def checked_ids(ids: ArrayLike) -> NDArray[Any]:
    """One id per row, as integers of 64 bits."""
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise InputError(f"ids have shape {array.shape} and dtype {array.dtype}; pass one uint64 per row")
    # Signed ids stay signed: the engine names the row of a negative one.
    return array.astype("<u8" if array.dtype.kind == "u" else "<i8", copy=False)


def _build_with_ids(
    vectors: Any, path: Path, options: dict[str, Any], on_progress: Any, ids: NDArray[Any]
) -> str:
    """The engine takes ids as a file, which is read once and needs no memory of its own in a build out of
    core.
    """
    with tempfile.TemporaryDirectory(prefix="stratann-") as folder:
        file = os.path.join(folder, "ids.npy")
        np.save(file, ids)
        options["ids"] = file
        try:
            return _stratann.build(vectors, os.fspath(path), options, on_progress)
        except InputError as e:
            raise InputError(str(e).replace(file, "ids")) from None


def groundtruth(
    base: ArrayLike | Path,
    queries: ArrayLike | Path,
    k: int = 100,
    metric: str = "l2",
    *,
    ram_budget: int | str | None = "2GiB",
    threads: int | None = None,
    progress: Progress = None,
) -> Neighbors:
    """The exact `k` nearest rows of `base` for every query, by comparing all of them.

    Args:
        base: as in `build`.
        queries: an array of shape (nq, d), or a vector file, of the element type of `base` (float32 and
            float16 may mix).
        k: neighbours wanted. With fewer rows than that, there are as many columns as rows.
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
            k,
            metric,
            byte_size(ram_budget, "ram_budget"),
            threads,
            on_progress,
        )
    return Neighbors(ids.astype(np.uint64).reshape(-1, columns), distances.reshape(-1, columns))
