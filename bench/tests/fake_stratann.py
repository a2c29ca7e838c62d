#!/usr/bin/env python3
"""A stand-in for the program: contract-shaped JSON from made-up but lawful figures, no search at all."""
import json
import sys
from pathlib import Path


def value(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def efforts():
    """Lengths of a beam, whatever the knob."""
    if "--recall" in sys.argv:
        return [round(1 / max(1.001 - float(v), 0.01)) for v in value("--recall").split(",")]
    return [int(v) for v in (value("--search-list") or value("--nprobe")).split(",")]


def run_of(length, cached):
    pages = 0.0 if cached else 0.5 * length
    return {
        "recall": 1 - 1 / length, "qps": 20000 / length, "cpu_us": 10.0 * length, "queries": 50,
        "latency_us": {"mean": 9.0 * length, "p50": 8.0 * length, "p95": 15.0 * length, "p99": 20.0 * length},
        "threads": int(value("--threads")), "params": {"search_list": length},
        "per_query": {"code_comparisons": 64 * length, "full_comparisons": length, "pruned": 0, "reads": pages,
                      "pages_read": pages, "bytes_read": 4096 * pages, "cache_hits": 0, "hops": length},
        "peak_rss_bytes": 30_000_000, "ram_budget_bytes": None, "io_backend": "io_uring",
    }


def groundtruth():
    """Made-up answers of the right shape: rows 0 to k - 1."""
    base, queries = sys.argv[2:4]
    count = int.from_bytes(Path(queries).read_bytes()[:4], "little")
    rows, k = int.from_bytes(Path(base).read_bytes()[:4], "little"), int(value("-k"))
    header = b"".join(x.to_bytes(4, "little") for x in (count, k))
    ids = b"".join((i % rows).to_bytes(4, "little") for i in range(k)) * count
    Path(value("-o")).write_bytes(header + ids + bytes(4 * k * count))


command = sys.argv[1]
if command == "build":
    index = Path(value("-o"))
    index.mkdir()
    (index / "data").write_bytes(bytes(1 << 20))
    print(json.dumps({"seconds": 2.0, "peak_rss_bytes": 50_000_000, "index_bytes": 1 << 20, "stages": []}))
elif command == "search":
    print(json.dumps({"runs": [run_of(v, value("--cache-budget") != "0") for v in efforts()]}))
elif command == "groundtruth":
    groundtruth()
elif command == "info":
    print(json.dumps({"kind": "disk-graph"}))
elif command == "doctor":
    print(json.dumps({"disk": {"iops": 50_000}}))
elif command == "--version":
    print("stratann 9.9")
else:
    sys.exit(2)
