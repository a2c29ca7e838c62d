#!/usr/bin/env python3
"""A `disk-graph` in memory beside hnswlib: processor time of a query at equal recall, one thread each, in turn.

    bench/.venv/bin/python bench/in_memory.py base.u8bin query.u8bin groundtruth.ibin --metric l2

Both are swept over the length of their beams, `--rounds` times in turn; medians count. Between two beams the time at a
recall is interpolated; a recall that one of them does not reach is left out. hnswlib holds vectors as f32, gets all
queries in one call of one thread, and counts with the better M. The time of opening the index does not count. Each
round searches it twice: the ratio of both times is the noise. With STRATANN_ISA=avx2 instructions of 512 bits are left
out. Exit codes: 0 done, 1 something failed.
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from program import run
from vectors import DataError, open_vectors, read_groundtruth, recall

ROOT = Path(__file__).resolve().parent.parent
EF_CONSTRUCTION = 200


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("groundtruth", type=Path)
    parser.add_argument("--metric", choices=("l2", "cosine"), default="l2")
    parser.add_argument("--index", type=Path, help="an index of base, instead of building one")
    parser.add_argument("--lists", default="10,13,17,22,29,38,50,66,90,128,180", help="beams (%(default)s)")
    parser.add_argument("--ef", default="10,16,24,32,48,64,96,128,192,256", help="beams of hnswlib (%(default)s)")
    parser.add_argument("--m", default="16,32", help="links of hnswlib (%(default)s)")
    parser.add_argument("--recalls", default="0.9,0.95,0.99", help="recalls to compare at (%(default)s)")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--search-arg", action="append", default=[], metavar="ARG", help="for the searches")
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


class Hnsw:
    """An hnswlib index of one M."""

    def __init__(self, base, metric, m):
        import hnswlib

        started = time.process_time()
        self.index = hnswlib.Index(space=metric, dim=base.shape[1])
        self.index.init_index(len(base), M=m, ef_construction=EF_CONSTRUCTION, random_seed=1)
        self.index.add_items(base, num_threads=2)
        self.build_cpu_s = time.process_time() - started

    def point(self, queries, truth, k, ef):
        """Recall and microseconds of processor of a query."""
        self.index.set_ef(max(ef, k))
        started = time.process_time()
        found = self.index.knn_query(queries, k=k, num_threads=1)[0]
        cpu_us = (time.process_time() - started) / len(queries) * 1e6
        return recall(found, truth), cpu_us


def searched(args, index, beams):
    """Recall and microseconds of processor of a query, for each beam."""
    document = run(
        args.stratann, "search", index, args.queries, "--groundtruth", args.groundtruth, "-k", args.k, "--threads", 1,
        "--search-list", ",".join(map(str, beams)), "--json", "--quiet", *args.search_arg,
    )
    if any(point["per_query"]["reads"] for point in document["runs"]):
        raise RuntimeError("the index is not in memory: there is too little of it, or too few queries to repay it")
    return [(point["recall"], point["cpu_us"]) for point in document["runs"]]


def at_recall(points, target):
    """Microseconds at a recall, between the two nearest beams; None where no beam reaches it."""
    points = sorted(points)
    before = None
    for reached, cpu_us in points:
        if reached >= target:
            if before is None:
                return cpu_us
            low, high = (math.log(max(1 - r, 1e-5)) for r in (before[0], reached))
            share = (low - math.log(1 - target)) / (low - high) if low > high else 1.0
            return before[1] + share * (cpu_us - before[1])
        before = (reached, cpu_us)
    return None


def medians(rounds):
    """One curve: the median time of each beam."""
    return [(points[0][0], statistics.median(cpu_us for _, cpu_us in points)) for points in zip(*rounds, strict=True)]


def measure(args, index):
    floats = np.asarray(open_vectors(args.base), dtype=np.float32)
    queries = np.asarray(open_vectors(args.queries), dtype=np.float32)
    truth = read_groundtruth(args.groundtruth, len(queries), args.k)
    beams, efs = ([int(x) for x in text.split(",")] for text in (args.lists, args.ef))
    peers = {m: Hnsw(floats, args.metric, m) for m in map(int, args.m.split(","))}
    ours, again, theirs = [], [], {m: [] for m in peers}
    for _ in range(args.rounds):
        ours.append(searched(args, index, beams))
        for m, peer in peers.items():
            theirs[m].append([peer.point(queries, truth, args.k, ef) for ef in efs])
        again.append(searched(args, index, beams))
    curves = {f"hnswlib M {m}": medians(rounds) for m, rounds in theirs.items()}
    mine = medians(ours + again)
    rows = []
    for target in map(float, args.recalls.split(",")):
        reached = [(us, name) for name, curve in curves.items() if (us := at_recall(curve, target)) is not None]
        own, first, second = (at_recall(curve, target) for curve in (mine, medians(ours), medians(again)))
        if not reached or None in (own, first, second):
            continue
        best = min(reached)
        rows.append(
            {"recall": target, "cpu_us": own, "peer": best[1], "peer_cpu_us": best[0], "ratio": own / best[0],
             "noise": second / first}
        )
    return {
        "date": time.strftime("%Y-%m-%d"), "processor": processor(), "isa": os.environ.get("STRATANN_ISA", "best"),
        "base": args.base.name, "rows": len(floats), "dim": floats.shape[1], "metric": args.metric, "k": args.k,
        "at_recall": rows, "curves": {"stratann": mine, **curves},
        "peer_build_cpu_s": {m: peer.build_cpu_s for m, peer in peers.items()},
    }


def processor():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else "unknown"


def main(argv):
    args = arguments(argv)
    try:
        with tempfile.TemporaryDirectory() as folder:
            index = args.index
            if index is None:
                index = Path(folder) / "index"
                run(args.stratann, "build", args.base, "-o", index, "--kind", "disk-graph", "--metric", args.metric,
                    "--json", "--quiet")
            result = measure(args, index)
    except (DataError, RuntimeError, OSError, ImportError) as e:
        print(f"in_memory.py: {e}", file=sys.stderr)
        return 1
    for row in result["at_recall"]:
        print(f"{result['base']} {result['rows']:,} x {result['dim']} recall {row['recall']}: {row['cpu_us']:.1f} us, "
              f"{row['peer']} {row['peer_cpu_us']:.1f} us, ratio {row['ratio']:.2f}; searched twice {row['noise']:.2f}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
