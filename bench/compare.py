#!/usr/bin/env python3
"""Compare StratANN with its peers on the same data, interleaved in one run, with the same number of threads.

    python3 bench/compare.py --data DIR
    python3 bench/compare.py --data base.fbin --queries query.fbin --groundtruth gt.ibin --peers hnswlib,diskann

Prints a table and the ratios StratANN / peer; writes results.json, recall-qps.png, recall-reads.png and the workers'
logs under --out.  Exit codes: 0 done, 1 nothing could be measured, 2 bad usage or bad input.
"""
import argparse
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median

BENCH = Path(__file__).resolve().parent
VENV_PYTHON = BENCH / ".venv" / "bin" / "python"
# Settings added to a sweep near the target, each halfway between two.
HALVINGS = 3

try:
    import numpy  # noqa: F401
except ImportError:
    if Path(sys.executable) != VENV_PYTHON and VENV_PYTHON.exists():
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])
    sys.exit("compare.py: numpy is missing; run bench/install_peers.sh")

import disk_probe  # noqa: E402
import plots  # noqa: E402
import report  # noqa: E402
import roster  # noqa: E402
import vectors  # noqa: E402
from contenders import PeerProcess, Skip, StratAnn, call_json  # noqa: E402


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="base vectors, or a folder with base.*, query.*, "
                                                                 "groundtruth.ibin")
    parser.add_argument("--queries", type=Path, help="query vectors (default: query.* in the folder)")
    parser.add_argument("--groundtruth", type=Path, help="exact answers (default: groundtruth.ibin in the folder)")
    parser.add_argument("--metric", choices=["l2", "ip", "cosine"], default="l2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--recall", type=float, default=0.95, help="target recall@k (%(default)s)")
    parser.add_argument("--peers", default="all", help="all, none, or names (a family such as faiss counts)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stratann", type=Path, default=BENCH.parent / "target" / "release" / "stratann",
                        help="the program under test (%(default)s)")
    parser.add_argument("--out", type=Path, default=BENCH / "out", help="results, indexes and logs (%(default)s)")
    parser.add_argument("--code-bytes", type=int, default=32, help="bytes per compressed vector in memory, for "
                        "StratANN and the disk peer alike (%(default)s)")
    parser.add_argument("--beam-width", type=int, default=4, help="beam width of the disk peer (%(default)s)")
    parser.add_argument("--diskann-build-list", type=int, default=100, help="L of its build (%(default)s)")
    parser.add_argument("--min-seconds", type=float, default=0.5, help="shortest timed batch of a peer (%(default)s)")
    parser.add_argument("--latency-queries", type=int, default=1000, help="single queries timed per setting; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reuse", action="store_true", help="keep indexes of an earlier run with the same inputs")
    args = parser.parse_args(argv)
    for name in ("threads", "k", "rounds", "code_bytes", "beam_width"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 < args.recall <= 1:
        parser.error("--recall must lie in (0, 1]")
    args.stratann, args.out = args.stratann.resolve(), args.out.resolve()
    return args


def find_data(args):
    """(base, queries, groundtruth) paths."""
    if not args.data.is_dir():
        if args.queries is None or args.groundtruth is None:
            raise vectors.DataError(f"{args.data}: is no folder; give --queries and --groundtruth as well")
        return args.data, args.queries, args.groundtruth

    def only(stem):
        hits = [p for p in sorted(args.data.glob(stem + ".*")) if p.suffix in vectors.DTYPES]
        if len(hits) != 1:
            raise vectors.DataError(f"{args.data}: {len(hits)} vector files named {stem}.*; exactly one is needed")
        return hits[0]

    return only("base"), args.queries or only("query"), args.groundtruth or args.data / "groundtruth.ibin"


class Data:
    """The inputs, and float32 copies (unit length for cosine) made once for peers that need them."""

    def __init__(self, args):
        self.base, self.queries, self.groundtruth = find_data(args)
        self.metric, self.out = args.metric, args.out
        base, queries = vectors.open_vectors(self.base), vectors.open_vectors(self.queries)
        (self.n, self.dim), self.nq = base.shape, len(queries)
        if queries.shape[1] != self.dim or queries.dtype != base.dtype:
            raise vectors.DataError(f"{self.queries}: {queries.dtype} x {queries.shape[1]}, but the base is "
                                    f"{base.dtype} x {self.dim}; they must agree")
        if not 1 <= args.k <= self.n:
            raise vectors.DataError(f"--k {args.k}: must lie between 1 and the {self.n} base vectors")
        self.dtype = base.dtype.name
        vectors.read_groundtruth(self.groundtruth, self.nq, args.k)
        self.copies = None

    def needs_copy(self, spec):
        return self.metric == "cosine" or self.dtype not in spec.dtypes

    def form_for(self, spec):
        """(base, queries) files in the form this peer takes."""
        if not self.needs_copy(spec):
            return self.base, self.queries
        if self.copies is None:
            folder = self.out / "converted"
            folder.mkdir(parents=True, exist_ok=True)
            self.copies = folder / "base.fbin", folder / "query.fbin"
            for source, copy in zip((self.base, self.queries), self.copies, strict=True):
                write_if_changed(source, copy, self.metric == "cosine")
        return self.copies


def write_if_changed(source, copy, normalise):
    """Write the float32 copy unless an identical one is there; its time stamp then stays, and so do the indexes."""
    fresh = copy.with_suffix(".new.fbin")
    vectors.write_vectors(fresh, vectors.open_vectors(source), normalise)
    if copy.exists() and copy.read_bytes() == fresh.read_bytes():
        fresh.unlink()
    else:
        fresh.replace(copy)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def prepare(args, data, specs):
    """Build or reopen every contender; returns (contenders, builds, skipped)."""
    folder, logs = args.out / "indexes", args.out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    common = {"metric": args.metric, "threads": args.threads, "k": args.k, "seed": args.seed,
              "groundtruth": str(data.groundtruth.resolve()), "code_bytes": args.code_bytes}
    contenders, builds, skipped = [], {}, {}

    own = common | {"base": str(data.base.resolve()), "queries": str(data.queries.resolve())}
    stratann = StratAnn(args.stratann, own, folder, logs / "stratann.log")
    settings = tuple({"search_list": v} for v in roster.SEARCH_LIST if v >= args.k)
    for name, spec in [("stratann", None)] + [(s.name, s) for s in specs]:
        say(f"preparing {name}")
        thing = stratann
        try:
            if spec is not None:
                base, queries = data.form_for(spec)
                job = common | {"base": str(base.resolve()), "queries": str(queries.resolve()), "dim": data.dim,
                                "source_dtype": data.dtype, "diskann_build_list": args.diskann_build_list,
                                "min_seconds": args.min_seconds, "latency_queries": args.latency_queries}
                thing = PeerProcess(spec, job, folder, logs / f"{name}.log")
            built = thing.prepare(args.reuse)
        except Skip as reason:
            skipped[name] = str(reason)
            say(f"skipped {name}: {reason}")
            thing.close()
            continue
        points = thing.points(settings) if name == "stratann" else [thing]
        contenders += points
        builds |= {p.name: built for p in points}
    return contenders, builds, skipped


class DiskLimit:
    """4 KiB random reads a second, sampled once a round from the program's own check or from a direct probe."""

    def __init__(self, args, path):
        self.path, self.samples, self.method = path, [], None
        if os.access(args.stratann, os.X_OK) and args.stratann.is_file():
            self.doctor = [str(args.stratann), "doctor", "--json"]
        else:
            self.doctor = None
        self.log = args.out / "logs" / "doctor.log"

    def sample(self, seed):
        """Take one sample; when none can be had, the reason stands in `method`."""
        if self.doctor:
            try:
                self.samples.append(float(call_json(self.doctor, self.log)[0]["disk"]["iops"]))
                self.method = "stratann doctor"
                return
            except (Skip, KeyError, TypeError, ValueError):
                self.doctor = None
        try:
            self.samples.append(disk_probe.random_read_iops(self.path, seconds=1.0, seed=seed))
            self.method = f"native AIO, O_DIRECT, depth {disk_probe.DEPTH}"
        except OSError as e:
            self.method = f"not measured: {e}"

    def iops(self):
        return median(self.samples) if self.samples else None


def largest_file(folder, otherwise):
    files = [f for f in folder.rglob("*") if f.is_file()]
    return max(files, key=lambda f: f.stat().st_size, default=otherwise)


def measure(contenders, rounds, skipped, disk, target):
    """{contender: {setting index: [measurement of each round]}}; one setting of each contender in turn.

    In the first round every contender gets up to `HALVINGS` settings more, between the last that misses the target
    recall and the first that reaches it: on a coarse grid one contender may be far above the target and another just at
    it.
    """
    runs = {c.name: {} for c in contenders}
    settings = {c.name: list(c.settings) for c in contenders}
    live = list(contenders)

    def run(i):
        for c in list(live):
            if i >= len(settings[c.name]):
                continue
            try:
                runs[c.name].setdefault(i, []).append(c.run(settings[c.name][i]))
            except Skip as reason:
                skipped[c.name] = str(reason)
                say(f"dropped {c.name}: {reason}")
                live.remove(c)
                del runs[c.name]

    for turn in range(rounds):
        disk.sample(turn)
        i = 0
        while i < max((len(settings[c.name]) for c in live), default=0):
            run(i)
            i += 1
            for c in live if turn == 0 else []:
                done, swept = len(runs[c.name]), len(c.settings)
                if done == len(settings[c.name]) and swept <= done < swept + HALVINGS:
                    between = report.between([r[0] for r in runs[c.name].values()], target)
                    settings[c.name] += [between] if between else []
        live = live[1:] + live[:1]       # nobody always runs right after the same neighbour's start
        say(f"round {turn + 1} of {rounds} done")
    return runs


def entries_of(contenders, runs, builds, target):
    """Figures of each contender for the report, in order."""
    entries = {}
    for c in contenders:
        if not runs.get(c.name):
            continue
        sweep = [report.summarise(r) for r in runs[c.name].values()]
        chosen, reached = report.cheapest(sweep, target, c.storage)
        entries[c.name] = {
            "storage": c.storage, "build": builds[c.name], "chosen": chosen, "reached": reached, "sweep": sweep,
            "pages_at_recall": report.pages_at(sweep, target) if c.storage == "disk" else None,
            "rounds": list(runs[c.name].values())}
    return entries


def machine():
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load_average": os.getloadavg(),
            "python": platform.python_version()}


def print_report(args, data, specs, results):
    entries, disk = results["contenders"], results["disk"]
    print(f"{data.base}: {data.n:,} x {data.dim} {data.dtype}, {data.nq:,} queries, {args.metric}, k={args.k}, "
          f"target recall {args.recall}, {args.threads} threads, {args.rounds} rounds, medians")
    copied = [s.name for s in specs if s.name in entries and data.needs_copy(s)]
    if copied:
        unit = ", scaled to unit length" if args.metric == "cosine" else ""
        print(f"searched a float32 copy of the data{unit}: {', '.join(copied)}")
    limit = f"{disk['iops']:,.0f} random 4 KiB reads a second" if disk["iops"] else "unknown"
    print(f"disk: {limit} ({disk['method']})\n")
    print(report.main_table(entries, disk["iops"]))
    if results["ratios"]:
        print("\nQPS: above 1 is better; all else: below 1 is better\n" + report.ratio_table(results["ratios"]))
    for name, reason in results["skipped"].items():
        print(f"skipped: {name}: {reason}")
    cores = os.cpu_count()
    load = results["machine_before"]["load_average"][0], os.getloadavg()[0]
    if load[0] > 0.5 * cores:
        print(f"warning: the machine was busy (load average {load[0]:.1f} before, {load[1]:.1f} after, {cores} cores): "
              "trust the counters, not the times")


def main(argv=None):
    args = arguments(argv)
    try:
        specs = roster.select(args.peers, roster.roster(args.k, args.beam_width))
        data = Data(args)
    except ValueError as e:
        say(f"compare.py: {e}")
        return 2
    before = machine()
    contenders, builds, skipped = prepare(args, data, specs)
    disk = DiskLimit(args, largest_file(args.out / "indexes", data.base))
    try:
        runs = measure(contenders, args.rounds, skipped, disk, args.recall)
    finally:
        for c in contenders:
            c.close()
    entries = entries_of(contenders, runs, builds, args.recall)
    hnsw = {s.name for s in specs if s.is_hnsw}
    results = {
        "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "machine_before": before,
        "data": {"base": str(data.base), "n": data.n, "dim": data.dim, "dtype": data.dtype, "queries": data.nq},
        "disk": {"iops": disk.iops(), "samples": disk.samples, "method": disk.method},
        "contenders": entries, "ratios": report.ratio_rows(entries, hnsw), "skipped": skipped,
    }
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print_report(args, data, specs, results)
    if not entries:
        say("compare.py: nothing was measured; see the reasons above")
        return 1
    try:
        written = plots.draw(entries, args.recall, args.k, args.out)
    except ImportError as e:
        written = []
        say(f"no plots: {e}; bench/install_peers.sh installs it")
    print("\nwritten:", *[args.out / "results.json", *written], sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
