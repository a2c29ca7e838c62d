#!/usr/bin/env python3
"""Ranking codes of a `gpu-ivf` beside faiss on one thread: IndexIVFPQ and its fast scan, at equal bytes a code.

    bench/.venv/bin/python bench/gpu.py base.u8bin query.u8bin --metric l2 --nprobe 16,64

Ours is timed by `stratann-lab codes`: preparation of the query, lists and ranking apart, without the start of the
program. Both indexes of faiss have the lists chosen beforehand and search all queries at once, so that Python is not in
their times; making tables is, as is the preparation of our queries where it says so. Candidates of ours have replicas,
which are dropped, and codes that lie apart; lists of faiss lie in one piece.
Rounds alternate between the three, and medians are compared. Exit codes: 0 done, 1 something failed.
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
from vectors import DataError, open_vectors, unit_rows, write_vectors

ROOT = Path(__file__).resolve().parent.parent


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--metric", choices=("l2", "cosine"), default="l2")
    parser.add_argument("--index", type=Path, help="a gpu-ivf of the same vectors [default: built here]")
    parser.add_argument("--lists", type=int, help="inverted lists of faiss [default: 4 square roots of the rows]")
    parser.add_argument("--nprobe", default="16,64", help="lists of ours (%(default)s)")
    parser.add_argument("--queries-max", type=int, default=1000, help="queries of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann-lab")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


class Peer:
    """An index of faiss, searched by one thread."""

    def __init__(self, name, index, coarse):
        self.name, self.index, self.coarse = name, index, coarse

    def add(self, base):
        self.index.train(base)
        self.index.add(base)

    def lists_for(self, codes):
        """The nprobe that scans about so many codes of a query."""
        return max(1, round(codes / (self.index.ntotal / self.index.nlist)))

    def scan(self, queries, nprobe):
        """Seconds of a scan of all queries, and codes of it."""
        self.index.nprobe = nprobe
        distances, lists = self.coarse.search(queries, nprobe)
        sizes = np.array([self.index.invlists.list_size(i) for i in range(self.index.nlist)])
        started = time.perf_counter()
        self.index.search_preassigned(queries, 10, lists, distances)
        return time.perf_counter() - started, int(sizes[lists].sum())


def peers(base, lists, code_bytes):
    import faiss

    faiss.omp_set_num_threads(1)
    dim = base.shape[1]

    def fits(parts):
        """The largest number of equal parts of a vector up to this one."""
        return next(n for n in range(min(parts, dim), 0, -1) if dim % n == 0)

    coarse = faiss.IndexFlatL2(dim)
    plain = faiss.IndexIVFPQ(coarse, dim, lists, fits(code_bytes), 8)
    fast = faiss.IndexIVFPQFastScan(coarse, dim, lists, fits(2 * code_bytes), 4)
    found = []
    for name, index in (("faiss IVF-PQ", plain), ("faiss fast scan", fast)):
        # One table a query, as ours.
        index.by_residual = False
        index.cp.seed = 1
        peer = Peer(name, index, coarse)
        peer.add(base)
        found.append(peer)
    return found


def bytes_of(peer):
    return peer.index.pq.M * peer.index.pq.nbits / 8


def compare(args, all_peers, floats, grid, query_file, nprobe):
    """Figures of one nprobe of ours."""
    words = [args.stratann, "codes", grid, query_file, "--nprobe", nprobe, "--rounds", 1, "--json"]
    ours, prepared, scans, theirs = [], [], [], {peer.name: [] for peer in all_peers}
    codes, probes = run(*words)["codes"], {}
    for _ in range(args.rounds):
        report = run(*words)
        ours.append(report["ns_a_code"])
        scans.append(report["scan_ns_a_code"])
        prepared.append((report["rank_us"] + report["prepare_us"]) * 1000 / report["codes"])
        for peer in all_peers:
            probes[peer.name] = peer.lists_for(codes)
            seconds, scanned = peer.scan(floats, probes[peer.name])
            theirs[peer.name].append(seconds * 1e9 / scanned)
    ours, with_query = statistics.median(ours), statistics.median(prepared)
    row = {"nprobe": nprobe, "codes": codes, "code_bytes": report["code_bytes"], "ns_a_code": ours}
    row["ns_a_code_with_query"] = with_query
    row["scan_ns_a_code"] = statistics.median(scans)
    row["peers"] = [
        {
            "name": peer.name,
            "code_bytes": bytes_of(peer),
            "nprobe": probes[peer.name],
            "ns_a_code": statistics.median(theirs[peer.name]),
            "ours_over_it": ours / statistics.median(theirs[peer.name]),
            "ours_with_query_over_it": with_query / statistics.median(theirs[peer.name]),
        }
        for peer in all_peers
    ]
    return row


def show(row):
    print(
        "nprobe {nprobe}: {codes:.0f} codes of {code_bytes} bytes, {ns_a_code:.2f} ns each, {scan_ns_a_code:.2f} for "
        "the distance alone, "
        "{ns_a_code_with_query:.2f} with the preparation of the query".format(**row)
    )
    for peer in row["peers"]:
        text = "  {name}: codes of {code_bytes:.0f} bytes, nprobe {nprobe}, {ns_a_code:.2f} ns each with the table; "
        text += "ours takes {ours_over_it:.2f} times as long, {ours_with_query_over_it:.2f} with its query"
        print(text.format(**peer), flush=True)


def main(argv):
    args = arguments(argv)
    base, queries = open_vectors(args.base), open_vectors(args.queries)[: args.queries_max]
    floats, asked = np.asarray(base, np.float32), np.asarray(queries, np.float32)
    if args.metric == "cosine":
        floats, asked = unit_rows(floats), unit_rows(asked)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        query_file = folder / f"query{args.queries.suffix}"
        write_vectors(query_file, queries)
        index = args.index or folder / "gpu.idx"
        if args.index is None:
            words = ["build", args.base, "-o", index, "--kind", "gpu-ivf", "--metric", args.metric]
            run(args.stratann, *words, "--calibration-queries", 0, "--json")
        code_bytes = run(args.stratann, "info", index, "--json")["build"]["code_bytes"]
        all_peers = peers(floats, args.lists or round(4 * len(base) ** 0.5), code_bytes)
        rows = []
        for nprobe in map(int, args.nprobe.split(",")):
            rows.append(compare(args, all_peers, asked, index, query_file, nprobe))
            show(rows[-1])
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DataError, RuntimeError, ImportError) as e:
        print(f"gpu.py: {e}", file=sys.stderr)
        sys.exit(1)
