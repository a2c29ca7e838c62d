#!/usr/bin/env python3
"""StratANN's collections beside databases that run in a process or on the same machine.

    bench/install_peers.sh databases
    make bench-databases                                        # on sample/
    make bench-databases BASE=base.u8bin QUERIES=query.u8bin BENCH_FLAGS='--rows 20000 --engines stratann,qdrant'

All get the same vectors and payloads in the same batches, each in a process of its own that is bound to one core. Then
each is opened again, searched without and with filters in turns, changed, compacted and searched once more. Exit codes:
0 done, 1 nothing could be measured, 2 bad usage or bad input.
"""
import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
VENV_PYTHON = BENCH / ".venv" / "bin" / "python"

try:
    import numpy
except ImportError:
    if Path(sys.executable) != VENV_PYTHON and VENV_PYTHON.exists():
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])
    sys.exit("databases.py: numpy is missing; run bench/install_peers.sh databases")

import database_contenders  # noqa: E402
import database_pages  # noqa: E402
import database_roster  # noqa: E402
import database_rows  # noqa: E402
import session  # noqa: E402
import stored  # noqa: E402
import vectors  # noqa: E402
from dataset import find_vectors  # noqa: E402
from roster import select  # noqa: E402
from session import say  # noqa: E402


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="base vectors, or a folder with base.*, query.*")
    add("--queries", type=Path, help="query vectors (default: query.* in the folder)")
    add("--metric", choices=["l2", "ip", "cosine"], default="l2")
    add("--k", type=int, default=10)
    add("--rows", type=int, help="the first so many vectors (default: all)")
    add("--query-count", type=int, default=100, help="the first so many queries (%(default)s)")
    add("--recalls", default="0.9,0.95,0.99", help="recalls@k at which speeds are compared (%(default)s)")
    add("--engines", default="all", help="all, or names (a family such as lancedb counts)")
    add("--filters", default="all", help="names of filters, such as none,of_10 (%(default)s)")
    add("--rounds", type=int, default=3)
    add("--opens", type=int, default=3, help="times that each is opened (%(default)s)")
    add("--batch-rows", type=int, default=1000, help="points of a write (%(default)s)")
    add("--churn-percent", type=float, default=30, help="rows that are changed: half are deleted, half overwritten "
                                                        "(%(default)s)")
    add("--min-seconds", type=float, default=0.1, help="shortest timed run (%(default)s)")
    add("--sweep-seconds", type=float, default=20, help="longest sweep of a database for one filter, in processor "
                                                       "time (%(default)s)")
    add("--extension", type=Path, default=BENCH.parent / "target" / "release" / "lib_stratann.so",
        help="the compiled half of the Python package under test (%(default)s)")
    add("--out", type=Path, default=BENCH / "out" / "databases", help="results, databases and logs (%(default)s)")
    add("--store", action="store_true", help="keep the results in bench/results, for `make bench-report`")
    add("--keep", action="store_true", help="do not remove the databases")
    add("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    for name in ("k", "rounds", "opens", "batch_rows", "query_count"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 < args.churn_percent <= 100:
        parser.error("--churn-percent must be above 0 and at most 100")
    try:
        args.recalls = sorted(float(word) for word in args.recalls.split(","))
    except ValueError:
        parser.error(f"--recalls {args.recalls}: must be numbers")
    if not all(0 < recall <= 1 for recall in args.recalls):
        parser.error("--recalls must lie in (0, 1]")
    args.filters = database_rows.names() if args.filters == "all" else args.filters.split(",")
    unknown = set(args.filters) - set(database_rows.names())
    if unknown:
        parser.error(f"--filters: there is no {min(unknown)}; use {', '.join(database_rows.names())}")
    args.extension, args.out = args.extension.resolve(), args.out.resolve()
    return args


def read_input(args):
    """(rows, queries, name of the set)."""
    base, query_file = find_vectors(args)
    found = vectors.open_vectors(base)
    rows = database_rows.Rows(base.resolve(), args.rows or len(found), args.seed)
    queries = vectors.open_vectors(query_file)[:args.query_count]
    if queries.shape[1] != rows.dim or queries.dtype != rows.dtype:
        raise vectors.DataError(f"{query_file}: {queries.dtype} x {queries.shape[1]}, but the base is {rows.dtype} x "
                                f"{rows.dim}; they must agree")
    if rows.n < args.k:
        raise vectors.DataError(f"--rows {rows.n}: fewer than the {args.k} results of a query")
    name = args.data.resolve().name if args.data.is_dir() else base.stem
    return rows, query_file.resolve(), numpy.asarray(queries, numpy.float32), name


def prepared(args, rows, query_file, count):
    """Contenders that take part: {name: contender}."""
    job = {"base": str(rows.base), "queries": str(query_file), "query_count": count, "rows": rows.n, "dim": rows.dim,
           "metric": args.metric, "k": args.k, "seed": args.seed, "batch_rows": args.batch_rows,
           "churn_percent": args.churn_percent}
    specs = select("--engines", args.engines, database_roster.engines(args.k, rows.dtype.name))
    package = database_contenders.package_of(args.extension, args.out)
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.out / "databases", ignore_errors=True)
    (args.out / "databases").mkdir()
    return [database_contenders.EngineProcess(spec, job, args.out, package) for spec in specs]


def hold(args, contenders, rows, queries, skipped):
    """All phases in turn; returns {name: entry}."""
    run = database_contenders.Run(args, contenders, skipped)
    tasks = database_rows.make_tasks(rows, queries, args.metric, args.k, args.out / "tasks")
    churned = database_rows.Churn(rows.n, args.churn_percent, args.seed)
    later = database_rows.make_tasks(rows, queries, args.metric, args.k, args.out / "tasks-later", churned.content)
    try:
        run.load()
        run.open()
        for i, name in enumerate(args.filters):
            say(f"filter {i + 1} of {len(args.filters)}: {name}, {tasks[name].matches:,} rows")
            run.search(tasks[name])
        run.change()
        for name in [name for name in args.filters if name in database_rows.LATER]:
            run.search_later(later[name])
    finally:
        run.close()
    facts = {name: {"percent": database_rows.percent_of(name), "matches": tasks[name].matches,
                    "matches_later": later[name].matches} for name in args.filters}
    return {name: entry for name, entry in run.entries.items() if name not in skipped}, facts


def measured(args, rows, queries, contenders, name):
    skipped, load = {}, session.Load()
    entries, facts = hold(args, contenders, rows, queries, skipped)
    own = next((e for e in entries if e.startswith(database_roster.OWN)), None)
    return {
        "date": time.strftime("%Y-%m-%d"), "stratann": entries[own]["version"] if own else None,
        "machine": session.machine() | load.record(), "isa_asked": os.environ.get("STRATANN_ISA"), "threads": 1,
        "rounds": args.rounds, "opens": args.opens, "k": args.k, "recalls": args.recalls, "seed": args.seed,
        "batch_rows": args.batch_rows, "churn_percent": args.churn_percent,
        "data": {"name": name, "n": rows.n, "dim": rows.dim, "dtype": rows.dtype.name, "metric": args.metric,
                 "queries": len(queries)},
        "tasks": facts, "contenders": entries, "skipped": skipped}


def main(argv=None):
    args = arguments(argv)
    try:
        rows, query_file, queries, name = read_input(args)
        contenders = prepared(args, rows, query_file, len(queries))
    except (ValueError, vectors.DataError) as e:
        say(f"databases.py: {e}")
        return 2
    results = measured(args, rows, queries, contenders, name)
    if not args.keep:
        shutil.rmtree(args.out / "databases", ignore_errors=True)
    if not results["contenders"]:
        for contender, reason in results["skipped"].items():
            say(f"skipped: {contender}: {reason}")
        say("databases.py: nothing was measured; see the reasons above")
        return 1
    print(database_pages.plain(results))
    file = stored.databases_name_of(results)
    path = args.out / f"{file}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    written = [path]
    if args.store:
        written.append(stored.write_databases(stored.FOLDER / f"{file}.json", results, [BENCH.parent, args.out]))
    print("\nwritten:", *written, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
