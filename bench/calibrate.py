#!/usr/bin/env python3
"""Errors of `stratann simulate`: real server processes on this machine, compared with the simulation of them.

    python3 bench/calibrate.py base.idx query.fbin --servers 1,2,4 --search-arg=--nprobe=16

For each number of servers, real processes serve a partition of the index (`cluster up`), one search thread each, all
on the cores of this machine, and clients keep a fixed number of queries in flight. Then `simulate` replays the same:
the same partition, queries and load, servers that share these cores and this disk, at costs that were measured before
and are the same for all rows. Nothing is fitted to the real figures. Two costs come from here: what a client's
request takes on a server, from an index of a few vectors, and what the clients themselves take on these cores.

With --predict 10:2 the same is done for ten processes with two replicas, after two costs were fitted to the other
numbers of servers: a factor of all work, to the processor time of one server; and what a message takes, to that of
several. Nothing of what is predicted enters the fit. The real load runs twice, for the spread of equal runs.

Servers get the smallest memory that they run with, so that lists are not in RAM, as in the simulation. Run nothing else
meanwhile. Exit codes: 0 done, 1 something failed.
"""
import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from program import run

ROOT = Path(__file__).resolve().parent.parent
# Vectors of the index whose searches cost next to nothing.
TINY_ROWS = 16
# Cores that other programs may take in a round that counts as quiet.
QUIET_CORES = 0.1


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--servers", default="1,2,4", help="numbers of processes (%(default)s)")
    parser.add_argument("--predict", metavar="N:R",
                        help="fit costs to --servers, and predict N processes with R replicas")
    parser.add_argument("--mode", default=None, help="baton, score or both [default: all that the kind has]")
    parser.add_argument("--in-flight", type=int, default=32, help="queries in flight at the clients (%(default)s)")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (%(default)s)")
    parser.add_argument("--search-arg", action="append", default=[], metavar="ARG",
                        help="for search and simulate, such as --search-arg=--search-list=60")
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann")
    parser.add_argument("--costs", type=Path, help="costs of an earlier run, instead of measuring them")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


class Cluster:
    """Processes that serve an index."""

    def __init__(self, args, index, mode=None, budget=None, cache="0", learns=False):
        words = [args.stratann, "cluster", "up", index, "--threads", 1, "--no-merge", "--json", "--cache-budget", cache]
        if learns:
            words += ["--no-learning"]
        if mode:
            words += ["--remote", {"score": "score", "baton": "hand-over"}[mode]]
        if budget:
            words += ["--ram-budget", budget]
        words = [str(w) for w in words]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        line = self.process.stdout.readline()
        if not line.startswith('{"servers"'):
            raise RuntimeError(self.process.stderr.read()[-2000:])
        self.addresses = ",".join(s["address"] for s in json.loads(line)["servers"])
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=60)


def least_budget(args, index):
    """About the smallest memory that a server runs with, its usual queries in flight included; the refusal of a smaller
    one names it. What is left of it holds few lists, as the reads show.
    """
    budget = 8
    for _ in range(20):
        try:
            with Cluster(args, index, budget=f"{budget}MiB", learns=True):
                return f"{budget}MiB"
        except RuntimeError as error:
            if "--ram-budget" not in str(error):
                raise
            named = re.search(r"give --ram-budget (\d+)MiB", str(error))
            budget = max(budget + 1, int(named.group(1)) if named else 0)
    raise RuntimeError(f"{budget} MiB are not enough for a server")


def search(args, cluster, queries, *more):
    """One pass of all queries, one in each request: the servers' figures, and the clients' processor time a query."""
    before, busy, started = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.monotonic()
    found = run(args.stratann, "search", "--connect", cluster.addresses, queries, "--threads", args.in_flight,
                "--in-flight", 1, "--json", "--quiet", *more)["runs"][0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    found["client_us"] = 1e6 * spent / found["queries"]
    others = busy_seconds() - busy - spent - found["cpu_us"] * found["queries"] / 1e6
    found["others_cores"] = max(0.0, others / (time.monotonic() - started))
    if found["failed_queries"]:
        raise RuntimeError(f"{found['failed_queries']} queries failed")
    return found


def busy_seconds():
    """Processor time of the whole machine."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def quiet(args, one):
    """The median of the rounds in which other programs took least; some more rounds where they took much."""
    runs = []
    while len(runs) < args.rounds or (len(runs) < 4 * args.rounds and quiet_count(runs) < args.rounds):
        runs.append(one())
    runs = sorted(runs, key=lambda run: run["others_cores"])[:args.rounds]
    return sorted(runs, key=lambda run: run["qps"])[len(runs) // 2]


def quiet_count(runs):
    return sum(run["others_cores"] < QUIET_CORES for run in runs)


def request_us(args, folder, info):
    """Time of a request on a server whose search takes next to nothing."""
    header = args.queries.read_bytes()[:8]
    count, dim = (int.from_bytes(header[i:i + 4], "little") for i in (0, 4))
    row = (args.queries.stat().st_size - 8) // count
    tiny = folder / f"tiny{args.queries.suffix}"
    rows = min(TINY_ROWS, count)
    content = args.queries.read_bytes()[8:8 + rows * row]
    tiny.write_bytes(rows.to_bytes(4, "little") + dim.to_bytes(4, "little") + content)
    run(args.stratann, "build", tiny, "-o", folder / "tiny", "--kind", "flat", "--metric", info["metric"],
        "--json", "--quiet")
    with Cluster(args, folder / "tiny", cache="8MiB") as cluster:
        search(args, cluster, args.queries)
        return statistics.median(search(args, cluster, args.queries)["cpu_us"] for _ in range(args.rounds))


def link(args):
    """The network of this machine: loopback."""
    listening = subprocess.Popen([str(args.stratann), "doctor", "--link-listen", "127.0.0.1:0", "--quiet"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    address = listening.stderr.readline().split(" on ")[1].split(" ")[0]
    found = run(args.stratann, "doctor", "--path", args.index, "--link", address, "--json")
    listening.wait(30)
    return found


class Bench:
    """What all numbers of servers share: the index, the options of a search, and costs outside of searches."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.info = run(args.stratann, "info", args.index, "--json")
        self.is_of_lists = self.info["kind"] == "hybrid-ivf"
        self.common = [*args.search_arg, "--width", args.width]
        self.cores = len(os.sched_getaffinity(0))
        self.net = folder / "link.json"
        self.net.write_text(json.dumps(link(args)))
        self.asked = request_us(args, folder, self.info)

    def costs(self, servers, modes):
        """Costs of work on this machine, or those of an earlier run."""
        if self.args.costs:
            return json.loads(self.args.costs.read_text())
        return run(self.args.stratann, "simulate", self.args.index, self.args.queries, "--servers", max(servers),
                   "--mode", ",".join(modes), "--threads", 1, "--link", self.net, *self.common, "--json",
                   "--quiet")["costs"]

    def spread(self, count, replicas=1):
        """The index over so many servers."""
        if count == 1:
            return self.args.index
        index = self.folder / f"spread-{count}-{replicas}"
        run(self.args.stratann, "cluster", "partition", self.args.index, "-o", index, "--servers", count, "--replicas",
            replicas, "--json", "--quiet")
        return index

    def measured(self, count, mode, index, times=1):
        """Real figures of so many processes, as often."""
        budget = least_budget(self.args, index) if self.is_of_lists else None
        remote = mode if self.is_of_lists and count > 1 else None
        with Cluster(self.args, index, remote, budget, learns=self.is_of_lists) as up:
            search(self.args, up, self.args.queries, *self.common)
            return [quiet(self.args, lambda: search(self.args, up, self.args.queries, *self.common))
                    for _ in range(times)]

    def simulated(self, count, mode, costs, client_us, replicas=1):
        """The same, simulated. The clients share the cores."""
        path = self.folder / "costs.json"
        path.write_text(json.dumps(costs))
        return run(
            self.args.stratann, "simulate", self.args.index, self.args.queries, "--servers", count, "--replicas",
            replicas, "--mode", mode, "--costs", path, "--threads", 1, "--servers-per-host", count, "--cores-per-host",
            self.cores, "--request-us", self.asked + client_us, "--in-flight", self.args.in_flight, *self.common,
            "--json", "--quiet",
        )["runs"][0]


# Costs that grow with what a search does.
WORK = ("prepare_ns", "step_ns", "read_ns", "route_comparison_ps", "code_comparison_ps", "full_comparison_ps",
        "component_ps")


def scaled(costs, factor):
    """Costs with all work of searches so many times as long."""
    return {**costs, **{name: round(costs[name] * factor) for name in WORK if costs.get(name) is not None}}


def message_extra_ns(rows):
    """What a message takes beyond its cost, by least squares: rows of (real us, simulated us, messages of a query)."""
    squares = sum(messages * messages for _, _, messages in rows)
    return sum(1000 * (real - simulated) * messages for real, simulated, messages in rows) / squares if squares else 0.0


def fitted(bench, mode, costs, rows):
    """Costs that fit the processor time of all rows: (servers, real)."""
    alone = [real for count, real in rows if count == 1]
    if alone:
        server = alone[0]["cpu_us"] - bench.asked
        simulated = bench.simulated(1, mode, costs, 0.0)["cpu_us"] - bench.asked
        costs = scaled(costs, max(0.1, server / simulated))
    several = []
    for count, real in rows:
        if count > 1:
            found = bench.simulated(count, mode, costs, real["client_us"])
            several.append((real["cpu_us"], found["cpu_us"] - real["client_us"], found["messages_per_query"]))
    return {**costs, "message_ns": max(0, round(costs["message_ns"] + message_extra_ns(several)))}


def predict(bench, mode, costs, rows):
    """A row of a number of processes and replicas that nothing was fitted to."""
    count, replicas = (int(n) for n in bench.args.predict.split(":"))
    costs = fitted(bench, mode, costs, rows)
    print(f"fitted costs: {json.dumps(costs)}", file=sys.stderr)
    first, second = bench.measured(count, mode, bench.spread(count, replicas), times=2)
    simulated = bench.simulated(count, mode, costs, first["client_us"], replicas)
    row = {**compare(count, mode, first, simulated), "replicas": replicas}
    row["equal_runs_percent"] = {
        name: 100 * abs(of(second) / of(first) - 1)
        for name, of in (("qps", lambda r: r["qps"]), ("p99_us", lambda r: r["latency_us"]["p99"]))
    }
    return row


def main(argv):
    args = arguments(argv)
    servers = [int(n) for n in args.servers.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="stratann-calibrate-"))
    rows = []
    try:
        bench = Bench(args, folder)
        modes = (args.mode or ("baton,score" if bench.is_of_lists else "baton")).split(",")
        costs = bench.costs(servers, modes)
        print(f"costs: {json.dumps(costs)}\na request takes {bench.asked:.0f} us on its server", file=sys.stderr)
        real_rows = []
        for count in servers:
            index = bench.spread(count)
            for mode in modes if count > 1 else modes[:1]:
                real = bench.measured(count, mode, index)[0]
                if mode == modes[0]:
                    real_rows.append((count, real))
                rows.append(compare(count, mode, real, bench.simulated(count, mode, costs, real["client_us"])))
                print(text(rows[-1]), flush=True)
        if args.predict:
            rows.append(predict(bench, modes[0], costs, real_rows))
            print("predicted: " + text(rows[-1]), flush=True)
            print("equal runs differ by "
                  + ", ".join(f"{name} {x:.1f} %" for name, x in rows[-1]["equal_runs_percent"].items()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.out:
        args.out.write_text(json.dumps({"cores": bench.cores, "rows": rows}, indent=2) + "\n")
    return 0


def compare(count, mode, real, simulated):
    figures = {
        "qps": (real["qps"], simulated["qps"]),
        "cpu_us": (real["cpu_us"], simulated["cpu_us"] - real["client_us"]),
        "mean_us": (real["latency_us"]["mean"], simulated["latency_us"]["mean"]),
        "p99_us": (real["latency_us"]["p99"], simulated["latency_us"]["p99"]),
        "reads": (real["per_query"]["reads"], simulated["per_query"]["reads"]),
        "bytes_sent": (real["per_query"]["bytes_sent"], simulated["per_query"]["bytes_sent"]),
    }
    row = {"servers": count, "mode": mode, "others_cores": real["others_cores"],
           "client_us": real["client_us"], "bottleneck": simulated["bottleneck"],
           "utilisation": simulated["utilisation"]}
    for name, (measured, predicted) in figures.items():
        row[name] = {"real": measured, "simulated": predicted,
                     "error_percent": 100 * (predicted / measured - 1) if measured else 0.0}
    return row


def text(row):
    parts = [f"{name} {row[name]['real']:.0f} / {row[name]['simulated']:.0f} ({row[name]['error_percent']:+.0f} %)"
             for name in ("qps", "cpu_us", "mean_us", "p99_us", "reads", "bytes_sent")]
    others = row["others_cores"]
    busy = f"; other programs took {others:.2f} cores: compare the processor times alone"
    note = busy if others > QUIET_CORES else ""
    return f"{row['servers']} servers, {row['mode']}: " + ", ".join(parts) + note


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
