#!/usr/bin/env python3
"""A stand-in for the program: contract-shaped JSON from made-up but lawful figures, no search at all."""
import json
import sys
from pathlib import Path


def value(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


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


command = sys.argv[1]
if command == "build":
    index = Path(value("-o"))
    index.mkdir()
    (index / "data").write_bytes(bytes(1 << 20))
    print(json.dumps({"seconds": 2.0, "peak_rss_bytes": 50_000_000, "index_bytes": 1 << 20, "stages": []}))
elif command == "search":
    lengths = [int(v) for v in value("--search-list").split(",")]
    print(json.dumps({"runs": [run_of(v, value("--cache-budget") != "0") for v in lengths]}))
elif command == "doctor":
    print(json.dumps({"disk": {"iops": 50_000}}))
else:
    sys.exit(2)
