#!/usr/bin/env python3
"""A `grid-ivf` beside faiss IndexIVFFlat: equal centroids, equal nprobe, one thread each, in turn.

    bench/.venv/bin/python bench/grid.py base.f16bin query.f16bin --metric cosine --nprobe 32,64,128

faiss trains its centroids and gives them to `stratann build --centroids`. It holds vectors as f32, of unit length under
cosine; with --as-f32 the grid does, too. For each nprobe the rounds alternate between both, query by query, and medians
are compared. Recall@k is that of faiss against its own exact search. Exit codes: 0 done, 1 something failed.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from program import run
from vectors import DataError, open_vectors, recall, unit_rows, write_vectors

ROOT = Path(__file__).resolve().parent.parent


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--metric", choices=("l2", "cosine"), default="l2")
    parser.add_argument("--lists", type=int, help="inverted lists [default: square root of the rows]")
    parser.add_argument("--nprobe", default="8,32,128", help="numbers of lists (%(default)s)")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--as-f32", action="store_true", help="give the vectors to the grid as f32")
    parser.add_argument("--queries-max", type=int, default=1000, help="queries of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


class Faiss:
    """An IndexIVFFlat, searched by one thread."""

    def __init__(self, base, lists):
        import faiss

        faiss.omp_set_num_threads(1)
        self.exact = faiss.IndexFlatL2(base.shape[1])
        self.exact.add(base)
        self.coarse = faiss.IndexFlatL2(base.shape[1])
        self.index = faiss.IndexIVFFlat(self.coarse, base.shape[1], lists)
        self.index.cp.seed = 1
        self.index.train(base)
        self.index.add(base)

    def centroids(self):
        return self.coarse.reconstruct_n(0, self.index.nlist)

    def queries_per_s(self, queries, k, nprobe):
        self.index.nprobe = nprobe
        started = time.perf_counter()
        for i in range(len(queries)):
            self.index.search(queries[i : i + 1], k)
        return len(queries) / (time.perf_counter() - started)


def compare(args, faiss, floats, grid, query_file, nprobe):
    """Figures of one nprobe."""
    truth = faiss.exact.search(floats, args.k)[1]
    faiss.index.nprobe = nprobe
    found = faiss.index.search(floats, args.k)[1]
    words = [args.stratann, "search", grid, query_file, "-k", args.k, "--nprobe", nprobe, "--threads", 1, "--json"]
    theirs, ours = [], []
    for _ in range(args.rounds):
        theirs.append(faiss.queries_per_s(floats, args.k, nprobe))
        report = run(*words)["runs"][0]
        ours.append(report["qps"])
    per_query = report["per_query"]
    return {
        "nprobe": nprobe,
        "recall": recall(found, truth),
        "faiss_qps": statistics.median(theirs),
        "grid_qps": statistics.median(ours),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "skipped": 1 - per_query["components"] / per_query["components_unpruned"],
        "components": per_query["components"],
    }


def main(argv):
    args = arguments(argv)
    base, queries = open_vectors(args.base), open_vectors(args.queries)[: args.queries_max]
    floats, asked = np.asarray(base, np.float32), np.asarray(queries, np.float32)
    if args.metric == "cosine":
        floats, asked = unit_rows(floats), unit_rows(asked)
    faiss = Faiss(floats, args.lists or round(len(base) ** 0.5))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_vectors(folder / "centroids.fbin", faiss.centroids())
        base_file, query_file = args.base, folder / f"query{args.queries.suffix}"
        if args.as_f32:
            base_file, query_file = folder / "base.fbin", folder / "query.fbin"
            write_vectors(base_file, floats)
        write_vectors(query_file, asked if args.as_f32 else queries)
        words = ["build", base_file, "-o", folder / "grid.idx", "--kind", "grid-ivf", "--metric", args.metric]
        run(args.stratann, *words, "--centroids", folder / "centroids.fbin", "--calibration-queries", 0, "--json")
        rows = []
        for nprobe in map(int, args.nprobe.split(",")):
            rows.append(compare(args, faiss, asked, folder / "grid.idx", query_file, nprobe))
            text = "nprobe {nprobe}: recall {recall:.4f}, faiss {faiss_qps:.0f} queries/s, grid {grid_qps:.0f}, ratio "
            print((text + "{ratio:.2f}, {skipped:.1%} of the components skipped").format(**rows[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DataError, RuntimeError, ImportError) as e:
        print(f"grid.py: {e}", file=sys.stderr)
        sys.exit(1)
