"""Search a gpu-ivf with a GPU and with this machine's threads: equal answers, and the time of both.

Runs the tests that need a GPU first. Vectors are generated. The results, with the date and the name of the GPU, are
written to bench/results/gpu-run.json and gpu-run.md. Ends with status 1, and writes nothing, where no GPU can be used.
"""

import argparse
import datetime
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# The ways that are compared. Without early tables the GPU builds the look-up table of a query with its candidates.
WAYS = {
    "cpu": ["--scorer", "cpu"],
    "cuda": ["--scorer", "cuda"],
    "cuda_no_early_tables": ["--scorer", "cuda", "--no-early-tables"],
}

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/release/stratann"
TESTS = [
    ["cargo", "test", "--release", "--locked", "--package", "stratann-gpu"],
    ["cargo", "test", "--release", "--locked", "--package", "stratann-engine", "--test", "gpu"],
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors (default: 1,000,000)")
    parser.add_argument("--dim", type=int, default=128, help="components (default: 128)")
    parser.add_argument("--queries", type=int, default=2000, help="queries (default: 2,000)")
    parser.add_argument("--nprobe", default="32,64,128,256", help="inverted lists to visit (default: 32,64,128,256)")
    parser.add_argument("--in-flight", default="1,32", help="queries in flight per thread (default: 1,32)")
    parser.add_argument("--threads", type=int, help="threads of a search (default: all cores)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts (default: 5)")
    parser.add_argument("--index", type=Path, help="a gpu-ivf to search, with --query-file")
    parser.add_argument("--query-file", type=Path, help="its queries")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results", help="folder of the results")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests")
    given = parser.parse_args()
    if (given.index is None) != (given.query_file is None):
        parser.error("--index and --query-file go together")
    return given


def run(*words):
    """The JSON that the program prints."""
    done = subprocess.run([PROGRAM, *map(str, words), "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu_run.py: stratann {words[0]} failed with status {done.returncode}")
    return json.loads(done.stdout)


def usable_gpu():
    """What `stratann doctor` says of the GPU; ends the program where none can be used."""
    found = run("doctor")["gpu"]
    if found["missing"]:
        missing = "; ".join(found["missing"])
        sys.exit(f"gpu_run.py: no GPU can be used: {missing}")
    return found


def made_index(given, folder):
    """A new index of generated vectors, and the file of its queries."""
    shape = ["--dim", given.dim, "--rows", given.rows, "--queries", given.queries]
    run("bench", "generate", "gaussian", "-o", folder / "data", *shape, "--clusters", 1000)
    build = ["--kind", "gpu-ivf", "--calibration-queries", 0]
    run("build", folder / "data/base.fbin", "-o", folder / "index", *build)
    return folder / "index", folder / "data/query.fbin"


def searched(given, index, queries, way, setting, out):
    """One search; `setting` is nprobe and the queries in flight. Results go to the file `out`."""
    nprobe, in_flight = setting
    words = ["search", index, queries, "--nprobe", nprobe, "--cache-budget", 0, *WAYS[way]]
    words += ["--in-flight", in_flight, "--output", out, "--force"]
    if given.threads:
        words += ["--threads", given.threads]
    return run(*words)["runs"][0]


def compared(given, index, queries, folder):
    """A row for each setting: medians over the rounds, the ways in turns. Ends where an answer differs."""
    rows = []
    for setting in itertools.product(given.nprobe.split(","), given.in_flight.split(",")):
        rounds = {way: [] for way in WAYS}
        files = {way: folder / f"{way}.ibin" for way in WAYS}
        for _ in range(given.rounds):
            for way, runs in rounds.items():
                runs.append(searched(given, index, queries, way, setting, files[way]))
        if any(file.read_bytes() != files["cpu"].read_bytes() for file in files.values()):
            sys.exit(f"gpu_run.py: the GPU and this machine's threads gave different answers with nprobe {setting[0]}")
        row = {"nprobe": int(setting[0]), "in_flight": int(setting[1])}
        for way, runs in rounds.items():
            row[f"{way}_qps"] = statistics.median(one["qps"] for one in runs)
            row[f"{way}_p50_us"] = statistics.median(one["latency_us"]["p50"] for one in runs)
            row[f"{way}_p99_us"] = statistics.median(one["latency_us"]["p99"] for one in runs)
        each = rounds["cuda"][0]["per_query"]
        row["codes_per_query"] = each["code_comparisons"]
        row["gpu_bytes_per_query"] = each["gpu_bytes"]
        for key in ("jobs", "tables_ready", "tables_awaited", "tables_with_job"):
            row[key] = rounds["cuda"][0]["scorer"]["gpu"][key]
        rows.append(row)
    return rows


def written(results, gpu, rows):
    """Writes the results as JSON and as a table."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    results.mkdir(parents=True, exist_ok=True)
    (results / "gpu-run.json").write_text(json.dumps({"date": today, "gpu": gpu, "rows": rows}, indent=1) + "\n")
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(f"{row[name]:,.0f}" for name in names) + " |" for row in rows]
    table = "\n".join(lines)
    (results / "gpu-run.md").write_text(f"# A gpu-ivf with a GPU and without, {today}\n\n{table}\n")
    print(table)


def main():
    given = arguments()
    gpu = usable_gpu()
    for test in [] if given.no_tests else TESTS:
        if subprocess.run(test, cwd=ROOT, check=False).returncode != 0:
            sys.exit(f"gpu_run.py: {' '.join(test)} failed")
    with tempfile.TemporaryDirectory(prefix="stratann-gpu-") as name:
        folder = Path(name)
        index, queries = (given.index, given.query_file) if given.index else made_index(given, folder)
        rows = compared(given, index, queries, folder)
    written(given.results, gpu, rows)


if __name__ == "__main__":
    main()
