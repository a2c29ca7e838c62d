"""Try a gpu-ivf on this machine's GPU: tests, equal answers, and the time of the GPU and of the processor.

`make gpu-kit` packs this file with the program and the GPU's test programs; `make gpu` does so and runs them here. It
needs Python alone: neither cargo nor network. Steps that do not fit in --minutes are left out and listed. The results,
with the date and the name of the GPU, are written to gpu-run.json and gpu-run.md. Ends with status 1 where no GPU can
be used, a test fails, or an answer differs.
"""

import argparse
import datetime
import itertools
import json
import os
import shutil
import site
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

# The ways that are compared: both rank codes of bits, and give equal answers.
WAYS = {
    "cpu": ["--scorer", "cpu"],
    "cuda": ["--scorer", "cuda"],
}

HERE = Path(__file__).resolve().parent
# What checks memory and races in kernels, where CUDA's toolkit is installed.
SANITIZER = "compute-sanitizer"


class Failed(Exception):
    """Failure that ends the run with status 1."""


class Steps:
    """Steps that fit in the time, their outcomes, and those that were left out."""

    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes
        self.outcomes = []

    def left(self):
        return self.end - time.monotonic()

    def run(self, name, words, wanted_seconds=1):
        """Runs a program; its output, or `None` where it does not fit in the time."""
        if self.left() < wanted_seconds:
            return self.leave_out(name)
        start = time.monotonic()
        try:
            done = subprocess.run(
                [str(word) for word in words],
                capture_output=True,
                text=True,
                check=False,
                timeout=self.left(),
                env=environment(),
            )
        except subprocess.TimeoutExpired:
            return self.leave_out(name)
        seconds = round(time.monotonic() - start, 1)
        self.note(name, "passed" if done.returncode == 0 else f"failed with status {done.returncode}", seconds)
        if done.returncode != 0:
            raise Failed(f"{name} failed with status {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout

    def leave_out(self, name, why="no time was left"):
        self.note(name, f"left out: {why}", 0)

    def note(self, name, outcome, seconds):
        self.outcomes.append({"step": name, "outcome": outcome, "seconds": seconds})
        print(f"{name}: {outcome} ({seconds} s)", flush=True)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4, help="time for all of it (default: 4)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors (default: 1,000,000)")
    parser.add_argument("--dim", type=int, default=128, help="components (default: 128)")
    parser.add_argument("--queries", type=int, default=2000, help="queries (default: 2,000)")
    parser.add_argument("--nprobe", default="64,256,2048", help="inverted lists to visit (default: 64,256,2048)")
    parser.add_argument("--threads", default="1,4", help="threads of a search (default: 1,4)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts (default: 3)")
    parser.add_argument("--index", type=Path, help="a gpu-ivf to search, with --query-file")
    parser.add_argument("--query-file", type=Path, help="its queries")
    parser.add_argument("--kit", type=Path, default=HERE, help="folder of program and tests (default: this one)")
    parser.add_argument("--results", type=Path, help="folder of the results (default: that of the kit)")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests")
    given = parser.parse_args(words)
    if (given.index is None) != (given.query_file is None):
        parser.error("--index and --query-file go together")
    given.kit = given.kit.resolve()
    given.results = given.results or given.kit
    return given


def program(given):
    return given.kit / "stratann"


def environment():
    """The environment with folders in which CUDA's libraries may lie: its toolkit, and Python packages."""
    packages = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
    folders = [*Path("/usr/local").glob("cuda*/lib64")]
    for package in sorted(packages):
        folders += Path(package).glob("nvidia/*/lib")
    known = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    path = ":".join(filter(None, [*known, *map(str, folders)]))
    return {**os.environ, "LD_LIBRARY_PATH": path}


def usable_gpu(given, steps):
    """Report of `stratann doctor` on the GPU."""
    found = json.loads(steps.run("doctor", [program(given), "doctor", "--json"]) or "{}").get("gpu")
    missing = found["missing"] if found else ["`stratann doctor` did not answer"]
    if missing:
        raise Failed("no GPU can be used: " + "; ".join(missing))
    return found


def made_index(given, folder, steps):
    """A new index of generated vectors, and the file of its queries; `None` where time does not suffice."""
    shape = ["--dim", given.dim, "--rows", given.rows, "--queries", given.queries]
    data = [program(given), "bench", "generate", "gaussian", "-o", folder / "data", *shape, "--clusters", 1000]
    build = [program(given), "build", folder / "data/base.fbin", "-o", folder / "index", "--kind", "gpu-ivf"]
    build += ["--calibration-queries", 0]
    if steps.run("generate", data) is None or steps.run("build", build) is None:
        return None
    return folder / "index", folder / "data/query.fbin"


def search_words(given, index, queries, way, setting, out):
    """One search; `setting` is nprobe and threads. Results go to the file `out`."""
    nprobe, threads = setting
    words = [program(given), "search", index, queries, "--nprobe", nprobe, "--threads", threads, "--preload"]
    return [*words, *WAYS[way], "--rule", "static", "--candidates", 50, "--output", out, "--force", "--json"]


def compared_setting(given, index, queries, setting, folder, steps):
    """Medians over the rounds, the ways in turns; `None` where not one round fits in the time."""
    rounds = {way: [] for way in WAYS}
    files = {way: folder / f"{way}.ibin" for way in WAYS}
    longest = 0
    for number in range(given.rounds):
        start = time.monotonic()
        for way, runs in rounds.items():
            name = f"search nprobe {setting[0]}, {setting[1]} threads, {way}, round {number + 1}"
            out = steps.run(name, search_words(given, index, queries, way, setting, files[way]), longest)
            if out is None:
                return row_of(setting, rounds) if number > 0 else None
            runs.append(json.loads(out)["runs"][0])
        longest = max(longest, (time.monotonic() - start) / len(WAYS))
        if any(file.read_bytes() != files["cpu"].read_bytes() for file in files.values()):
            raise Failed(f"the GPU and the processor gave different answers with nprobe {setting[0]}")
    return row_of(setting, rounds)


def row_of(setting, rounds):
    row = {"nprobe": int(setting[0]), "threads": int(setting[1]), "rounds": min(map(len, rounds.values()))}
    for way, runs in rounds.items():
        row[f"{way}_qps"] = statistics.median(one["qps"] for one in runs)
        row[f"{way}_p50_us"] = statistics.median(one["latency_us"]["p50"] for one in runs)
        row[f"{way}_p99_us"] = statistics.median(one["latency_us"]["p99"] for one in runs)
    each = rounds["cuda"][0]["per_query"]
    row["codes_per_query"] = each["code_comparisons"]
    row["gpu_bytes_per_query"] = each["gpu_bytes"]
    gpu = rounds["cuda"][0]["scorer"]["gpu"]
    row["jobs"] = gpu["jobs"]
    row["jobs_a_batch"] = gpu["jobs"] / max(1, gpu["batches"])
    row["kernel_us_a_job"] = gpu["kernel_us"] / max(1, gpu["jobs"])
    return row


def sanitized(given, index, queries, setting, folder, steps):
    """Checks the memory and the races of the kernels in a search of few queries, where CUDA's toolkit can."""
    found = shutil.which(SANITIZER, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    few = folder / ("few" + queries.suffix)
    with queries.open("rb") as whole:
        count, rest = int.from_bytes(whole.read(4), "little"), queries.stat().st_size - 8
        kept = min(50, count)
        few.write_bytes(kept.to_bytes(4, "little") + whole.read(4 + kept * (rest // max(1, count))))
    for tool in ("memcheck", "racecheck"):
        if found is None:
            steps.leave_out(tool, f"{SANITIZER} is not installed")
            continue
        words = search_words(given, index, few, "cuda", setting, folder / "checked.ibin")
        steps.run(tool, [found, "--tool", tool, "--error-exitcode", "9", *words])


def shown(figure):
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.1f}"


def written(results, gpu, steps, rows, failure):
    """Writes the results as JSON and as a table."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    results.mkdir(parents=True, exist_ok=True)
    found = {"date": today, "gpu": gpu, "failure": failure, "steps": steps.outcomes, "rows": rows}
    (results / "gpu-run.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = [f"# A gpu-ivf with a GPU and without, {today}", ""]
    if failure:
        lines += [f"Failed: {failure.splitlines()[0]}", ""]
    lines += ["| step | outcome | s |", "|---|---|---|"]
    lines += [f"| {one['step']} | {one['outcome']} | {one['seconds']} |" for one in steps.outcomes]
    if rows:
        names = list(rows[0])
        lines += ["", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        lines += ["| " + " | ".join(shown(row[name]) for name in names) + " |" for row in rows]
    (results / "gpu-run.md").write_text("\n".join(lines) + "\n")


def steps_of(given, steps, found):
    """All steps, the most telling first. What they find goes to `found`."""
    found["gpu"] = usable_gpu(given, steps)
    for test in [] if given.no_tests else sorted((given.kit / "tests").iterdir()):
        steps.run(f"test {test.name}", [test])
    with tempfile.TemporaryDirectory(prefix="stratann-gpu-") as name:
        folder = Path(name)
        made = (given.index, given.query_file) if given.index else made_index(given, folder, steps)
        if made is None:
            return
        settings = list(itertools.product(given.nprobe.split(","), given.threads.split(",")))
        for setting in settings:
            row = compared_setting(given, *made, setting, folder, steps)
            found["rows"] += [row] if row else []
        sanitized(given, *made, settings[0], folder, steps)


def main(words=None):
    given = arguments(words)
    steps, found, failure = Steps(given.minutes), {"gpu": None, "rows": []}, None
    try:
        steps_of(given, steps, found)
    except Failed as error:
        failure = str(error)
    written(given.results, found["gpu"], steps, found["rows"], failure)
    print((given.results / "gpu-run.md").read_text())
    if failure:
        sys.exit(f"gpu_run.py: {failure}")


if __name__ == "__main__":
    main()
