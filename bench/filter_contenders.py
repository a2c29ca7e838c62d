"""Contenders of the benchmark of filters: they first look for the settings that matter, then are timed at these.

Both have ``use(task, queries)``, ``look(settings, enough, seconds)`` and ``measure(settings)``; the last two return a
point for each setting: setting, recall, qps, cpu_us, few_results and, of StratANN, way.
"""
import math
from itertools import groupby

import vectors
from contenders import NO_READS, PASSES_MAX, PeerProcess, Skip, StratAnnPoint

# A search that takes more processor time than this for each query is not tried with more effort: a scan of all rows
# takes less.
QUERY_US_MAX = 20_000
# The clock of the processor may show none for a very short run.
CPU_US_MIN = 0.01


def point(setting, run, **fields):
    return {"setting": setting, "recall": run["recall"], "qps": run["qps"],
            "cpu_us": max(run["cpu_us"], CPU_US_MIN)} | fields


class FilteredPeer(PeerProcess):
    """A peer in its worker process."""

    def use(self, task, queries):
        self.task = task
        self.ask("filter", name=task.name, k=task.k, queries=str(queries), groundtruth=str(task.truth),
                 only=str(task.only) if task.only else None)

    def look(self, settings, enough, seconds):
        """Settings in turn, up to the first with enough recall, or until so much processor time is spent."""
        points, spent = [], 0.0
        for setting in settings:
            points += self.measure([setting], 0)
            spent += points[-1]["cpu_us"] * self.task.count / 1e6
            if points[-1]["recall"] >= enough or points[-1]["cpu_us"] > QUERY_US_MAX or spent > seconds:
                break
        return points

    def measure(self, settings, min_seconds=None):
        runs = [self.ask("run", setting=s, min_seconds=min_seconds) for s in settings]
        return [point(s, r, few_results=r["few_results"]) for s, r in zip(settings, runs, strict=True)]


class FilteredStratAnn(StratAnnPoint):
    """StratANN with one kind of index: a process for each knob, which has all its settings and opens the index once."""

    # One process visits more lists than one setting needs.
    CACHED_INDEXES = 16

    def use(self, task, queries):
        self.task, self.copies = task, 2
        self.session |= {"queries": str(queries), "groundtruth": str(task.truth)}
        self.index.job["k"] = task.k

    def look(self, settings, enough, seconds):
        points = self.measure(settings)
        fastest = min(p["cpu_us"] for p in points) / 1e6 * self.task.count
        self.copies = 1 + max(1, min(PASSES_MAX, math.ceil(self.session["min_seconds"] / fastest)))
        return points

    def measure(self, settings):
        points = []
        for knob, same in groupby(settings, key=lambda setting: next(iter(setting))):
            points += self.measure_knob(knob, [setting[knob] for setting in same])
        return points

    def words_of(self, task):
        return [*self.words, *(["--only", str(task.only)] if task.only else [])]

    def measure_knob(self, knob, values):
        """The first run of each value does not count."""
        repeated = ",".join(str(value) for value in values for _ in range(self.copies))
        runs, _ = self.index.search({knob: repeated}, 1, self.session, self.words_of(self.task))
        points = []
        for at, value in enumerate(values):
            kept = runs[at * self.copies + 1:(at + 1) * self.copies]
            reads = kept[-1]["per_query"]["reads"]
            if reads > NO_READS:
                raise Skip(f"{reads:.2f} reads per query: the index is not in memory")
            total = {"recall": kept[-1]["recall"], "qps": len(kept) / sum(1 / r["qps"] for r in kept),
                     "cpu_us": sum(r["cpu_us"] for r in kept) / len(kept)}
            points.append(point({knob: value}, total, few_results=None, way=kept[-1].get("filter", {}).get("way")))
        return points

    def few_results(self, setting):
        """Queries with fewer results than wanted at a setting, by the file of results."""
        found = self.log_path.parent / "results.ibin"
        self.index.search(setting, 1, self.session, [*self.words_of(self.task), "-o", str(found), "--force"])
        ids = vectors.read_groundtruth(found, self.task.count, self.task.k)
        return int(((ids >= 0).sum(axis=1) < self.task.k).sum())
