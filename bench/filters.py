#!/usr/bin/env python3
"""Filtered search beside peers: filters of many selectivities, near and far from the queries, at equal recall.

    bench/.venv/bin/python bench/filters.py --data DIR --store && bench/.venv/bin/python bench/pages.py
    bench/.venv/bin/python bench/filters.py --data base.u8bin --queries query.u8bin --kinds disk-graph --peers hnswlib

Filters let 100 to 0.01 % of the rows through: drawn at random, those nearest to the first query, and those farthest
from it.  A first sweep of each contender finds the settings around the recalls; these are timed in rounds, one
contender after another, on one thread.  Exit codes: 0 done, 1 nothing could be measured, 2 bad usage or bad input.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
VENV_PYTHON = BENCH / ".venv" / "bin" / "python"

try:
    import numpy  # noqa: F401
except ImportError:
    if Path(sys.executable) != VENV_PYTHON and VENV_PYTHON.exists():
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])
    sys.exit("filters.py: numpy is missing; run bench/install_peers.sh")

import filter_figures as figures  # noqa: E402
import filter_pages  # noqa: E402
import filter_roster as roster  # noqa: E402
import filter_tasks  # noqa: E402
import program  # noqa: E402
import session  # noqa: E402
import stored  # noqa: E402
from contenders import Skip, StratAnnIndex  # noqa: E402
from dataset import Base, find_vectors  # noqa: E402
from filter_contenders import FilteredPeer, FilteredStratAnn  # noqa: E402
from roster import KindSpec, select  # noqa: E402
from session import say  # noqa: E402
from vectors import DataError  # noqa: E402


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="base vectors, or a folder with base.*, query.*")
    add("--queries", type=Path, help="query vectors (default: query.* in the folder)")
    add("--metric", choices=["l2", "ip", "cosine"], default="l2")
    add("--k", type=int, default=10)
    add("--recalls", default="0.9,0.95", help="recalls@k at which speeds are compared (%(default)s)")
    add("--kinds", default="all", help="all, none, or names of StratANN's contenders, such as disk-graph")
    add("--peers", default="all", help="all, none, or names (a family such as faiss counts)")
    add("--filters", default="all", help="names of filters, such as none,random-50,far-0.1 (%(default)s)")
    add("--rounds", type=int, default=3)
    add("--random-queries", type=int, default=100, help="queries of filters drawn at random (%(default)s)")
    add("--near-queries", type=int, default=50, help="queries of the other filters: those nearest to the first query "
                                                     "of the set (%(default)s)")
    add("--min-seconds", type=float, default=0.1, help="shortest timed run (%(default)s)")
    add("--sweep-seconds", type=float, default=3, help="longest first sweep of a peer for one filter, in processor "
                                                       "time (%(default)s)")
    add("--build-threads", type=int, default=os.cpu_count(), help="(%(default)s)")
    add("--stratann", type=Path, default=BENCH.parent / "target" / "release" / "stratann",
        help="the program under test (%(default)s)")
    add("--out", type=Path, default=BENCH / "out" / "filters", help="results, indexes and logs (%(default)s)")
    add("--store", action="store_true", help="keep the results in bench/results, for `make bench-report`")
    add("--seed", type=int, default=1)
    add("--reuse", action="store_true", help="keep indexes of an earlier run with the same inputs")
    args = parser.parse_args(argv)
    for name in ("build_threads", "k", "rounds", "random_queries", "near_queries"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        args.recalls = sorted(float(word) for word in args.recalls.split(","))
    except ValueError:
        parser.error(f"--recalls {args.recalls}: must be numbers")
    if not all(0 < recall <= 1 for recall in args.recalls):
        parser.error("--recalls must lie in (0, 1]")
    args.filters = None if args.filters == "all" else args.filters.split(",")
    unknown = set(args.filters or ()) - set(filter_tasks.names())
    if unknown:
        parser.error(f"--filters: there is no {min(unknown)}; use {', '.join(filter_tasks.names())}")
    args.stratann, args.out = args.stratann.resolve(), args.out.resolve()
    return args


def prepare(args, base, tasks, kinds, peers):
    """Build every contender, or take its index of an earlier run; returns (contenders, builds, skipped)."""
    folder, logs = args.out / base.name / "indexes", args.out / base.name / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    common = {"metric": args.metric, "threads": args.build_threads, "k": args.k, "seed": args.seed}
    own = common | {"base": str(base.base.resolve())}
    filters = {"filters": {task.name: str(task.only) for task in tasks if task.only},
               "filters_digest": filter_tasks.digest(tasks)}
    contenders, builds, skipped = [], {}, {}
    for spec in [*kinds, *peers]:
        say(f"preparing {spec.name}")
        if spec in kinds:
            log = logs / "stratann.log"
            thing = FilteredStratAnn(spec, StratAnnIndex(spec, args.stratann, own, folder, log), log)
        else:
            job = common | {"base": str(base.form_for(spec, base.base).resolve()), "dim": base.dim,
                            "source_dtype": base.dtype} | (filters if spec.has_columns else {})
            thing = FilteredPeer(spec, job, folder, logs / f"{spec.name}.log")
        try:
            builds[spec.name] = thing.build(args.reuse)
            thing.open({"threads": 1, "min_seconds": args.min_seconds, "latency_queries": 0,
                        "queries": str(base.form_for(spec, tasks[0].queries) if spec in peers else tasks[0].queries),
                        "groundtruth": str(tasks[0].truth)})
            contenders.append(thing)
        except Skip as reason:
            thing.close()
            skipped[spec.name] = str(reason)
            say(f"skipped {spec.name}: {reason}")
    return contenders, builds, skipped


def chosen_by_auto(args, base):
    """The kind that `auto` chooses for the set, by a build without calibration; None where there is no program."""
    spec, folder = KindSpec("auto", "auto", "memory", ()), args.out / base.name / "indexes"
    job = {"metric": args.metric, "seed": args.seed, "threads": args.build_threads, "base": str(base.base.resolve())}
    index = StratAnnIndex(spec, args.stratann, job, folder, args.out / base.name / "logs" / "stratann.log")
    try:
        index.build(args.reuse)
        return program.run(args.stratann, "info", index.path, "--json")["kind"]
    except (Skip, OSError, RuntimeError, KeyError) as e:
        say(f"what auto chooses is unknown: {e}")
        return None


class Rounds:
    """One filter, asked of every contender in turn."""

    def __init__(self, args, base, task, skipped):
        self.args, self.base, self.task, self.skipped = args, base, task, skipped

    def attempt(self, contender, do):
        """What `do` returns; None, and the reason noted, where the contender cannot answer this filter."""
        try:
            return do(contender)
        except Skip as reason:
            self.skipped.setdefault(f"{contender.name}, {self.task.name}", str(reason))
            say(f"{contender.name} has no result for {self.task.name}: {reason}")
            return None

    def look(self, contender):
        spec = contender.spec
        queries = self.base.form_for(spec, self.task.queries) if hasattr(spec, "dtypes") else self.task.queries
        contender.use(self.task, queries)
        return contender.look(contender.settings, max(self.args.recalls), self.args.sweep_seconds)

    def hold(self, contenders):
        """{contender: points}: medians over the rounds of the settings around the recalls."""
        kept = {}
        for c in contenders:
            points = self.attempt(c, self.look)
            if points:
                kept[c] = figures.kept_settings(points, self.args.recalls)
        rounds = {c: [] for c in kept}
        order = list(kept)
        for _ in range(self.args.rounds):
            for c in order:
                points = self.attempt(c, lambda c: c.measure(kept[c])) if c in rounds else None
                if points is None:
                    rounds.pop(c, None)
                else:
                    rounds[c].append(points)
            order = order[1:] + order[:1]        # nobody always runs right after the same neighbour
        return {c.name: self.points(c, per_round) for c, per_round in rounds.items()}

    def points(self, contender, per_round):
        points = [figures.middle(same) for same in zip(*per_round, strict=True)]
        last = figures.best(points)
        if last["few_results"] is None and last["recall"] < max(self.args.recalls):
            last["few_results"] = self.attempt(contender, lambda c: c.few_results(last["setting"]))
        return points


def hold(args, base, tasks, contenders, builds, skipped):
    """All filters in turn; returns the results."""
    load, found = session.Load(), {c.name: {} for c in contenders}
    try:
        for i, task in enumerate(tasks):
            say(f"filter {i + 1} of {len(tasks)}: {task.name}, {task.matches:,} rows")
            for name, points in Rounds(args, base, task, skipped).hold(contenders).items():
                found[name][task.name] = points
    finally:
        for c in contenders:
            c.close()
    entries = {c.name: {"version": builds[c.name].get("version"), "options": c.options, "build": builds[c.name],
                        "tasks": found[c.name]} for c in contenders if found[c.name]}
    facts = {t.name: {"place": t.place, "percent": t.percent, "matches": t.matches, "k": t.k, "queries": t.count}
             for t in tasks}
    return {
        "date": time.strftime("%Y-%m-%d"), "stratann": stored.program_version(args.stratann),
        "machine": session.machine() | load.record(), "isa_asked": os.environ.get("STRATANN_ISA"), "threads": 1,
        "rounds": args.rounds, "k": args.k, "recalls": args.recalls, "seed": args.seed,
        "data": {"name": base.name, "n": base.n, "dim": base.dim, "dtype": base.dtype, "metric": args.metric},
        "auto": chosen_by_auto(args, base), "tasks": facts, "contenders": entries, "skipped": skipped}


def print_report(results):
    data, machine = results["data"], results["machine"]
    print(f"\n{data['name']}: {data['n']:,} x {data['dim']} {data['dtype']}, {data['metric']}, k={results['k']}, one "
          f"thread, rounds: {results['rounds']}, medians")
    for target in results["recalls"]:
        print(f"\nQueries per second of a core at a recall of {target}; in brackets the best recall where it is not "
              "reached, and the queries with too few results")
        print(filter_pages.plain_table(results, target))
    print("\n" + filter_pages.plain_ratios(results))
    for name, reason in results["skipped"].items():
        print(f"skipped: {name}: {reason}")
    print(f"other programs took {machine['other_cores']} of {machine['cores']} cores; {machine['seconds']:.0f} s")


def main(argv=None):
    args = arguments(argv)
    try:
        kinds = select("--kinds", args.kinds, roster.kinds(args.k))
        peers = select("--peers", args.peers, roster.peers(args.k))
        base_file, query_file = find_vectors(args)
        base = Base(args, base_file)
        tasks = filter_tasks.make(base_file, query_file, args.metric, args.k, args.out / base.name / "tasks",
                                  (args.random_queries, args.near_queries), args.seed)
    except (ValueError, DataError) as e:
        say(f"filters.py: {e}")
        return 2
    base.out = args.out / base.name
    prepared = prepare(args, base, tasks, kinds, peers)
    results = hold(args, base, [t for t in tasks if not args.filters or t.name in args.filters], *prepared)
    print_report(results)
    if not results["contenders"]:
        say("filters.py: nothing was measured; see the reasons above")
        return 1
    name = stored.filters_name_of(results)
    path = args.out / f"{name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    written = [path]
    if args.store:
        written.append(stored.write_filters(stored.FOLDER / f"{name}.json", results, [BENCH.parent, args.out]))
    print("\nwritten:", *written, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
