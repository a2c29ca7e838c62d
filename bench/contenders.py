"""Contenders of a comparison: peers in worker processes, and StratANN through its command line.

Each contender has ``name``, ``storage``, ``settings`` and ``run(setting)``, which returns one measurement: recall,
qps, latency_us, cpu_us, reads, pages_read, peak_rss_bytes, baseline_rss_bytes.
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
PAGE_BYTES = 4096
MIB = 1 << 20


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
    """One peer; its build and its search are separate worker processes."""

    def __init__(self, spec, job, folder, log_path):
        self.spec, self.name, self.storage, self.settings = spec, spec.name, spec.storage, spec.settings
        self.job = job | spec.options
        self.folder, self.log_path = folder, log_path
        self.process = None

    def interpreter(self):
        own = BENCH / self.spec.venv / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    def start(self):
        threads = str(self.job["threads"])
        env = os.environ | {"PYTHONPATH": str(BENCH), "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen([self.interpreter(), "-m", f"peers.{self.spec.module}"], cwd=BENCH,
                                            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True)

    def ask(self, command, **fields):
        try:
            print(json.dumps({"command": command} | fields), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Skip(f"its process ended with status {self.process.wait()} during '{command}'; see {self.log_path}")
        reply = json.loads(line)
        if "missing" in reply:
            raise Skip(f"{reply['missing']}; bench/install_peers.sh installs it")
        if "error" in reply:
            raise Skip(f"'{command}' failed: {reply['error']}; see {self.log_path}")
        return reply

    def close(self):
        if self.process is None:
            return
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.process = None

    def prepare(self, reuse):
        """Build, then start the searching process; returns the build record."""
        def make(index_dir):
            self.start()
            try:
                return self.ask("build", **self.job, index_dir=str(index_dir))
            finally:
                self.close()

        stamp = {"job": self.job, "base": file_stamp(self.job["base"])}
        built = build_once(self.folder, self.name, stamp, reuse, make)
        self.start()
        self.ask("load", **self.job, index_dir=str(self.folder / self.name))
        return built

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
        raise Skip(f"'{command[1]}' exited with status {process.returncode}; see {log_path}")
    # Until its exec a child counts this process' memory as its own peak: a figure no larger than ours says nothing.
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = usage.ru_maxrss * 1024 if usage.ru_maxrss > inherited else 0
    kernel = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_rss_bytes": peak,
              "bytes_read": usage.ru_inblock * 512}
    try:
        return json.loads(text), kernel
    except ValueError as e:
        raise Skip(f"'{command[1]} --json' printed no JSON document ({e}); see {log_path}") from e


class StratAnn:
    """The index under test: built once, searched at several points."""

    def __init__(self, binary, job, folder, log_path):
        self.binary, self.job, self.folder, self.log_path = str(binary), job, folder, log_path
        self.index = folder / "stratann"
        self.index_bytes = 0

    def prepare(self, reuse):
        if not (os.path.isfile(self.binary) and os.access(self.binary, os.X_OK)):
            raise Skip(f"no program at {self.binary}; build it, or give --stratann PATH")
        job = self.job
        options = ["--kind", "disk-graph", "--metric", job["metric"], "--threads", str(job["threads"]),
                   "--seed", str(job["seed"]), "--code-bytes", str(job["code_bytes"])]

        def make(index_dir):
            command = [self.binary, "build", job["base"], "-o", str(index_dir), *options, "--json"]
            document, kernel = call_json(command, self.log_path)
            try:
                return {"seconds": document["seconds"], "cpu_seconds": kernel["cpu_seconds"],
                        "peak_rss_bytes": max(document["peak_rss_bytes"], kernel["peak_rss_bytes"]),
                        "baseline_rss_bytes": 0, "index_bytes": document["index_bytes"],
                        "details": {"options": options, "stages": document.get("stages")}}
            except KeyError as e:
                raise Skip(f"'build --json' has no key {e}; see {self.log_path}") from e

        stamp = {"options": options, "base": file_stamp(job["base"]), "binary": file_stamp(self.binary)}
        built = build_once(self.folder, "stratann", stamp, reuse, make)
        self.index_bytes = built["index_bytes"]
        return built

    def close(self):
        pass                     # every call is a process of its own

    def search(self, search_lists, threads, options):
        """The last of `search --json`'s runs, with what the kernel counted for the whole process."""
        job = self.job
        command = [self.binary, "search", str(self.index), job["queries"], "-k", str(job["k"]), "--search-list",
                   ",".join(str(v) for v in search_lists), "--groundtruth", job["groundtruth"],
                   "--threads", str(threads), *options, "--json"]
        document, kernel = call_json(command, self.log_path)
        try:
            return document["runs"][-1], kernel
        except (KeyError, IndexError) as e:
            raise Skip(f"'search --json' has no runs; see {self.log_path}") from e

    def points(self, settings):
        """The three ways it is compared."""
        cache = f"{2 * self.index_bytes // MIB + 64}MiB"
        counted = ["--cache-budget", "0"]
        return [StratAnnPoint(self, "stratann", "disk", settings, counted),
                StratAnnPoint(self, "stratann-one-in-flight", "disk", settings, [*counted, "--in-flight", "1"],
                              serial=True),
                StratAnnPoint(self, "stratann-in-cache", "memory", settings, ["--cache-budget", cache], warm=True)]


class StratAnnPoint:
    """StratANN with one set of search options.

    `serial` takes the latency from a second run, one thread with one query in flight, as it is taken from peers;
    `warm` searches twice in one process and reports the second pass.
    """

    def __init__(self, stratann, name, storage, settings, options, serial=False, warm=False):
        self.stratann, self.name, self.storage, self.settings = stratann, name, storage, settings
        self.options, self.serial, self.warm = options, serial, warm

    def run(self, setting):
        length = setting["search_list"]
        job = self.stratann.job
        lists = [length, length] if self.warm else [length]
        run, kernel = self.stratann.search(lists, job["threads"], self.options)
        latency, kind = run.get("latency_us"), "under load"
        if self.serial:
            alone, _ = self.stratann.search([length], 1, self.options)
            latency, kind = alone.get("latency_us"), "one query at a time"
        try:
            count = run["per_query"]
            return {
                "setting": setting, "recall": run["recall"], "qps": run["qps"], "queries": run["queries"],
                "threads": run["threads"], "latency_us": latency, "latency_kind": kind, "cpu_us": run["cpu_us"],
                "reads": count["reads"], "pages_read": count["pages_read"], "per_query": count,
                "peak_rss_bytes": max(run["peak_rss_bytes"], kernel["peak_rss_bytes"]), "baseline_rss_bytes": 0,
                "io_backend": run["io_backend"], "params": run.get("params"),
                # The whole process, opening the index included: bounds what the run may claim.
                "kernel_pages_read": kernel["bytes_read"] / PAGE_BYTES / (run["queries"] * len(lists)),
            }
        except KeyError as e:
            raise Skip(f"'search --json' has no key {e}; see {self.stratann.log_path}") from e

    def close(self):
        self.stratann.close()
