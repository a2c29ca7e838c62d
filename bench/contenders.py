"""Contenders of a comparison: peers in worker processes, and StratANN through its command line.

Each contender is built once by ``build()``, then opened and closed for every session. It has ``name``, ``storage``,
``settings``, ``options`` and ``run(setting)``, which returns one measurement: recall, qps, latency_us, cpu_us, reads,
pages_read, peak_rss_bytes, baseline_rss_bytes.
"""
import json
import math
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
PAGE_BYTES = 4096
MIB = 1 << 20
# Reads per query of a search in memory that say that it was none.
NO_READS = 0.01
PASSES_MAX = 100
# A peer that takes longer to load or for one run has hung.
ANSWER_SECONDS = 300


class Skip(Exception):
    """This contender takes no part; the message is the reason."""


def file_stamp(path):
    """Identity of a version of a file, without reading it."""
    stat = Path(path).stat()
    return [str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns]


def build_once(folder, name, stamp, reuse, make):
    """`make()` unless `reuse` and an index with the same stamp is there; returns (build record, index folder)."""
    index_dir, record = folder / name, folder / f"{name}.json"
    if reuse and record.exists() and index_dir.exists():
        saved = json.loads(record.read_text())
        if saved["stamp"] == stamp:
            return saved["build"] | {"reused": True}
    record.unlink(missing_ok=True)
    shutil.rmtree(index_dir, ignore_errors=True)
    built = make(index_dir)
    record.write_text(json.dumps({"stamp": stamp, "build": built}, indent=1) + "\n")
    return built


class PeerProcess:
    """One peer; its build and its searches are separate worker processes."""

    # Where its module is, and commands that may take long.
    PACKAGE, SLOW = "peers", ("build",)

    def __init__(self, spec, job, folder, log_path):
        self.spec, self.name, self.storage, self.settings = spec, spec.name, spec.storage, spec.settings
        self.job = job | spec.options
        self.folder, self.log_path = folder, log_path
        self.process = None
        self.options = {}

    def interpreter(self):
        own = BENCH / self.spec.venv / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    def packages(self):
        """Further folders of Python packages."""
        return []

    def start(self, threads):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [BENCH, *self.packages()]))}
        env |= {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen([self.interpreter(), "-m", f"{self.PACKAGE}.{self.spec.module}"], cwd=BENCH,
                                            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True)

    def ask(self, command, **fields):
        log = f"logs/{self.log_path.name}"
        try:
            print(json.dumps({"command": command} | fields), file=self.process.stdin, flush=True)
            if command not in self.SLOW and not select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0]:
                self.process.kill()
                raise Skip(f"'{command}' took more than {ANSWER_SECONDS} s; see {log}")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Skip(f"its process ended with status {self.process.wait()} during '{command}'; see {log}")
        reply = json.loads(line)
        if "missing" in reply:
            raise Skip(f"{reply['missing']}; bench/install_peers.sh installs it")
        if "error" in reply:
            raise Skip(f"'{command}' failed: {reply['error']}; see {log}")
        return reply

    def close(self):
        if self.process is None:
            return
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.process = None

    def build(self, reuse):
        """Build in a process of its own; returns the build record."""
        def make(index_dir):
            self.start(self.job["threads"])
            try:
                return self.ask("build", **self.job, index_dir=str(index_dir))
            finally:
                self.close()

        stamp = {"job": self.job, "base": file_stamp(self.job["base"])}
        built = build_once(self.folder, self.name, stamp, reuse, make)
        self.options = built["details"]
        return built

    def open(self, session):
        """Start the searching process, with the index loaded."""
        self.start(session["threads"])
        self.ask("load", **(self.job | session), index_dir=str(self.folder / self.name))

    def run(self, setting):
        return self.ask("run", setting=setting)


def call_json(command, log_path):
    """Run a command that prints one JSON document; returns (document, what the kernel counted for it)."""
    with tempfile.TemporaryFile() as out, open(log_path, "a") as log:
        print("+", *command, file=log, flush=True)
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        except OSError as e:
            raise Skip(f"{command[0]}: {e.strerror}; give the binary with --stratann") from e
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise Skip(f"'{command[1]}' exited with status {process.returncode}; see logs/{log_path.name}")
    # Until its exec a child counts this process' memory as its own peak: a figure no larger than ours says nothing.
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = usage.ru_maxrss * 1024 if usage.ru_maxrss > inherited else 0
    kernel = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_rss_bytes": peak,
              "bytes_read": usage.ru_inblock * 512}
    try:
        return json.loads(text), kernel
    except ValueError as e:
        raise Skip(f"'{command[1]} --json' printed no JSON document ({e}); see logs/{log_path.name}") from e


class StratAnnIndex:
    """An index under test: built once, searched by the contenders that share it."""

    def __init__(self, spec, binary, job, folder, log_path):
        self.spec, self.binary, self.job, self.log_path = spec, str(binary), job, log_path
        self.folder, self.path = folder, folder / spec.index
        self.built = None

    def options(self):
        """Options of the build: the defaults, and what every contender has in common."""
        job = self.job
        options = ["--kind", self.spec.kind, "--metric", job["metric"], "--seed", str(job["seed"])]
        return options + (["--code-bytes", str(job["code_bytes"])] if self.spec.has_code_bytes else [])

    def build(self, reuse):
        if not (os.path.isfile(self.binary) and os.access(self.binary, os.X_OK)):
            raise Skip(f"no program at {self.binary}; build it, or give --stratann PATH")
        options, threads = self.options(), ["--threads", str(self.job["threads"])]

        def make(index_dir):
            command = [self.binary, "build", self.job["base"], "-o", str(index_dir), *options, *threads, "--json"]
            document, kernel = call_json(command, self.log_path)
            try:
                return {"seconds": document["seconds"], "cpu_seconds": kernel["cpu_seconds"],
                        "peak_rss_bytes": max(document["peak_rss_bytes"], kernel["peak_rss_bytes"]),
                        "baseline_rss_bytes": 0, "index_bytes": document["index_bytes"],
                        "details": {"options": " ".join(options), "stages": document.get("stages")}}
            except KeyError as e:
                raise Skip(f"'build --json' has no key {e}; see logs/{self.log_path.name}") from e

        if self.built is None:
            stamp = {"options": options + threads, "base": file_stamp(self.job["base"]),
                     "binary": file_stamp(self.binary)}
            self.built = build_once(self.folder, self.spec.index, stamp, reuse, make)
        return self.built

    def search(self, setting, copies, session, options):
        """The runs of `search --json`, `copies` times the same, with what the kernel counted for the process."""
        knob = [word for key, value in setting.items()
                for word in ("--" + key.replace("_", "-"), ",".join([str(value)] * copies))]
        command = [self.binary, "search", str(self.path), session["queries"], "-k", str(self.job["k"]), *knob,
                   "--threads", str(session["threads"]), *options, "--json", "--quiet"]
        command += ["--groundtruth", session["groundtruth"]] if session["groundtruth"] else []
        document, kernel = call_json(command, self.log_path)
        if not document.get("runs"):
            raise Skip(f"'search --json' has no runs; see logs/{self.log_path.name}")
        return document["runs"], kernel


class StratAnnPoint:
    """StratANN with one kind of index and one set of search options.

    In memory the cache is larger than the index. A process opens the index, searches once to warm up, and then as often
    as makes a run as long as those of peers: opening does not count, and no run is the first of its process.
    """

    # Size of the cache in indexes, beside 64 MiB.
    CACHED_INDEXES = 2

    def __init__(self, spec, index, log_path):
        self.spec, self.index, self.log_path = spec, index, log_path
        self.name, self.storage, self.settings = spec.name, spec.storage, spec.settings
        self.session, self.options, self.passes, self.lone = None, {}, {}, {}

    def build(self, reuse):
        built = self.index.build(reuse)
        cache = ["--cache-budget", "0"]
        if self.storage == "memory":
            cache = ["--cache-budget", f"{self.CACHED_INDEXES * built['index_bytes'] // MIB + 64}MiB", "--preload"]
        self.words = [*cache, *self.spec.search]
        self.options = {"build": " ".join(self.index.options()), "search": " ".join(self.words)}
        return built

    def open(self, session):
        self.session, self.passes, self.lone = session, {}, {}

    def close(self):
        pass                     # every call is a process of its own

    def timed(self, setting):
        """The runs that count: none that warms up, and together at least as long as those of peers."""
        key = json.dumps(setting)
        is_warm = self.storage == "memory"
        count = self.passes.get(key, 1)
        runs, kernel = self.index.search(setting, is_warm + count, self.session, self.words)
        runs = runs[is_warm:]
        seconds = runs[0]["queries"] / runs[0]["qps"]
        wanted = max(1, min(PASSES_MAX, math.ceil(self.session["min_seconds"] / seconds))) if is_warm else 1
        if wanted > count:
            self.passes[key] = wanted
            runs, kernel = self.index.search(setting, is_warm + wanted, self.session, self.words)
            runs = runs[is_warm:]
        return runs, kernel

    def latency(self, setting, runs):
        """(latencies, their kind): alone, with one query in flight, of as many queries as peers, once a session."""
        if self.storage == "disk" and not self.spec.is_serial:
            return runs[-1].get("latency_us"), "under load"
        key = json.dumps(setting)
        if key not in self.lone:
            words = [*self.words, "--in-flight", "1"] if not self.spec.is_serial else self.words
            words = [*words, "--batch", "1"] if self.spec.kind == "remote-hnsw" else words
            few = self.session | {"threads": 1, "queries": self.session["lone_queries"], "groundtruth": None}
            alone, _ = self.index.search(setting, 1 + (self.storage == "memory"), few, words)
            self.lone[key] = alone[-1].get("latency_us")
        return self.lone[key], "one query at a time"

    def run(self, setting):
        try:
            runs, kernel = self.timed(setting)
            latency, kind = self.latency(setting, runs) if self.session["latency_queries"] else (None, None)
            queries = sum(r["queries"] for r in runs)
            count = runs[-1]["per_query"]
            if self.storage == "memory" and count["reads"] > NO_READS:
                raise Skip(f"{count['reads']:.2f} reads per query: the index is not in memory")
            return {
                "setting": setting, "recall": runs[-1]["recall"],
                "qps": queries / sum(r["queries"] / r["qps"] for r in runs), "queries": queries,
                "threads": runs[-1]["threads"], "latency_us": latency, "latency_kind": kind,
                "cpu_us": sum(r["cpu_us"] * r["queries"] for r in runs) / queries,
                "reads": count["reads"], "pages_read": count["pages_read"], "per_query": count,
                "peak_rss_bytes": max(max(r["peak_rss_bytes"] for r in runs), kernel["peak_rss_bytes"]),
                "baseline_rss_bytes": 0, "io_backend": runs[-1]["io_backend"], "params": runs[-1].get("params"),
                # The whole process, opening the index included: bounds what the run may claim.
                "kernel_pages_read": kernel["bytes_read"] / PAGE_BYTES / queries,
            }
        except KeyError as e:
            raise Skip(f"'search --json' has no key {e}; see logs/{self.log_path.name}") from e
