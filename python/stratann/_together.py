"""Searches of several indexes as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from numpy.typing import ArrayLike

from . import _stratann
from ._arrays import as_bytes
from ._errors import InputError
from ._filters import Filter, named_ids
from ._index import Index
from ._parameters import search_parameters
from ._progress import Progress, listening
from ._results import SearchResult, result_of


def search_together(
    indexes: Sequence[Index],
    queries: ArrayLike,
    k: int = 10,
    recall: float | None = None,
    *,
    # parameters: together
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
    only: Filter = None,
    without: Filter = None,
    partial: bool = False,
    progress: Progress = None,
    **unknown: NoReturn,
) -> SearchResult:
    """Searches several open indexes as one: the `k` nearest vectors of each query in all of them.

    Every thread has queries of all indexes in flight. Their kinds may differ. Ids are those of the indexes: a vector
    that two of them hold under one id is found once.

    Args:
        indexes: 1 to 64 open indexes with equal dimension, dtype and metric.
        queries: as in `Index.search`: shape (nq, d), or (d,) for one query.
        k: results per query.
        recall: target recall@k of all indexes together; 0.95 unless `search_list` or `nprobe` is given.
        Other parameters are as in `Index.search`, for each index that has them; `in_flight` is divided over them.
        only: return only rows with these ids, of shape (n,), in any order; or a list of such ids for each query. Each
            index takes those that it has. A mask is refused, because the indexes have rows of their own.
        without: return no row with these ids, given as in `only`.
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
    how = search_parameters(locals())
    if not indexes:
        raise InputError("no index is given; pass 1 to 64 open indexes")
    other = next((index for index in indexes if not isinstance(index, Index)), None)
    if other is not None:
        raise InputError(f"indexes holds a {type(other).__name__}; pass indexes that `open` returned")
    first = indexes[0]
    rows = first._queries(queries)
    asked = named_ids(only, without, len(rows), "several indexes have rows of their own")
    with listening(progress) as on_progress:
        answers = _stratann.search_together(
            [index._index for index in indexes], as_bytes(rows), how, asked, partial, on_progress
        )
    result = result_of(answers)
    if partial:
        result.stats["failed"] = answers["failed"]
    elif asked is None or answers["short"] or answers["failed"]:
        first._check_complete(result, answers["failed"])
    return result
