"""One session: every contender on one set of queries with one number of threads, in turn, for some rounds."""
import os
import platform
import resource
import sys
import time
from pathlib import Path
from statistics import median

import disk_probe
import numpy
import report
from contenders import Skip, call_json

# Settings added to a sweep near the target, each halfway between two.
HALVINGS = 3
# Instructions on which the speed of some contender depends.
ISA = ("avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_vpopcntdq", "avx_vnni", "amx_int8")


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class DiskLimit:
    """4 KiB random reads a second, sampled once a round from the program's own check or from a direct probe."""

    def __init__(self, args, path):
        self.path, self.samples, self.method = path, [], None
        is_program = os.access(args.stratann, os.X_OK) and args.stratann.is_file()
        self.doctor = [str(args.stratann), "doctor", "--json"] if is_program else None
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

    def record(self):
        return {"iops": median(self.samples) if self.samples else None, "samples": self.samples,
                "method": self.method or "not measured: nothing is on disk"}


def machine():
    """The processor and what runs on it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
                 platform.machine())
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return {"cpu": model, "isa": [name for name in ISA if name in flags], "cores": os.cpu_count(),
            "kernel": platform.release(), "python": platform.python_version(), "numpy": numpy.__version__}


class Load:
    """What other programs took of the machine while a session ran: cores on average, and load averages."""

    def __init__(self):
        self.before, self.start = os.getloadavg()[0], self.now()

    @staticmethod
    def now():
        """(seconds, processor seconds of the machine, those of this process and its ended children)."""
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), busy, sum(u.ru_utime + u.ru_stime for u in own)

    def record(self):
        seconds, busy, own = (after - before for after, before in zip(self.now(), self.start, strict=True))
        return {"load_before": round(self.before, 2), "load_after": round(os.getloadavg()[0], 2),
                "other_cores": round(max(0.0, busy - own) / seconds, 2), "seconds": round(seconds, 1)}


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
        if any(c.storage == "disk" for c in live):
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
            "storage": c.storage, "version": builds[c.name].get("version"), "options": c.options,
            "build": builds[c.name], "chosen": chosen, "reached": reached, "sweep": sweep,
            "cpu_at_recall": report.at_recall(report.front(sweep), target),
            "pages_at_recall": report.pages_at(sweep, target) if c.storage == "disk" else None,
            "rounds": list(runs[c.name].values())}
    return entries


def hold(contenders, builds, skipped, args, data, threads, kind):
    """Open all that were built, measure them, close them; returns the results."""
    source = data.sources[kind]
    common = {"threads": threads, "groundtruth": str(source.truth.resolve()), "min_seconds": args.min_seconds,
              "latency_queries": args.latency_queries,
              "lone_queries": str(data.first_queries(source, args.latency_queries))}
    skipped, live, load = dict(skipped), [], Load()
    files = [f for f in (args.out / "indexes").rglob("*") if f.is_file()]
    disk = DiskLimit(args, max(files, key=lambda f: f.stat().st_size, default=data.base))
    try:
        for c in contenders:
            queries = data.form_for(c.spec, source.queries) if hasattr(c.spec, "dtypes") else source.queries
            try:
                c.open(common | {"queries": str(queries.resolve())})
                live.append(c)
            except Skip as reason:
                skipped[c.name] = str(reason)
                say(f"dropped {c.name}: {reason}")
                c.close()
        runs = measure(live, args.rounds, skipped, disk, args.recall)
    finally:
        for c in live:
            c.close()
    entries = entries_of(live, runs, builds, args.recall)
    return {
        "date": time.strftime("%Y-%m-%d"), "machine": machine() | load.record(),
        "isa_asked": os.environ.get("STRATANN_ISA"), "threads": threads, "rounds": args.rounds, "k": args.k,
        "target": args.recall,
        "data": {"name": data.name, "n": data.n, "dim": data.dim, "dtype": data.dtype, "metric": data.metric,
                 "distribution": kind, "queries": source.count, "made": source.text},
        "noise": report.noise(entries), "disk": disk.record(), "contenders": entries, "skipped": skipped,
    }
