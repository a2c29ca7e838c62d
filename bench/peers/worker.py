"""The process that runs one peer: JSON commands on stdin, JSON replies on stdout, one line each.

Commands: ``build`` and ``load`` (the job), ``filter`` (other queries, and the rows that may be returned), ``run`` (one
setting), ``quit``.  A reply holds ``error`` when the command failed, ``missing`` when the peer's package is not
installed.  Build and search run in two processes, so that the peak memory of one does not hide the other's.
"""
import gc
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import vectors

PAGE_BYTES = 4096


def status_bytes(field):
    """A memory figure of this process from /proc/self/status (VmHWM, VmRSS), in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def disk_bytes_read():
    """Bytes this process had fetched from storage; O_DIRECT counts, page-cache hits do not."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise KeyError("read_bytes")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def folder_bytes(path):
    return sum(f.stat().st_size for f in Path(path).rglob("*") if f.is_file())


def percentiles(samples_us):
    """mean, p50, p95, p99 of latencies in microseconds."""
    p50, p95, p99 = np.percentile(samples_us, [50, 95, 99])
    return {"mean": float(np.mean(samples_us)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def bind_to_cores(threads):
    """Leave this process as many cores as it may have threads, where a library cannot be told their number."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def column_of(filter_name):
    """Name of a column or a tag that tells which rows match a filter."""
    return "f_" + "".join(c if c.isalnum() else "_" for c in filter_name)


class Peer:
    """Interface of a peer.  `job` has base, metric, threads, k, index_dir, seed and the peer's own options."""

    def __init__(self, job):
        self.job = job
        self.index_dir = Path(job["index_dir"])

    def version(self):
        raise NotImplementedError

    def build(self, base):
        """Build from (n, d) vectors and save under index_dir."""
        raise NotImplementedError

    def load(self):
        """Open what `build` saved, ready to search."""
        raise NotImplementedError

    def search(self, queries, setting, threads):
        """Ids of the k nearest, (nq, k), with `threads` threads."""
        raise NotImplementedError

    def search_one(self, query, setting):
        """Ids for one query of shape (1, d), on one thread."""
        return self.search(query, setting, 1)

    def use_filter(self, name, rows):
        """Prepare searches that return these rows alone, ascending ids; None: all rows."""
        raise NotImplementedError(f"{type(self).__name__} has no search with a filter")

    def index_bytes(self):
        """Size on disk of what a search needs."""
        return folder_bytes(self.index_dir)

    def details(self):
        """Facts about the built index worth recording."""
        return {}


def build(peer, job):
    baseline = status_bytes("VmRSS")
    peer.index_dir.mkdir(parents=True, exist_ok=True)
    start, cpu = time.perf_counter(), cpu_seconds()
    peer.build(vectors.open_vectors(job["base"]))
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": cpu_seconds() - cpu,
        "peak_rss_bytes": status_bytes("VmHWM"),
        "baseline_rss_bytes": baseline,
        "index_bytes": peer.index_bytes(),
        "version": peer.version(),
        "details": peer.details(),
    }


class Session:
    """The search side: queries and ground truth in memory, the index loaded after the baseline was taken."""

    def __init__(self, peer, job):
        self.peer, self.job = peer, job
        self.queries = np.ascontiguousarray(vectors.open_vectors(job["queries"]))
        self.truth = vectors.read_groundtruth(job["groundtruth"], len(self.queries), job["k"])
        self.baseline, self.rows = status_bytes("VmRSS"), None
        peer.load()

    def narrow(self, message):
        """Other queries, and a filter for all of them; `k` is not above the number of rows that match."""
        self.job["k"] = self.peer.job["k"] = message["k"]
        self.queries = np.ascontiguousarray(vectors.open_vectors(message["queries"]))
        self.truth = vectors.read_groundtruth(message["groundtruth"], len(self.queries), message["k"])
        self.rows = np.load(message["only"]).astype(np.int64) if message["only"] else None
        self.peer.use_filter(message["name"], self.rows)

    def few_results(self, ids):
        """Queries with fewer results than wanted, which can be only as many rows as match."""
        results = ids >= 0
        if self.rows is not None and not np.isin(ids[results], self.rows).all():
            raise ValueError("a row that does not match was returned")
        return int(np.count_nonzero(results.sum(axis=1) < self.truth.shape[1]))

    def run(self, setting, min_seconds=None):
        """One measured setting: batches on all threads for at least min_seconds, then single queries."""
        threads, nq = self.job["threads"], len(self.queries)
        min_seconds = self.job["min_seconds"] if min_seconds is None else min_seconds
        self.peer.search(self.queries[:32], setting, threads)  # first-use allocations are not the peer's speed
        gc.disable()
        done, ids = 0, None
        io, cpu, start = disk_bytes_read(), cpu_seconds(), time.perf_counter()
        while ids is None or time.perf_counter() - start < min_seconds:
            ids = self.peer.search(self.queries, setting, threads)
            done += nq
        seconds = time.perf_counter() - start
        cpu, io = cpu_seconds() - cpu, disk_bytes_read() - io
        latency = self.latency(setting)
        gc.enable()
        return {
            "setting": setting,
            "recall": vectors.recall(np.asarray(ids), self.truth),
            "few_results": self.few_results(np.asarray(ids)),
            "qps": done / seconds,
            "queries": done,
            "threads": threads,
            "latency_us": latency,
            "latency_kind": "one query at a time",
            "cpu_us": 1e6 * cpu / done,
            "reads": io / PAGE_BYTES / done,
            "pages_read": io / PAGE_BYTES / done,
            "peak_rss_bytes": status_bytes("VmHWM"),
            "baseline_rss_bytes": self.baseline,
        }

    def latency(self, setting):
        rows = self.queries[:self.job["latency_queries"]]
        if not len(rows):
            return None
        samples = np.empty(len(rows))
        for i in range(len(rows)):
            start = time.perf_counter()
            self.peer.search_one(rows[i:i + 1], setting)
            samples[i] = 1e6 * (time.perf_counter() - start)
        return percentiles(samples)


def answer(state, message, make_peer):
    command = message.pop("command")
    if command == "build":
        return build(make_peer(message), message)
    if command == "load":
        state["session"] = Session(make_peer(message), message)
        return {"loaded": True}
    if command == "filter":
        state["session"].narrow(message)
        return {"filtered": True}
    if command == "run":
        return state["session"].run(**message)
    raise ValueError(f"unknown command '{command}'")


def serve(make_peer):
    """Answer commands until `quit` or the end of stdin."""
    # Libraries print to stdout from C++: keep the real one for replies, and send theirs to the log.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    state = {}
    for line in sys.stdin:
        message = json.loads(line)
        if message["command"] == "quit":
            return
        try:
            reply = answer(state, message, make_peer)
        except ImportError as e:
            reply = {"missing": str(e)}
        except Exception as e:  # whatever a library throws is the peer's failure, not the comparison's
            traceback.print_exc()
            reply = {"error": f"{type(e).__name__}: {e}".splitlines()[0]}
        print(json.dumps(reply), file=replies)
