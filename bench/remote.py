#!/usr/bin/env python3
"""A `remote-hnsw` beside hnswlib, and its memory nodes beside its folder.

    bench/.venv/bin/python bench/remote.py base.u8bin query.u8bin --groundtruth truth.ibin --out remote.json

Measures, with one thread and batches of 2,000 queries:
- one cluster (an HNSW of all vectors) in the cache, and hnswlib with the same M and efConstruction at equal recall;
- many clusters in the cache, from memory nodes and from the folder;
- a cache for a tenth of the clusters over tcp and shm, beside the smaller of the cached search and what the link
  carries;
- the share of the smaller of transfer and search that overlap hides;
- the first answer of a new compute node, and the bytes of the meta-HNSW and of the region.
Rounds alternate between what is compared, and medians are compared. The first two are compared by processor time, which
depends less on what else the machine does: nothing waits there. Where transfers are timed the machine must be idle.
Exit codes: 0 done, 1 something failed.
"""
import argparse
import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from program import run
from vectors import DataError, open_vectors, read_groundtruth, recall, unit_rows, write_vectors

ROOT = Path(__file__).resolve().parent.parent
EFS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PEER_EFS = (10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--groundtruth", type=Path, required=True)
    parser.add_argument("--metric", choices=("l2", "cosine"), default="l2")
    parser.add_argument("--recall", type=float, default=0.95, help="recall that is compared at (%(default)s)")
    parser.add_argument("-M", type=int, default=16)
    parser.add_argument("--ef-construction", type=int, default=200)
    parser.add_argument("--index", type=Path, help="a remote-hnsw of the same vectors [default: built here]")
    parser.add_argument("--one-cluster", type=Path, help="one with --partitions 1 [default: built here]")
    parser.add_argument("--no-peer", action="store_true", help="leave out hnswlib and the index of one cluster")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=8790, help="port of the memory node (%(default)s)")
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann-lab")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


def median(values):
    return statistics.median(values)


class Bench:
    """State that all measurements share."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.key = folder / "key"
        self.key.write_text(secrets.token_hex(32) + "\n")
        self.key.chmod(0o600)

    def build(self, name, *more):
        args, index = self.args, self.folder / name
        words = ["build", args.base, "-o", index, "--kind", "remote-hnsw", "--metric", args.metric, "-M", args.M]
        run(args.stratann, *words, "--ef-construction", args.ef_construction, *more, "--json")
        return index

    def info(self, index):
        return run(self.args.stratann, "info", index, "--json")

    def search(self, where, *more, cache=None, runs=1, effort=("--nprobe", "1"), queries=None):
        """The last of several runs of one process: what it caches is in the cache by then."""
        option, value = effort
        words = ["search", *where, queries or self.args.queries, "--groundtruth", self.args.groundtruth, "--threads", 1]
        words += [option, ",".join([str(value)] * runs), "--show", 0, "--json", *more]
        if cache is not None:
            words += ["--cache-budget", cache]
        if queries is not None:
            words = [word for word in words if word not in ("--groundtruth", self.args.groundtruth)]
        return run(self.args.stratann, *words)["runs"][-1]

    @contextlib.contextmanager
    def memory_node(self, index):
        """Serves an index over tcp and shm. Yields both addresses, by name."""
        args, name = self.args, f"stratann-bench-{os.getpid()}"
        stored = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        words = [args.stratann, "memory-node", "--size", 2 * stored + (64 << 20), "--listen", f"127.0.0.1:{args.port}"]
        words += ["--key-file", self.key, "--shm", name, "--until-eof", "--json"]
        node = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            if not node.stdout.readline():
                raise RuntimeError("the memory node has not started")
            tcp = f"127.0.0.1:{args.port}"
            run(args.stratann, "memory-node", "load", index, "--nodes", tcp, "--key-file", self.key, "--json")
            yield {"tcp": tcp, "shm": f"shm:{name}"}
        finally:
            node.stdin.close()
            node.wait(timeout=30)


def peer(args, floats):
    """An index of hnswlib, with its build."""
    import hnswlib

    index = hnswlib.Index("cosine" if args.metric == "cosine" else "l2", floats.shape[1])
    index.init_index(len(floats), ef_construction=args.ef_construction, M=args.M, random_seed=1)
    index.add_items(floats)
    return index


def peer_run(index, asked, truth, ef):
    """Queries in a second of the processor, and recall."""
    index.set_ef(ef)
    started = time.process_time()
    found, _ = index.knn_query(asked, k=10, num_threads=1)
    return len(asked) / (time.process_time() - started), recall(found, truth[:, :10])


def at_recall(points, wanted):
    """Queries a second at a recall, between the two measured points around it."""
    points = sorted(points)
    for (low, slow), (high, fast) in itertools.pairwise(points):
        if low <= wanted <= high and high > low:
            return slow + (fast - slow) * (wanted - low) / (high - low)
    return None


def beside_hnswlib(bench, truth):
    args = bench.args
    index = args.one_cluster or bench.build("one.idx", "--partitions", 1, "--calibration-queries", 0)
    floats = np.asarray(open_vectors(args.base), np.float32)
    asked = np.asarray(open_vectors(args.queries), np.float32)
    if args.metric == "cosine":
        floats, asked = unit_rows(floats), unit_rows(asked)
    other = peer(args, floats)
    del floats

    def own_run(ef):
        found = bench.search([index], "--ef", ef, cache="16GiB", runs=2)
        return 1e6 / found["cpu_us"], found["recall"]

    # The shortest beam that reaches the recall.
    for ef in EFS:
        _, reached = own_run(ef)
        if reached >= args.recall:
            break
    ratios, ours, theirs = [], [], []
    for _ in range(args.rounds):
        points = [peer_run(other, asked, truth, at)[::-1] for at in PEER_EFS]
        qps, reached = own_run(ef)
        other_qps = at_recall(points, reached)
        if other_qps is None:
            raise RuntimeError(f"hnswlib does not reach a recall of {reached} with these lengths of the beam")
        ours.append(qps)
        theirs.append(other_qps)
        ratios.append(qps / other_qps)
    return {"ef": ef, "recall": reached, "qps": median(ours), "hnswlib_qps": median(theirs), "ratio": median(ratios)}


def remote(address, bench):
    return ["--memory", address, "--key-file", bench.key]


def cached(bench, index, nodes, effort):
    """Everything in the cache: from memory nodes and from the folder."""
    rounds = {"folder": [], **{name: [] for name in nodes}}
    walls = {name: [] for name in rounds}
    for _ in range(bench.args.rounds):
        for name, all_qps in rounds.items():
            where = [index] if name == "folder" else remote(nodes[name], bench)
            found = bench.search(where, cache="16GiB", runs=3, effort=effort)
            all_qps.append(1e6 / found["cpu_us"])
            walls[name].append(found["qps"])
    row = {f"{name}_qps": median(all_qps) for name, all_qps in walls.items()}
    row.update({f"{name}_qps_of_processor": median(all_qps) for name, all_qps in rounds.items()})
    for name in nodes:
        row[f"{name}_ratio"] = median(
            own / local for own, local in zip(rounds[name], rounds["folder"], strict=True)
        )
    row["recall"] = found["recall"]
    return row


def busy_us(found):
    """Computing time of a query."""
    return found["stage_us"]["route"] + found["stage_us"]["verify"]


def tenth(bench, index, nodes, effort, local_qps):
    """A cache for a tenth of the clusters, over each transport."""
    cache = bench.info(index)["remote"]["cluster_bytes"] // 10
    rows = {}
    for name, address in nodes.items():
        where, own, apart, rates, hidden = remote(address, bench), [], [], [], []
        for _ in range(bench.args.rounds):
            found = bench.search(where, cache=cache, runs=3, effort=effort)
            stepped = bench.search(where, "--baseline", "no-overlap", cache=cache, runs=3, effort=effort)
            # Beams of one, so that hardly anything but transfer is left.
            bare = bench.search(where, "--baseline", "no-overlap", "--ef", 1, cache=0, runs=2, effort=effort)
            bytes_read = bare["per_query"]["bytes_read"]
            rates.append(bytes_read / (1e6 / bare["qps"] - busy_us(bare)) * 1e6)
            own.append(found["qps"])
            apart.append(stepped["qps"])
            search = busy_us(stepped)
            transfer = 1e6 / stepped["qps"] - search
            hidden.append((1e6 / stepped["qps"] - 1e6 / found["qps"]) / min(search, transfer))
        counters = found["per_query"]
        link_qps = median(rates) / counters["bytes_read"]
        most = min(local_qps, link_qps)
        rows[name] = {
            "qps": median(own),
            "qps_without_overlap": median(apart),
            "search_us": search,
            "transfer_us": transfer,
            "hidden_share": median(hidden),
            "link_bytes_per_second": median(rates),
            "link_qps": link_qps,
            "ratio": median(own) / most,
            "limit": "link" if link_qps < local_qps else "search",
            **{key: counters[key] for key in ("round_trips", "bytes_read", "reads", "cache_hits", "clusters")},
            "recall": found["recall"],
        }
    return rows


def first_answer(bench, nodes):
    """Seconds from the start of a compute node to its first answer, its end included."""
    args = bench.args
    one = bench.folder / f"one{args.queries.suffix}"
    write_vectors(one, open_vectors(args.queries)[:1])
    times = {name: [] for name in nodes}
    for _ in range(args.rounds):
        for name, address in nodes.items():
            started = time.perf_counter()
            bench.search(remote(address, bench), queries=one, cache=0)
            times[name].append(time.perf_counter() - started)
    return {name: median(all_times) for name, all_times in times.items()}


def sizes(bench, index):
    """Bytes of the meta-HNSW, and of the region beside raw vectors, graphs and room for fresh records."""
    info = bench.info(index)
    facts = info["remote"]
    region = next(index.rglob("*.blocks"), None) or max(index.rglob("*"), key=lambda path: path.stat().st_size)
    overflow = facts["groups"] * facts["capacity"] * facts["record_bytes"]
    parts = facts["cluster_bytes"] + overflow
    raw = open_vectors(bench.args.base)
    return {
        "meta_bytes": facts["meta_bytes"],
        "region_bytes": region.stat().st_size,
        "cluster_bytes": facts["cluster_bytes"],
        "raw_vector_bytes": int(raw.shape[0]) * int(raw.shape[1]) * raw.dtype.itemsize,
        "overflow_bytes": overflow,
        "over_parts": region.stat().st_size / parts,
    }


def main(argv):
    args = arguments(argv)
    found = {"base": str(args.base), "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        if not args.no_peer:
            queries = len(open_vectors(args.queries))
            truth = read_groundtruth(args.groundtruth, queries, 10)
            found["hnswlib"] = beside_hnswlib(bench, truth)
            print("hnswlib", json.dumps(found["hnswlib"]), flush=True)
        index = args.index or bench.build("remote.idx")
        effort = ("--recall", args.recall)
        found["sizes"] = sizes(bench, index)
        print("sizes", json.dumps(found["sizes"]), flush=True)
        with bench.memory_node(index) as nodes:
            found["first_answer_seconds"] = first_answer(bench, nodes)
            print("first answer", json.dumps(found["first_answer_seconds"]), flush=True)
            found["cached"] = cached(bench, index, nodes, effort)
            print("all cached", json.dumps(found["cached"]), flush=True)
            found["tenth_cached"] = tenth(bench, index, nodes, effort, found["cached"]["folder_qps"])
            print("a tenth cached", json.dumps(found["tenth_cached"]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DataError, RuntimeError, ImportError, OSError) as e:
        print(f"remote.py: {e}", file=sys.stderr)
        sys.exit(1)
