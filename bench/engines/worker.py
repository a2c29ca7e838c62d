"""The process that runs one database: JSON commands on stdin, JSON replies on stdout, one line each.

Commands: ``start`` (the job), ``create``, ``load``, ``ready``, ``open``, ``task`` (a filter and its exact answers),
``run`` (one setting), ``churn``, ``compact``, ``measure`` (memory and disk), ``close``, ``quit``.  A reply holds
``error`` when the command failed, ``missing`` when the database is not installed.
"""
import gc
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import database_rows
import numpy as np
import vectors
from peers.worker import bind_to_cores, cpu_seconds, percentiles, status_bytes

BLOCK_BYTES = 512
WARM_QUERIES = 16
# Usual parameters of a graph, for all that have one.
HNSW_M, HNSW_BUILD_LIST = 16, 200


@dataclass(frozen=True)
class Only:
    """A filter: points whose keyword field has this value."""

    field: str
    value: str


class Engine:
    """Interface of a database.  `job` has folder, dim, metric, dtype, k and the engine's own options."""

    # What has survived when a write has returned.
    promise = ""
    # Of the time of writes, what calls took that only make them durable; None where a write is durable, or cannot be.
    flush_seconds = None

    def __init__(self, job):
        self.job = job
        self.folder = Path(job["folder"])

    def version(self):
        raise NotImplementedError

    def details(self):
        """Settings worth recording."""
        return {}

    def create(self):
        """Make an empty database, with the indexes of payload fields where they can be made before the rows."""
        raise NotImplementedError

    def write(self, ids, rows, payloads):
        """Insert new points: (n,) ids, (n, d) float32, n dicts."""
        raise NotImplementedError

    def overwrite(self, ids, rows, payloads):
        """Replace points."""
        self.write(ids, rows, payloads)

    def delete(self, ids):
        raise NotImplementedError

    def make_ready(self):
        """Build all indexes over all points, and wait for it."""
        raise NotImplementedError

    def compact(self):
        """What the database offers after many changes."""
        self.make_ready()

    def open(self):
        """Open what was made, in a new process."""
        raise NotImplementedError

    def close(self):
        raise NotImplementedError

    def search_one(self, query, only, setting):
        """Ids of the k nearest of one query, (d,)."""
        raise NotImplementedError

    # Engines with searches of several queries have `search_many(queries, only, setting)`: ids of each.
    search_many = None

    def use(self, setting):
        """Called before the searches of a setting, outside of the time."""

    def cpu_seconds(self):
        return cpu_seconds()

    def rss_bytes(self):
        return status_bytes("VmRSS")

    def log_paths(self):
        """Files and folders of logs and reserves, below the folder of the database."""
        return []


def disk_bytes(place):
    """Bytes that a file, or the files of a folder, take on disk: holes of sparse files do not count."""
    total = 0
    for path in [Path(place), *Path(place).rglob("*")]:
        try:
            total += path.stat().st_blocks * BLOCK_BYTES if path.is_file() else 0
        except FileNotFoundError:        # removed meanwhile
            continue
    return total


class Watch:
    """Wall and processor time of a block."""

    def __init__(self, engine):
        self.engine = engine

    def __enter__(self):
        self.start, self.cpu = time.perf_counter(), self.engine.cpu_seconds()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.start
        self.cpu_seconds = self.engine.cpu_seconds() - self.cpu

    def record(self):
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


class Session:
    """What a worker has open."""

    def __init__(self, make_engine, job):
        bind_to_cores(1)
        self.job = job
        self.engine = make_engine(job)
        self.rows = database_rows.Rows(job["base"], job["rows"], job["seed"])
        self.queries = np.asarray(vectors.open_vectors(job["queries"])[:job["query_count"]], np.float32)
        self.content = np.arange(self.rows.n)
        self.baseline = self.engine.rss_bytes()

    def start(self):
        modes = ["one"] + (["batch"] if self.engine.search_many else [])
        return {"version": self.engine.version(), "details": self.engine.details(), "modes": modes,
                "promise": self.engine.promise}

    def create(self):
        self.engine.create()
        return {"disk_bytes": disk_bytes(self.engine.folder)}

    def changes(self, ids, content, change):
        """Time of changes in batches, each of which has returned before the next one begins."""
        batches, each = [], self.job["batch_rows"]
        cpu = self.engine.cpu_seconds()
        for first in range(0, len(ids), each):
            some, of = ids[first:first + each], content[first:first + each]
            given = change(some, of)
            start = time.perf_counter()
            given()
            batches.append(time.perf_counter() - start)
        return {"rows": len(ids), "seconds": sum(batches), "cpu_seconds": self.engine.cpu_seconds() - cpu,
                "flush_seconds": self.engine.flush_seconds, "batch_us": percentiles(np.array(batches) * 1e6)}

    def load(self):
        everything = np.arange(self.rows.n)

        def write(ids, _):
            rows, payloads = self.rows.vectors(ids[0], ids[-1] + 1), self.rows.payloads(ids)
            return lambda: self.engine.write(ids, rows, payloads)

        return self.changes(everything, everything, write)

    def ready(self):
        with Watch(self.engine) as watch:
            self.engine.make_ready()
        return watch.record()

    def open(self):
        """Time from opening to the first answer; packages are imported already."""
        with Watch(self.engine) as watch:
            self.engine.open()
            found = self.engine.search_one(self.queries[0], None, self.job["settings"][0])
        if len(found) != self.job["k"]:
            raise ValueError(f"the first search found {len(found)} points, {self.job['k']} were wanted")
        return watch.record()

    def churn(self):
        changed = database_rows.Churn(self.rows.n, self.job["churn_percent"], self.job["seed"])

        def overwrite(ids, of):
            rows, payloads = self.rows.some_vectors(of), self.rows.payloads(of)
            return lambda: self.engine.overwrite(ids, rows, payloads)

        deleted = self.changes(changed.deleted, changed.deleted, lambda ids, _: lambda: self.engine.delete(ids))
        overwritten = self.changes(changed.overwritten, changed.deleted[:len(changed.overwritten)], overwrite)
        self.content = changed.content
        return {"deleted": deleted, "overwritten": overwritten}

    def compact(self):
        with Watch(self.engine) as watch:
            self.engine.compact()
        return watch.record()

    def measure(self):
        logs = sum(disk_bytes(path) for path in self.engine.log_paths())
        return {"rss_bytes": self.engine.rss_bytes(), "baseline_rss_bytes": self.baseline,
                "disk_bytes": disk_bytes(self.engine.folder), "log_bytes": logs}

    def task(self, path):
        document = json.loads(Path(path).read_text())
        self.truth, values, name = document["truth"], document["values"], document["name"]
        self.asked = [None if values is None else Only(name, database_rows.value_of(v))
                      for v in values or [None] * len(self.queries)]
        return {}

    def run(self, setting, mode, min_seconds):
        """One measured setting: all queries at least once, for at least `min_seconds`."""
        ask = self.ask_one if mode == "one" else self.ask_many
        self.engine.use(setting)
        for i in range(min(WARM_QUERIES, len(self.queries))):
            self.engine.search_one(self.queries[i], self.asked[i], setting)
        gc.disable()
        done, samples = 0, []
        with Watch(self.engine) as watch:
            start = time.perf_counter()
            while not done or time.perf_counter() - start < min_seconds:
                found = ask(setting, samples)
                done += len(self.queries)
        gc.enable()
        hits, few = self.checked(found)
        return {"setting": setting, "recall": hits / sum(map(len, self.truth)), "few_results": few,
                "qps": done / watch.seconds, "cpu_us": 1e6 * watch.cpu_seconds / done,
                "latency_us": percentiles(samples) if samples else None, "rss_bytes": self.engine.rss_bytes()}

    def ask_one(self, setting, samples):
        found = []
        for query, only in zip(self.queries, self.asked, strict=True):
            start = time.perf_counter()
            found.append(self.engine.search_one(query, only, setting))
            samples.append(1e6 * (time.perf_counter() - start))
        return found

    def ask_many(self, setting, _):
        """A call for all queries with the same filter."""
        groups = {}
        for i, only in enumerate(self.asked):
            groups.setdefault(only, []).append(i)
        found = [None] * len(self.queries)
        for only, at in groups.items():
            for i, ids in zip(at, self.engine.search_many(self.queries[at], only, setting), strict=True):
                found[i] = ids
        return found

    def checked(self, found):
        """(true neighbours found, queries with too few results); a point that does not match is an error."""
        hits = few = 0
        for ids, truth, only in zip(found, self.truth, self.asked, strict=True):
            ids = [int(i) for i in ids]
            of = self.content[ids]
            if len(set(ids)) < len(ids) or (of < 0).any():
                raise ValueError("a search returned a deleted point, or a point twice")
            if only and any(database_rows.value_of(v) != only.value for v in self.rows.values[only.field][of]):
                raise ValueError("a search returned a point that does not match its filter")
            hits += len(set(ids) & set(truth))
            few += len(ids) < len(truth)
        return hits, few

    def close(self):
        self.engine.close()
        return {}


def answer(state, message, make_engine):
    command = message.pop("command")
    if command == "start":
        state["session"] = Session(make_engine, message)
        return state["session"].start()
    return getattr(state["session"], command)(**message)


def serve(make_engine):
    """Answer commands until `quit` or the end of stdin; then the database is closed."""
    # Libraries print to stdout from C++: keep the real one for replies, and send theirs to the log.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    state = {}
    try:
        for line in sys.stdin:
            message = json.loads(line)
            if message["command"] == "quit":
                break
            try:
                reply = answer(state, message, make_engine)
            except ImportError as e:
                reply = {"missing": str(e)}
            except Exception as e:  # whatever a library throws is the database's failure, not the comparison's
                traceback.print_exc()
                reply = {"error": f"{type(e).__name__}: {e}".splitlines()[0]}
            print(json.dumps(reply), file=replies)
    finally:
        if "session" in state:
            state["session"].close()
