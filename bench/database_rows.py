"""Points of the benchmark of databases: vectors of a file, payloads by a seed, filters, changes, and exact answers.

Every payload has a keyword field for each share of the rows: of the 10 values of `of_10` each matches 10 % of them. It
also has a number and a title, which nothing filters by.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import filter_tasks
import numpy as np
import vectors

# Field: number of its values, each of which as many rows have.
FIELDS = {"of_2": 2, "of_10": 10, "of_100": 100, "of_1000": 1000}
UNFILTERED = "none"
# What is asked once more after changes.
LATER = (UNFILTERED, "of_10")
# Queries ask for these values of a field in turn, so that no database answers from what it kept of one filter.
VALUES_ASKED = 8
WORDS = ("amber basalt cedar delta ember fjord garnet harbour indigo jasper kelp lagoon maple nectar olive pebble "
         "quartz russet saffron tundra umber velvet willow yarrow zephyr").split()
TITLE_WORDS = 8


class Rows:
    """The first `n` vectors of a file, each with a payload. Equal seeds give equal payloads."""

    def __init__(self, base, n, seed):
        self.base, self.n = Path(base), n
        (self.rows, self.dim), self.dtype = self.shape()
        rng = np.random.default_rng(seed)
        self.values = {field: rng.permutation(n) % count for field, count in FIELDS.items()}
        self.price = rng.integers(100, 100_000, n)
        self.words = rng.integers(0, len(WORDS), (n, TITLE_WORDS), np.uint8)

    def shape(self):
        found = vectors.open_vectors(self.base)
        if self.n > len(found):
            raise vectors.DataError(f"{self.base}: has {len(found)} vectors, {self.n} were asked for")
        return found.shape, found.dtype

    def vectors(self, first, end):
        """Rows of the file as float32. They are read, not mapped: a mapped file would count as memory."""
        offset = vectors.HEADER_BYTES + first * self.dim * self.dtype.itemsize
        read = np.fromfile(self.base, self.dtype, (end - first) * self.dim, offset=offset)
        return np.asarray(read.reshape(-1, self.dim), np.float32)

    def some_vectors(self, ids):
        return np.concatenate([self.vectors(i, i + 1) for i in ids])

    def payload(self, i):
        named = {field: value_of(values[i]) for field, values in self.values.items()}
        return named | {"price": float(self.price[i]) / 100, "title": " ".join(WORDS[w] for w in self.words[i])}

    def payloads(self, ids):
        return [self.payload(i) for i in ids]


def value_of(number):
    return f"v{number}"


def values_asked(field, queries):
    """Numbers of the value that each query asks for; None without a filter."""
    return None if field == UNFILTERED else [i % min(FIELDS[field], VALUES_ASKED) for i in range(queries)]


def names():
    return [UNFILTERED, *FIELDS]


def percent_of(name):
    return 100 if name == UNFILTERED else 100 / FIELDS[name]


class Churn:
    """Half of the changed rows are deleted; the other half is overwritten with what the deleted ones were."""

    def __init__(self, n, percent, seed):
        half = max(1, round(n * percent / 200))
        order = np.random.default_rng([seed, 1]).permutation(n)
        self.deleted, self.overwritten = order[:half], order[half:2 * half]
        # Row of the file that is under each id; -1 under none.
        self.content = np.arange(n)
        self.content[self.overwritten] = self.deleted
        self.content[self.deleted] = -1


@dataclass(frozen=True)
class Task:
    """One filter: the value that each query asks for, and the exact answers, as a file."""

    name: str
    path: Path
    k: int
    matches: int                     # rows that a query's filter lets through, on average


def make_tasks(rows, queries, metric, k, folder, content=None):
    """Writes the exact answers of every filter; returns {name: task}. `content` is that of `Churn`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = np.arange(rows.n) if content is None else content
    ids = np.flatnonzero(content >= 0)
    of = content[ids]
    base = rows.vectors(0, rows.n)
    tasks = {}
    for name in names():
        asked = values_asked(name, len(queries))
        truth, matches = [None] * len(queries), []
        for value in sorted(set(asked or [0])):
            chosen = np.arange(len(ids)) if asked is None else np.flatnonzero(rows.values[name][of] == value)
            at = [i for i in range(len(queries)) if asked is None or asked[i] == value]
            found = filter_tasks.nearest(base, of[chosen], queries[at], metric, k)[0] if len(chosen) else [[]] * len(at)
            under = dict(zip(of[chosen].tolist(), ids[chosen].tolist(), strict=True))
            for i, line in zip(at, found, strict=True):
                truth[i] = [under[int(row)] for row in line]
                matches.append(len(chosen))
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"name": name, "k": k, "values": asked, "truth": truth}))
        tasks[name] = Task(name, path, k, round(sum(matches) / len(matches)))
    return tasks
