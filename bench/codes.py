"""Nanoseconds a code of our codes of bits and of faiss' codes of as many bits: PQ, PQ fast scan, RaBitQ.

Both score codes that lie together, for one query at a time on one thread, in turns; of several rounds the fastest
counts. What faiss prepares for a query and its choice of the nearest count in: there are enough codes to make that
small. Needs cargo, numpy and faiss-cpu.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time

CASES = [(128, 1), (128, 2), (128, 4), (384, 2), (384, 4)]
CODES = 1 << 16
TRAINING_ROWS = 10_000


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of both sides (default: 5)")
    parser.add_argument("--program", help="the benchmark of the kernels, compiled elsewhere, instead of cargo")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(words)


def ours(program):
    """Times by (dimensions, bits), in ns, on the best instruction set of this machine, and its name."""
    command = ["cargo", "bench", "--quiet", "--locked", "--package", "stratann-kernel", "--bench", "codes"]
    command = [program] if program else command
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    lines = done.stdout.splitlines()
    name = lines[0].split("ns a code")[0].split()[-1]
    times = {}
    for line in lines[1:]:
        found = re.match(r"\s*(\d+)\s+(\d+)\s+bits, rows\s+(.*)", line)
        if found:
            dim, bits, each = found.groups()
            times[int(dim), int(bits)] = float(each.split()[-1])
    return times, name


def faiss_indexes(faiss, np):
    """An index of CODES codes for each case and method."""
    random = np.random.default_rng(1)
    for dim, bits in CASES:
        rows = random.standard_normal((CODES, dim), dtype=np.float32)
        makers = {
            "PQ": lambda dim=dim, bits=bits: faiss.IndexPQ(dim, dim * bits // 8, 8),
            "PQ fast scan": lambda dim=dim, bits=bits: faiss.IndexPQFastScan(dim, dim * bits // 4, 4),
            "RaBitQ": lambda dim=dim, bits=bits: faiss.IndexRaBitQ(dim, faiss.METRIC_L2, bits),
            "RaBitQ fast scan": lambda dim=dim, bits=bits: faiss.IndexRaBitQFastScan(dim, faiss.METRIC_L2, 32, bits),
        }
        for name, make in makers.items():
            try:
                index = make()
            except (TypeError, AttributeError, RuntimeError):
                continue  # This release of faiss has no such codes.
            if hasattr(index, "pq"):
                index.pq.cp.niter = 2
            index.train(rows[:TRAINING_ROWS])
            index.add(rows)
            yield (dim, bits, name), index, rows[:1].copy()


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(words):
    given = arguments(words)
    try:
        import faiss
        import numpy as np
    except ImportError as missing:
        sys.exit(f"codes.py: {missing.name} is missing: python3 -m pip install faiss-cpu numpy")
    faiss.omp_set_num_threads(1)
    indexes = list(faiss_indexes(faiss, np))
    best, own = {}, {}
    for _ in range(given.rounds):
        times, isa = ours(given.program)
        for case, ns in times.items():
            own[case] = min(own.get(case, ns), ns)
        for case, index, query in indexes:
            ns = min(seconds(lambda index=index, query=query: index.search(query, 1)) for _ in range(20)) / CODES * 1e9
            best[case] = min(best.get(case, ns), ns)
    rows = [
        {"dim": dim, "bits": bits, "faiss": name, "faiss_ns": round(ns, 2), "ns": own.get((dim, bits))}
        for (dim, bits, name), ns in best.items()
    ]
    if given.json:
        print(json.dumps({"isa": isa, "faiss": faiss.__version__, "codes": rows}))
        return
    print(f"ns a code, {isa}, faiss {faiss.__version__}\n{'dim':>5} {'bits':>4} {'ours':>7}  faiss")
    for row in rows:
        mine = f"{row['ns']:>7.2f}" if row["ns"] else f"{'':>7}"
        print(f"{row['dim']:>5} {row['bits']:>4} {mine}  {row['faiss_ns']:>7.2f} {row['faiss']}")


if __name__ == "__main__":
    main(sys.argv[1:])
