"""Databases in worker processes, and the phases of their comparison: load, open, search, change."""
import shutil
from pathlib import Path
from statistics import median

import filter_figures as figures
from contenders import BENCH, PeerProcess, Skip
from filter_contenders import CPU_US_MIN
from session import say

PACKAGE = BENCH.parent / "python" / "stratann"
EXTENSION = "_stratann.abi3.so"
# A database whose query takes more processor time than this is not tried with more effort. A single query of some takes
# 20 ms whatever its effort.
QUERY_US_MAX = 200_000


def package_of(extension, out):
    """A folder with the Python package and its compiled half; None where that was not compiled."""
    if not extension.exists():
        return None
    folder = out / "package"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PACKAGE, folder / "stratann", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(extension, folder / "stratann" / EXTENSION)
    return folder


class EngineProcess(PeerProcess):
    """One database in its worker process."""

    PACKAGE, SLOW = "engines", ("load", "ready", "churn", "compact")

    def __init__(self, spec, job, out, package):
        self.spec, self.name, self.settings, self.process = spec, spec.name, spec.settings, None
        folder = out / "databases" / spec.name
        self.job = job | spec.options | {"folder": str(folder), "settings": list(spec.settings)}
        self.log_path = Path(out) / "logs" / f"{spec.name}.log"
        self.package = package

    def packages(self):
        return [self.package] if self.package else []

    def begin(self):
        """Starts the process; returns what it says of the database."""
        if self.package is None and self.spec.module.startswith("stratann"):
            raise Skip("the Python extension is not compiled; make bench-databases compiles it")
        self.start(1)
        return self.ask("start", **self.job)

    def run(self, setting, mode, min_seconds):
        done = self.ask("run", setting=setting, mode=mode, min_seconds=min_seconds)
        return done | {"cpu_us": max(done["cpu_us"], CPU_US_MIN)}

    def sweep(self, enough, seconds, count):
        """Efforts in turn, up to the first with enough recall, or until so much processor time is spent."""
        points, spent = [], 0.0
        for setting in self.settings:
            points.append(self.run(setting, "one", 0))
            spent += points[-1]["cpu_us"] * count / 1e6
            if points[-1]["recall"] >= enough or points[-1]["cpu_us"] > QUERY_US_MAX or spent > seconds:
                break
        return points


def kept(point):
    """What is kept of a run."""
    latency = point["latency_us"] or {}
    return {key: point[key] for key in ("setting", "recall", "qps", "cpu_us", "few_results")} | {
        "p50_us": latency.get("p50"), "p99_us": latency.get("p99")}


def middle(rounds):
    """Medians of the runs of one setting over the rounds."""
    numbers = [key for key in ("recall", "qps", "cpu_us", "p50_us", "p99_us") if rounds[0][key] is not None]
    return rounds[0] | {key: median(r[key] for r in rounds) for key in numbers}


class Run:
    """All databases, from empty folders to changed points. What fails takes no further part."""

    def __init__(self, args, contenders, skipped):
        self.args, self.skipped = args, skipped
        self.contenders, self.entries = list(contenders), {c.name: {} for c in contenders}

    def attempt(self, contender, do):
        """What `do` returns; None, and the contender dropped, where it fails."""
        try:
            return do(contender)
        except Skip as reason:
            self.skipped[contender.name] = str(reason)
            say(f"skipped {contender.name}: {reason}")
            if contender in self.contenders:
                self.contenders.remove(contender)
            contender.close()
            return None

    def load(self):
        for contender in list(self.contenders):
            self.attempt(contender, self.load_one)

    def load_one(self, contender):
        entry = self.entries[contender.name]
        said = contender.begin()
        entry |= {"version": said["version"], "promise": said["promise"], "options": said["details"],
                  "modes": said["modes"]}
        entry["empty_disk_bytes"] = contender.ask("create")["disk_bytes"]
        entry["load"] = contender.ask("load")
        say(f"{contender.name}: loaded in {entry['load']['seconds']:.1f} s")
        entry["ready"] = contender.ask("ready")
        say(f"{contender.name}: ready after {entry['ready']['seconds']:.1f} s more")
        entry["loaded"] = contender.ask("measure")
        contender.ask("close")
        contender.close()

    def open(self):
        """Each several times in turn; the last process stays for the searches."""
        times = {c.name: [] for c in self.contenders}
        for turn in range(self.args.opens):
            for contender in list(self.contenders):
                opened = self.attempt(contender, self.open_one)
                if opened is None:
                    continue
                times[contender.name].append(opened)
                if turn + 1 < self.args.opens:
                    contender.ask("close")
                    contender.close()
        for contender in self.contenders:
            opened = times[contender.name]
            self.entries[contender.name] |= {
                "open": {key: median(o[key] for o in opened) for key in ("seconds", "cpu_seconds")},
                "opened": contender.ask("measure"), "searching_rss_bytes": 0, "tasks": {}, "later": {}}

    @staticmethod
    def open_one(contender):
        contender.begin()
        return contender.ask("open")

    def note_rss(self, contender, points):
        entry = self.entries[contender.name]
        entry["searching_rss_bytes"] = max(entry["searching_rss_bytes"], *(p["rss_bytes"] for p in points))

    def sweep(self, contender, task):
        contender.ask("task", path=str(task.path))
        points = contender.sweep(max(self.args.recalls), self.args.sweep_seconds, self.args.query_count)
        self.note_rss(contender, points)
        return [kept(point) for point in points]

    def search(self, task):
        """A curve of each; then the settings around the recalls in rounds, one database after another."""
        curves = {}
        for contender in list(self.contenders):
            points = self.attempt(contender, lambda c: self.sweep(c, task))
            if points:
                curves[contender] = points
        chosen = {c: figures.kept_settings(points, self.args.recalls) for c, points in curves.items()}
        rounds, order = {c: {} for c in curves}, list(curves)
        for _ in range(self.args.rounds):
            for contender in order:
                if contender in self.contenders:
                    self.attempt(contender, lambda c: self.measure(c, chosen[c], rounds[c]))
            order = order[1:] + order[:1]        # nobody always runs right after the same neighbour
        for contender in order:
            found = {"curve": curves[contender]}
            for mode in self.entries[contender.name]["modes"]:
                found[mode] = [middle(runs) for (of, _), runs in rounds[contender].items() if of == mode]
            self.entries[contender.name]["tasks"][task.name] = found

    def measure(self, contender, settings, rounds):
        for i, setting in enumerate(settings):
            for mode in self.entries[contender.name]["modes"]:
                point = contender.run(setting, mode, self.args.min_seconds)
                self.note_rss(contender, [point])
                rounds.setdefault((mode, i), []).append(kept(point))

    def change(self):
        for contender in list(self.contenders):
            self.attempt(contender, self.change_one)

    def change_one(self, contender):
        entry = self.entries[contender.name]
        entry["churn"] = contender.ask("churn")
        entry["changed"] = contender.ask("measure")
        entry["compact"] = contender.ask("compact")
        entry["compacted"] = contender.ask("measure")
        say(f"{contender.name}: changed and compacted, {entry['compact']['seconds']:.1f} s")

    def search_later(self, task):
        """The efforts that were timed before the changes, once each, and a curve."""
        for contender in list(self.contenders):
            points = self.attempt(contender, lambda c: self.sweep(c, task))
            if points:
                self.entries[contender.name]["later"][task.name] = {"curve": points}

    def close(self):
        for contender in self.contenders:
            contender.close()
