"""Filters of a benchmark: the rows that match, the queries that are asked, and the exact answers among the rows."""
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import vectors

PERCENTS = (100, 50, 10, 1, 0.1, 0.01)
# Rows drawn at random, nearest to a query, and farthest from it.
PLACES = ("random", "near", "far")
# No filter at all: what a filter costs is measured against it.
UNFILTERED = "none"
BLOCK_ROWS = 16384


@dataclass(frozen=True)
class Task:
    """One filter with its queries. `rows` and `only` are None where nothing is filtered."""

    name: str
    place: str
    percent: float
    matches: int
    k: int                           # results of a query: as many as match, up to the k of the benchmark
    count: int                       # queries
    rows: np.ndarray | None
    only: Path | None                # the ids, as a file
    queries: Path
    truth: Path


def name_of(place, percent):
    return f"{place}-{percent:g}"


def names(percents=PERCENTS):
    """Names of all tasks. All rows are the nearest and the farthest alike, so that filter is asked once for both."""
    filtered = [(place, percent) for place in PLACES for percent in percents if (place, percent) != ("far", 100)]
    return [UNFILTERED, *(name_of(place, percent) for place, percent in filtered)]


def name_in(place, percent):
    """Name of the task that stands for a place and a share of the rows."""
    return name_of("near" if (place, percent) == ("far", 100) else place, percent)


def distances(rows, queries, metric):
    """Distances in float64, (nq, n): squared l2, minus the inner product, or 1 - cosine."""
    rows, queries = (np.asarray(x, np.float64) for x in (rows, queries))
    if metric == "cosine":
        rows, queries = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30) for x in (rows, queries))
        return 1 - queries @ rows.T
    if metric == "ip":
        return -(queries @ rows.T)
    return np.sum(queries**2, axis=1)[:, None] - 2 * (queries @ rows.T) + np.sum(rows**2, axis=1)[None]


def nearest(base, rows, queries, metric, k):
    """The k nearest of some rows (ascending ids): (ids, distances) of shape (nq, k); of equal ones the first rows."""
    best_ids, best = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0))
    for start in range(0, len(rows), BLOCK_ROWS):
        ids = rows[start:start + BLOCK_ROWS]
        here = distances(base[ids], queries, metric)
        best = np.concatenate([best, here], axis=1)
        best_ids = np.concatenate([best_ids, np.broadcast_to(ids, here.shape)], axis=1)
        first = np.stack([first_of(line, min(k, best.shape[1])) for line in best])
        best, best_ids = (np.take_along_axis(x, first, axis=1) for x in (best, best_ids))
    return best_ids, best


def first_of(line, k):
    """Positions of the k smallest values, ascending; of equal ones the first."""
    last = np.partition(line, k - 1)[k - 1]
    candidates = np.flatnonzero(line <= last)
    return candidates[np.argsort(line[candidates], kind="stable")[:k]]


def order_from(base, query, metric):
    """All rows by their distance from a query, ascending."""
    blocks = [distances(base[at:at + BLOCK_ROWS], query[None], metric)[0] for at in range(0, len(base), BLOCK_ROWS)]
    return np.argsort(np.concatenate(blocks), kind="stable")


def rows_of(place, percent, orders):
    """Ascending ids of the rows that match: the first of the order of a place."""
    order = orders[place]
    return np.sort(order[:max(1, round(len(order) * percent / 100))])


def make(base_file, query_file, metric, k, folder, counts, seed):
    """Writes filters, queries and exact answers under `folder`; returns the tasks.

    `counts` are the queries of random filters, the first of the set, and those of the others: the nearest to the first
    query, around which these filters are made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base, queries = vectors.open_vectors(base_file), vectors.open_vectors(query_file)
    if queries.shape[1] != base.shape[1] or queries.dtype != base.dtype:
        raise vectors.DataError(f"{query_file}: {queries.dtype} x {queries.shape[1]}, but the base is {base.dtype} x "
                                f"{base.shape[1]}; they must agree")
    around = order_from(queries, np.asarray(queries[0]), metric)[:counts[1]]
    asked = {"random": queries[:counts[0]], "near": queries[np.sort(around)]}
    asked["far"], asked[UNFILTERED] = asked["near"], asked["random"]
    by_distance = order_from(base, np.asarray(queries[0]), metric)
    orders = {"random": np.random.default_rng(seed).permutation(len(base)), "near": by_distance,
              "far": by_distance[::-1]}
    tasks = []
    for name in names():
        place, _, percent = name.partition("-")
        percent = float(percent or 100)
        rows = None if place == UNFILTERED else rows_of(place, percent, orders)
        tasks.append(written(Spot(folder, name, place, percent), base, asked[place], rows, metric, k, base_file.suffix))
    return tasks


@dataclass(frozen=True)
class Spot:
    """Where a task's files are, and what it is called."""

    folder: Path
    name: str
    place: str
    percent: float


def written(spot, base, queries, rows, metric, k, suffix):
    """One task, its files written."""
    of = np.arange(len(base)) if rows is None else rows
    k = min(k, len(of))
    asked, truth = spot.folder / f"queries-{spot.name}{suffix}", spot.folder / f"truth-{spot.name}.ibin"
    only = None if rows is None else spot.folder / f"only-{spot.name}.npy"
    vectors.write_vectors(asked, queries)
    vectors.write_groundtruth(truth, *nearest(base, of, np.asarray(queries), metric, k))
    if only:
        np.save(only, rows.astype(np.uint64))
    return Task(spot.name, spot.place, spot.percent, len(of), k, len(queries), rows, only, asked, truth)


def digest(tasks):
    """Identity of the filters: an index with a column for each filter is of these alone."""
    text = hashlib.sha256()
    for task in tasks:
        text.update(task.name.encode() + (b"" if task.rows is None else task.rows.tobytes()))
    return text.hexdigest()[:16]
