#!/usr/bin/env python3
"""Show StratANN in two parts and print each command before it runs. Any step that fails ends the demo.

1. Search real text embeddings: questions and the documentation found, then the cost of each recall.
2. Build and search a set several times larger than its RAM budget.

    make demo                      # or: python3 demo/demo.py --rows 1000000 --ram-budget 128MiB

Everything is written to demo-out/, the plot to demo-out/recall-qps.png.
"""

import argparse
import gzip
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "sample"
SEARCH_LISTS = "10,15,20,30,50,80"
# Every read is made and counted.
COUNTED = ("--cache-budget", 0)
SHOWN_QUESTIONS = ("how do I write log messages to a file that rotates when it gets big",
                   "how do I run another program and capture its output",
                   "make a secure random token for a password reset link",
                   "wrap long lines of text to a fixed width")
NO_ANSWER = 0xFFFFFFFF
MIB = 1 << 20


class Failed(Exception):
    """An error, in one line."""


def say(text=""):
    print(text, flush=True)


def relative(path):
    try:
        return str(Path(path).relative_to(ROOT))
    except ValueError:
        return str(path)


class StratAnn:
    """The program; each call is printed as a person would type it."""

    def __init__(self, binary):
        self.binary = binary

    def call(self, *arguments):
        shown = ["stratann", *(relative(a) if isinstance(a, Path) else str(a) for a in arguments)]
        say("  $ " + shlex.join(shown))
        done = subprocess.run([self.binary, *map(str, arguments), "--json", "--quiet"],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed(f"`{shlex.join(shown)}` ended with status {done.returncode}")
        return json.loads(done.stdout)


def read_answers(path):
    """(ids, distances) of a result file: u32 queries, u32 k, ids, distances."""
    raw = path.read_bytes()
    queries, k = np.frombuffer(raw, "<u4", 2).tolist()
    cells = queries * k
    ids = np.frombuffer(raw, "<u4", cells, 8).reshape(queries, k)
    distances = np.frombuffer(raw, "<f4", cells, 8 + 4 * cells).reshape(queries, k)
    if (ids == NO_ANSWER).any():
        raise Failed(f"{relative(path)}: a query has fewer than {k} results")
    return ids, distances


def read_lines(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return [json.loads(line) for line in file]


def show_questions(answers):
    ids, distances = answers
    texts, queries = read_lines(SAMPLE / "texts.jsonl.gz"), read_lines(SAMPLE / "queries.jsonl")
    number_of = {q["text"]: i for i, q in enumerate(queries)}
    for question in SHOWN_QUESTIONS:
        number = number_of[question]
        say(f"\n  > {question}")
        for row, distance in zip(ids[number, :3], distances[number, :3], strict=True):
            title, text = texts[row]["title"], texts[row]["text"]
            start = text[len(title):].lstrip(" :.\n") if text.startswith(title) else text
            say(f"    {distance:.3f}  {title:<38.38}  {' '.join(start.split())[:60]}")


def show_runs(runs, k=10):
    say(f"\n  {'search list':>11}  {'recall@' + str(k):>9}  {'queries/s':>9}  {'p50 ms':>7}  {'p99 ms':>7}  "
        f"{'CPU us':>7}  {'pages read':>10}  {'distances':>9}")
    for run in runs:
        cost, latency = run["per_query"], run["latency_us"]
        say(f"  {run['params']['search_list']:>11}  {run['recall']:>9.4f}  {run['qps']:>9,.0f}  "
            f"{latency['p50'] / 1e3:>7.2f}  {latency['p99'] / 1e3:>7.2f}  {run['cpu_us']:>7.0f}  "
            f"{cost['pages_read']:>10.1f}  {cost['full_comparisons']:>9.1f}")
    say("  (CPU, 4 KiB pages and exact distances are per query; latency is under full load, many queries at once)")


def check_recall(runs, floor, what):
    best = max(run["recall"] for run in runs)
    if best < floor:
        raise Failed(f"{what}: the best recall is {best:.3f}, at least {floor} was expected")
    if any(run["failed_queries"] for run in runs):
        raise Failed(f"{what}: some queries failed")


def text_search(stratann, out):
    say("1. Search the Python documentation by meaning: 9,738 texts, 384 dimensions, cosine\n")
    index = out / "python-docs.idx"
    built = stratann.call("build", SAMPLE / "base.f16bin", "-o", index, "--kind", "disk-graph", "--metric", "cosine",
                          "--force")
    say(f"  built in {built['seconds']:.1f} s: {built['index_bytes'] / MIB:.1f} MiB on disk")
    found = out / "answers.ibin"
    stratann.call("search", index, SAMPLE / "query.f16bin", "--recall", 0.99, "-o", found, "--force")
    show_questions(read_answers(found))
    say("\n  The cost of recall, over all 200 queries with known answers, when nothing is cached:")
    runs = stratann.call("search", index, SAMPLE / "query.f16bin", "--groundtruth", SAMPLE / "groundtruth.ibin",
                         "--search-list", SEARCH_LISTS, *COUNTED)["runs"]
    show_runs(runs)
    check_recall(runs, 0.98, "python-docs")
    say("\n  Or ask for a recall: the build has measured the parameters that reach it, on rows of the index.")
    asked = stratann.call("search", index, SAMPLE / "query.f16bin", "--groundtruth", SAMPLE / "groundtruth.ibin",
                          "--recall", "0.9,0.95,0.99", *COUNTED)["runs"]
    for run in asked:
        pages = run["per_query"]["pages_read"]
        say(f"    requested {run['params']['recall']:<4}  measured {run['recall']:.3f}  {pages:.1f} pages per query")
    check_recall(asked, 0.95, "python-docs, by recall")
    return runs


def larger_than_memory(stratann, out, args):
    raw_bytes = args.rows * args.dim * 4
    say(f"\n2. A set larger than its memory: {args.rows:,} x {args.dim} f32 = {raw_bytes / MIB:.0f} MiB, "
        f"under a RAM budget of {args.ram_budget}\n")
    base, queries, truth, index = (out / n for n in ("large.fbin", "large-query.fbin", "large-truth.ibin", "large.idx"))
    subprocess.run([sys.executable, ROOT / "demo" / "make_large.py", base, queries, "--rows", str(args.rows),
                    "--dim", str(args.dim)], check=True)
    say("  made demo-out/large.fbin (synthetic clusters)")
    budget = ("--ram-budget", args.ram_budget)
    built = stratann.call("build", base, "-o", index, "--kind", "disk-graph", *budget, "--degree", 32,
                          "--build-list", 64, "--calibration-queries", 100, "--force")
    parts = built["facts"]["cells"]
    say(f"  built in {built['seconds']:.0f} s in {parts} part(s): {built['index_bytes'] / MIB:.0f} MiB on disk")
    stratann.call("groundtruth", base, queries, "-k", 10, "-o", truth, "--force", *budget)
    report = stratann.call("search", index, queries, "--groundtruth", truth, "--search-list", SEARCH_LISTS, *budget,
                           *COUNTED)
    show_runs(report["runs"])
    check_recall(report["runs"], 0.9, "large")
    show_memory(raw_bytes, built, report["runs"])
    base.unlink()
    return report["runs"]


def show_memory(raw_bytes, built, runs):
    budget_bytes = runs[0]["ram_budget_bytes"]
    say(f"\n  {'memory':<24} {'MiB':>6}  share of the vectors")
    figures = [("the vectors themselves", raw_bytes), ("RAM budget", budget_bytes),
               ("peak while building", built["peak_rss_bytes"]),
               ("peak while searching", max(run["peak_rss_bytes"] for run in runs))]
    for name, size in figures:
        say(f"  {name:<24} {size / MIB:>6.1f}  {'#' * min(60, round(40 * size / raw_bytes))} {size / raw_bytes:.0%}")
    over = [f"{name} ({size / MIB:.1f} MiB)" for name, size in figures[2:] if size > budget_bytes]
    if over:
        raise Failed(f"over the RAM budget of {budget_bytes / MIB:.1f} MiB: {', '.join(over)}")


def plot(sets, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, reads) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for name, runs in sets.items():
        recall = [run["recall"] for run in runs]
        speed.plot(recall, [run["qps"] for run in runs], marker="o", label=name)
        reads.plot(recall, [run["per_query"]["pages_read"] for run in runs], marker="o", label=name)
    speed.set(xlabel="recall@10", ylabel="queries per second", ylim=(0, None))
    reads.set(xlabel="recall@10", ylabel="4 KiB pages read per query", ylim=(0, None))
    for axes in (speed, reads):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    say(f"\nThe curves of both sets: {relative(path)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann", help="the program")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-out", help="where everything is written")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of the large set")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ram-budget", default="39MiB", help="memory for the large set")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        if not args.stratann.is_file():
            raise Failed(f"{args.stratann} does not exist; run `make build`")
        args.out = args.out.resolve()
        args.out.mkdir(parents=True, exist_ok=True)
        stratann = StratAnn(args.stratann.resolve())
        small = text_search(stratann, args.out)
        large = larger_than_memory(stratann, args.out, args)
        plot({"python docs, 9,738 x 384": small, f"synthetic, {args.rows:,} x {args.dim}": large},
             args.out / "recall-qps.png")
    except (Failed, OSError, subprocess.CalledProcessError) as fault:
        print(f"demo failed: {fault}", file=sys.stderr)
        return 1
    say(f"Done in {time.monotonic() - started:.0f} s. Next: README.md says how to search your own vectors.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
