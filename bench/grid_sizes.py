#!/usr/bin/env python3
"""Growth of the speed-up of a divided `grid-ivf` with dimensions and rows (HARMONY, figure 11a).

    python3 bench/grid_sizes.py --dims 64,128,256,512 --rows 10000,20000,40000 --servers 4

For each size the vectors are generated (`stratann bench generate`) and `stratann-lab ablation --kind grid-ivf`
simulates the servers. Speed-ups are those of the planner's choice over one server that does not prune. The slopes are
by how much a doubling of the dimensions, or of the rows, multiplies the speed-up: the least-squares plane through the
logarithms of all sizes. Exit codes: 0 done, 1 something failed.
"""
import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import program

ROOT = Path(__file__).resolve().parent.parent


def arguments(argv):
    def numbers(text):
        return [int(x) for x in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("gaussian", "series"), default="gaussian")
    parser.add_argument("--dims", type=numbers, default=[64, 128, 256, 512], help="64,128,256,512 by default")
    parser.add_argument("--rows", type=numbers, default=[10_000, 20_000, 40_000], help="10000,20000,40000 by default")
    parser.add_argument("--servers", type=int, default=4, help="simulated servers (%(default)s)")
    parser.add_argument("--recall", type=float, default=0.99, help="recall@10 (%(default)s)")
    parser.add_argument("--queries", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=Path, help="costs of an earlier run, instead of measuring them for each size")
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann-lab")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


def run(*words):
    return program.run(*words, "--json", "--quiet")


def measure(args, dim, rows):
    """Figures of one size."""
    folder = Path(tempfile.mkdtemp(prefix="stratann-sizes-"))
    try:
        base, queries, truth = folder / "base.fbin", folder / "query.fbin", folder / "truth.ibin"
        size = ["--dim", dim, "--rows", rows, "--queries", args.queries, "--seed", args.seed]
        run(args.stratann, "bench", "generate", args.shape, "-o", folder, *size)
        run(args.stratann, "groundtruth", base, queries, "-o", truth, "-k", 10)
        more = ["--costs", args.costs] if args.costs else []
        words = ["--kind", "grid-ivf", "--recall", args.recall, "--servers", args.servers, "--skew", 0, *more]
        found = run(args.stratann, "ablation", base, queries, "--groundtruth", truth,
                    "-o", folder / "out", "--metric", "l2", *words)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    one = next(row for row in found["one_server"] if row["name"] == "all")
    modes = {row["name"]: row["speed_up_unpruned"] for row in found["even"]}
    return {"dim": dim, "rows": rows, "nprobe": one["nprobe"], "skipped": one["skipped"], "speed_ups": modes}


def slopes(points):
    """By how much a doubling of dimensions, and of rows, multiplies the speed-up; None where one alone was measured.

    `points` are (dimensions, rows, speed-up).
    """
    logs = [tuple(math.log2(x) for x in point) for point in points]
    means = [sum(log[i] for log in logs) / len(logs) for i in range(3)]
    d, r, s = ([log[i] - means[i] for log in logs] for i in range(3))

    def product(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    determinant = product(d, d) * product(r, r) - product(d, r) ** 2
    if determinant > 1e-9:
        by_dim = (product(d, s) * product(r, r) - product(r, s) * product(d, r)) / determinant
        by_rows = (product(r, s) * product(d, d) - product(d, s) * product(d, r)) / determinant
        return 2**by_dim, 2**by_rows
    alone = [2 ** (product(x, s) / product(x, x)) if product(x, x) > 1e-9 else None for x in (d, r)]
    return tuple(alone)


def main(argv=None):
    args = arguments(argv)
    sizes = []
    for dim in args.dims:
        for rows in args.rows:
            found = measure(args, dim, rows)
            sizes.append(found)
            ups = ", ".join(f"{name} {up:.2f}" for name, up in found["speed_ups"].items())
            print(f"{dim:5} x {rows:8,}: nprobe {found['nprobe']}, skipped {100 * found['skipped']:.1f} %; {ups}",
                  flush=True)
    by_dim, by_rows = slopes([(s["dim"], s["rows"], s["speed_ups"]["harmony"]) for s in sizes])
    for what, slope in (("dimensions", by_dim), ("rows", by_rows)):
        if slope is not None:
            print(f"speed-up for twice the {what}: {100 * (slope - 1):+.1f} %")
    if args.out:
        slope = {"dimensions": by_dim, "rows": by_rows}
        args.out.write_text(json.dumps({"servers": args.servers, "sizes": sizes, "slopes": slope}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as e:
        sys.exit(f"grid_sizes.py: {e}")
