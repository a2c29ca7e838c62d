#!/usr/bin/env python3
"""Compare StratANN with its peers on the same data, interleaved in one run, with the same number of threads.

    python3 bench/compare.py --data DIR
    python3 bench/compare.py --data DIR --kinds disk-graph --peers hnswlib,symphonyqg --threads 1 --store

Holds a session for each number of threads and for each distribution of queries: those of the set, and
out-of-distribution ones.  Each prints a table and the ratios StratANN / peer, and writes results and plots under --out;
with --store also what the book's tables are made of, in bench/results.  Exit codes: 0 done, 1 nothing could be
measured, 2 bad usage or bad input.
"""
import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

BENCH = Path(__file__).resolve().parent
VENV_PYTHON = BENCH / ".venv" / "bin" / "python"

try:
    import numpy  # noqa: F401
except ImportError:
    if Path(sys.executable) != VENV_PYTHON and VENV_PYTHON.exists():
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])
    sys.exit("compare.py: numpy is missing; run bench/install_peers.sh")

import plots  # noqa: E402
import report  # noqa: E402
import roster  # noqa: E402
import session  # noqa: E402
import stored  # noqa: E402
from contenders import PeerProcess, Skip, StratAnnIndex, StratAnnPoint  # noqa: E402
from dataset import Data  # noqa: E402
from session import say  # noqa: E402

CORES = os.cpu_count()
NAMES = {"in": "in-distribution", "out": "out-of-distribution"}


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="base vectors, or a folder with base.*, query.*, groundtruth.ibin")
    add("--queries", type=Path, help="query vectors (default: query.* in the folder)")
    add("--groundtruth", type=Path, help="exact answers (default: groundtruth.ibin in the folder)")
    add("--distributions", default="in,out", help="of the queries: in, the set's own; out, out-of-distribution ones "
                                                  "(%(default)s)")
    add("--ood-queries", type=Path, help="out-of-distribution queries (default: the set's own, with a shift and noise)")
    add("--metric", choices=["l2", "ip", "cosine"], default="l2")
    add("--threads", default="1,all", help="numbers of threads, a session each (%(default)s)")
    add("--build-threads", type=int, default=CORES, help="(%(default)s)")
    add("--k", type=int, default=10)
    add("--recall", type=float, default=0.95, help="target recall@k (%(default)s)")
    add("--kinds", default="all", help="all, none, or names of StratANN's contenders, such as disk-graph,from-disk")
    add("--peers", default="all", help="all, none, or names (a family such as faiss counts)")
    add("--rounds", type=int, default=3)
    add("--thin", type=int, default=1, help="take one of so many settings of each sweep (%(default)s)")
    add("--stratann", type=Path, default=BENCH.parent / "target" / "release" / "stratann",
        help="the program under test (%(default)s)")
    add("--out", type=Path, default=BENCH / "out", help="results, indexes and logs (%(default)s)")
    add("--store", action="store_true", help="keep the results in bench/results, for `make bench-report`")
    add("--code-bytes", type=int, default=32, help="bytes per compressed vector in memory where vectors stay on disk, "
                                                   "for StratANN and the peer alike (%(default)s)")
    add("--beam-width", type=int, default=4, help="beam width of the disk peer (%(default)s)")
    add("--diskann-build-list", type=int, default=100, help="L of its build (%(default)s)")
    add("--min-seconds", type=float, default=0.5, help="shortest timed run in memory (%(default)s)")
    add("--latency-queries", type=int, default=1000, help="single queries timed per setting; 0: none")
    add("--seed", type=int, default=1)
    add("--reuse", action="store_true", help="keep indexes of an earlier run with the same inputs")
    args = parser.parse_args(argv)
    for name in ("build_threads", "k", "rounds", "code_bytes", "beam_width", "thin"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 < args.recall <= 1:
        parser.error("--recall must lie in (0, 1]")
    args.distributions = args.distributions.split(",")
    if args.distributions not in (["in"], ["out"], ["in", "out"]):
        parser.error("--distributions must be in, out, or in,out")
    words = args.threads.replace("all", str(CORES)).split(",")
    if not all(w.isdecimal() and int(w) for w in words):
        parser.error(f"--threads {args.threads}: must be whole numbers from 1 on, or all")
    args.threads = sorted({int(w) for w in words})
    args.stratann, args.out = args.stratann.resolve(), args.out.resolve()
    return args


def chosen(args):
    """(kinds, peers) that take part, with their sweeps."""
    lists = (roster.select("--kinds", args.kinds, roster.kinds(args.k)),
             roster.select("--peers", args.peers, roster.peers(args.k, args.beam_width)))
    return [[replace(s, settings=roster.thinned(s.settings, args.thin)) for s in specs] for specs in lists]


def prepare(args, data, kinds, peers):
    """Build every contender, or take its index of an earlier run; returns (contenders, builds, skipped)."""
    folder, logs = args.out / "indexes", args.out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    common = {"metric": args.metric, "threads": args.build_threads, "k": args.k, "seed": args.seed,
              "code_bytes": args.code_bytes}
    own, indexes, contenders, builds, skipped = common | {"base": str(data.base.resolve())}, {}, [], {}, {}
    for spec in [*kinds, *peers]:
        say(f"preparing {spec.name}")
        if spec in kinds:
            log = logs / "stratann.log"
            index = indexes.setdefault(spec.index, StratAnnIndex(spec, args.stratann, own, folder, log))
            thing = StratAnnPoint(spec, index, log)
        else:
            job = common | {"base": str(data.form_for(spec, data.base).resolve()), "dim": data.dim,
                            "source_dtype": data.dtype, "diskann_build_list": args.diskann_build_list}
            thing = PeerProcess(spec, job, folder, logs / f"{spec.name}.log")
        try:
            builds[spec.name] = thing.build(args.reuse)
            contenders.append(thing)
        except Skip as reason:
            skipped[spec.name] = str(reason)
            say(f"skipped {spec.name}: {reason}")
    return contenders, builds, skipped


def print_report(args, data, peers, results):
    entries, disk, machine = results["contenders"], results["disk"], results["machine"]
    source = data.sources[results["data"]["distribution"]]
    print(f"\n{data.name}: {data.n:,} x {data.dim} {data.dtype}, {source.count:,} queries, {args.metric}, k={args.k}, "
          f"target recall {args.recall}, threads: {results['threads']}, rounds: {args.rounds}, medians")
    if source.text:
        print(f"out-of-distribution queries: {source.text}")
    copied = [s.name for s in peers if s.name in entries and data.needs_copy(s)]
    if copied:
        unit = ", scaled to unit length" if args.metric == "cosine" else ""
        print(f"searched a float32 copy of the data{unit}: {', '.join(copied)}")
    limit = f"{disk['iops']:,.0f} random 4 KiB reads a second" if disk["iops"] else "unknown"
    print(f"disk: {limit} ({disk['method']})\n")
    print(report.main_table(entries, disk["iops"]))
    if results["ratios"]:
        print("\nQPS: above 1 is better; all else: below 1 is better\n" + report.ratio_table(results["ratios"]))
    print(f"\n{report.noise_text(results['noise'])}")
    for name, reason in results["skipped"].items():
        print(f"skipped: {name}: {reason}")
    print(f"other programs took {machine['other_cores']} of {machine['cores']} cores; load average "
          f"{machine['load_before']} before, {machine['load_after']} after")
    if machine["other_cores"] > 0.25 * machine["cores"]:
        print("warning: the machine was busy: trust the counters, then processor time, and not the rest")


def keep(args, data, peers, results):
    """Write a session's results and plots; returns the files."""
    name = stored.name_of(results)
    path = args.out / f"{name}.json"
    path.write_text(json.dumps(results | {"arguments": {k: str(v) for k, v in vars(args).items()}}, indent=1) + "\n")
    written = [path]
    try:
        written += plots.draw(results["contenders"], args.recall, args.k, args.out, name)
    except ImportError as e:
        say(f"no plots: {e}; bench/install_peers.sh installs it")
    if args.store:
        written.append(stored.write(stored.FOLDER / f"{name}.json", results, [BENCH.parent, args.out]))
    return written


def main(argv=None):
    args = arguments(argv)
    try:
        kinds, peers = chosen(args)
        data = Data(args)
    except ValueError as e:
        say(f"compare.py: {e}")
        return 2
    contenders, builds, skipped = prepare(args, data, kinds, peers)
    hnsw = {s.name for s in peers if s.is_hnsw}
    version, written, is_empty = stored.program_version(args.stratann), [], True
    for threads in args.threads:
        for kind in args.distributions:
            say(f"session: {NAMES[kind]} queries, threads: {threads}")
            results = session.hold(contenders, builds, skipped, args, data, threads, kind)
            results |= {"stratann": version, "ratios": report.ratio_rows(results["contenders"], hnsw)}
            print_report(args, data, peers, results)
            if results["contenders"]:
                is_empty = False
                written += keep(args, data, peers, results)
    if is_empty:
        say("compare.py: nothing was measured; see the reasons above")
        return 1
    print("\nwritten:", *written, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
