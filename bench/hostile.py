#!/usr/bin/env python3
"""Honest and hostile load against one server with a RAM budget: is it killed, slow or wrong?

    python3 bench/hostile.py --seconds 120 --ram-budget 256MiB
    python3 bench/hostile.py --base base.fbin --queries query.fbin --metric l2 --json report.json

It builds an index (unless --index names one), searches it locally for the right answers, starts `stratann serve`, asks
honest queries alone and then beside hostile clients, and ends the server with SIGTERM while they go on. Where memory
cgroups can be made the server runs in one of the budget and --margin; otherwise only its resident memory is watched.
Exit status 1: the server was killed, exceeded the limit, gave a wrong answer, or did not stop. Standard library alone.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ELEMENT_BYTES = {"fbin": 4, "f16bin": 2, "u8bin": 1, "i8bin": 1}
K, SEARCH_LIST = 10, 60
HONEST_CLIENTS = 4
PAUSE_S = 0.02                  # of an honest client between two queries
HOSTILE_NICENESS = 10           # the load itself must not take the processor from the server and the honest clients
STOP_LIMIT_S = 30
TIMES = ("p50_ms", "p99_ms", "most_ms", "server_p50_ms", "server_p99_ms")


def size(text):
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    for unit, factor in units.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def read_rows(path, count):
    """The first rows of a vector file, as bytes each."""
    with open(path, "rb") as file:
        rows, dim = struct.unpack("<ii", file.read(8))
        row_bytes = dim * ELEMENT_BYTES[path.suffix[1:]]
        return [file.read(row_bytes) for _ in range(min(rows, count))]


def read_ids(path):
    with open(path, "rb") as file:
        rows, k = struct.unpack("<ii", file.read(8))
        ids = struct.unpack(f"<{rows * k}i", file.read(4 * rows * k))
    return [ids[row * k:(row + 1) * k] for row in range(rows)]


class Client:
    """One HTTP connection, opened again where it breaks."""

    def __init__(self, address, timeout_s=30):
        self.address, self.timeout_s, self.stream = address, timeout_s, None

    def ask(self, method, path, body=b""):
        """Status and body of the answer."""
        if self.stream is None:
            self.stream = socket.create_connection(self.address, self.timeout_s)
        head = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                f"Content-Length: {len(body)}\r\n\r\n")
        try:
            self.stream.sendall(head.encode() + body)
            return self.answer()
        except OSError:
            self.close()
            raise

    def answer(self):
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.receive()
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        parts = [body]
        missing = length - len(body)
        while missing > 0:
            parts.append(self.receive())
            missing -= len(parts[-1])
        if "connection: close" in lines:
            self.close()
        return int(lines[0].split()[1]), b"".join(parts)

    def receive(self):
        got = self.stream.recv(1 << 16)
        if not got:
            raise ConnectionError("closed")
        return got

    def close(self):
        if self.stream is not None:
            self.stream.close()
        self.stream = None


def honest(address, rows, truth, stop, results, seed):
    """Asks queries with known answers. Puts latencies, in ms, and counts of what came of them."""
    draw = random.Random(seed)
    client = Client(address)
    latencies, on_server, wrong, refused, failed = [], [], 0, 0, 0
    path = f"/v1/search?k={K}&search_list={SEARCH_LIST}&width=1"
    while not stop.is_set():
        row = draw.randrange(len(rows))
        began = time.monotonic()
        try:
            status, body = client.ask("POST", path, rows[row])
        except OSError:
            failed += not stop.is_set()
            time.sleep(PAUSE_S)
            continue
        answer = json.loads(body).get("answers", [{}])[0] if status == 200 else {}
        if "ids" in answer:
            latencies.append(1000 * (time.monotonic() - began))
            on_server.append(answer["latency_us"] / 1000)
            wrong += [int(i) for i in answer["ids"]] != list(truth[row])
        elif status == 503 or answer.get("kind") == "overloaded":
            refused += 1
        else:
            failed += 1
        time.sleep(PAUSE_S)
    results.put({"latencies": latencies, "on_server": on_server, "wrong": wrong, "refused": refused, "failed": failed})


def probe_health(address, stop, results):
    """Asks for health on a new connection, twice a second."""
    slowest, failed = 0.0, 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            client = Client(address, 10)
            failed += client.ask("GET", "/v1/health")[0] != 200
            client.close()
        except OSError:
            failed += not stop.is_set()
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.5)
    results.put({"slowest_s": slowest, "failed": failed})


def post(path, length, body=b""):
    head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: {length}\r\n\r\n")
    return head.encode() + body


def ask_and_leave(path, count):
    """A client that asks `count` queries at a time and reads its answers."""
    def attack(address, rows, stop, draw):
        client = Client(address, 15)
        while not stop.is_set():
            client.ask("POST", path, b"".join(draw.choice(rows) for _ in range(count)))
    return attack


def hang_up(path, count):
    """A client that asks and hangs up before the answer."""
    def attack(address, rows, stop, draw):
        while not stop.is_set():
            with socket.create_connection(address, 15) as stream:
                body = b"".join(draw.choice(rows) for _ in range(count))
                stream.sendall(post(path, len(body), body))
            time.sleep(0.01)
    return attack


def trickle(address, rows, stop, draw):
    """A client that announces a large body and sends a little of it now and then."""
    with socket.create_connection(address, 15) as stream:
        stream.sendall(post("/v1/search", 2 << 20))
        while not stop.is_set():
            stream.sendall(bytes(draw.randrange(1, 100)))
            time.sleep(0.5)


def stay(first):
    """A client that opens many connections, sends `first` on each, and nothing more."""
    def attack(address, rows, stop, draw):
        streams = []
        try:
            while not stop.is_set() and len(streams) < 200:
                stream = socket.create_connection(address, 15)
                streams.append(stream)
                stream.sendall(first)
            stop.wait(3)
        finally:
            for stream in streams:
                stream.close()
    return attack


def read_nothing(address, rows, stop, draw):
    """A client that asks for long answers and reads none of them."""
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(15)
        stream.connect(address)
        body = b"".join(draw.choice(rows) for _ in range(64))
        for _ in range(4):
            stream.sendall(post("/v1/search?k=1000&search_list=1000", len(body), body))
        stop.wait(8)


def garbage(address, rows, stop, draw):
    while not stop.is_set():
        with socket.create_connection(address, 15) as stream:
            stream.sendall(draw.randbytes(draw.randrange(1, 20_000)))
            time.sleep(0.02)


ATTACKS = {
    "huge lists with tiny timeouts": (ask_and_leave("/v1/search?search_list=65536&timeout_ms=1", 1), 16),
    "long lists with tiny timeouts": (ask_and_leave("/v1/search?search_list=8192&timeout_ms=1", 1), 16),
    "long lists": (ask_and_leave("/v1/search?search_list=8000&timeout_ms=10000", 1), 8),
    "huge k": (ask_and_leave("/v1/search?k=16384&search_list=16384&width=64", 4), 8),
    "large k": (ask_and_leave("/v1/search?k=2000&search_list=2000&width=64", 16), 4),
    "batches": (ask_and_leave("/v1/search?search_list=100", 256), 4),
    "long lists, hung up": (hang_up("/v1/search?search_list=8000", 16), 4),
    "bodies that trickle": (trickle, 24),
    "silent sockets": (stay(b""), 4),
    "half headers": (stay(b"POST /v1/search HTTP/1.1\r\nHost: he"), 2),
    "answers not read": (read_nothing, 16),
    "garbage": (garbage, 2),
}


def hostile(address, rows, stop, results, name, seed):
    """Runs one kind of attack in several threads."""
    os.nice(HOSTILE_NICENESS)
    attack, count = ATTACKS[name]
    rounds = [0] * count

    def run(number):
        draw = random.Random(seed * 1000 + number)
        while not stop.is_set():
            try:
                attack(address, rows, stop, draw)
            except OSError:
                time.sleep(0.05)
            rounds[number] += 1

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    stop.wait()
    results.put({name: sum(rounds)})


class Cgroup:
    """A memory cgroup of our own, of version 1 or 2; None where it cannot be made."""

    def __init__(self, limit_bytes):
        self.folder = None
        for root, limit, peak in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ]:
            folder = Path(root) / f"stratann-hostile-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                (folder / limit).write_text(str(limit_bytes))
                self.folder, self.peak = folder, folder / peak
                return
            except OSError:
                folder.rmdir()

    def enter(self):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self):
        try:
            return int(self.peak.read_text()) if self.folder else None
        except OSError:
            return None

    def remove(self):
        if self.folder:
            self.folder.rmdir()


def peak_rss(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


class Load:
    """Processes that send requests until they are stopped."""

    def __init__(self):
        self.stop, self.results, self.processes = multiprocessing.Event(), multiprocessing.Queue(), []

    def add(self, work, *arguments):
        process = multiprocessing.Process(target=work, args=arguments, daemon=True)
        process.start()
        self.processes.append(process)

    def end(self):
        """Result of each process."""
        self.stop.set()
        found = []
        for _ in self.processes:
            try:
                found.append(self.results.get(timeout=30))
            except Exception:  # a process that is stuck reports nothing
                break
        for process in self.processes:
            process.join(1)
            if process.is_alive():
                process.terminate()
        return found


def honest_load(load, address, rows, truth):
    for client in range(HONEST_CLIENTS):
        load.add(honest, address, rows, truth, load.stop, load.results, client)


def summed(found):
    parts = [part for part in found if "latencies" in part]
    latencies = [latency for part in parts for latency in part["latencies"]]
    on_server = [latency for part in parts for latency in part["on_server"]]
    return {
        "answered": len(latencies),
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "most_ms": max(latencies, default=None),
        "server_p50_ms": percentile(on_server, 0.5),    # from question to answer, without HTTP
        "server_p99_ms": percentile(on_server, 0.99),
        **{name: sum(part[name] for part in parts) for name in ("wrong", "refused", "failed")},
    }


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"hostile: {program} {arguments[0]} failed: {done.stderr.strip()}")


def prepare(options, folder):
    """The index, the rows of queries, and the right answers."""
    index = options.index or folder / "index"
    if not options.index:
        run(options.program, "build", options.base, "-o", index, "--kind", options.kind, "--metric", options.metric)
    answers = folder / "answers"
    run(options.program, "search", index, options.queries, "-k", K, "--search-list", SEARCH_LIST, "--width", 1,
        "-o", answers)
    rows = read_rows(options.queries, 1000)
    return index, rows, read_ids(answers)[:len(rows)]


def status_of(address):
    return json.loads(Client(address, 10).ask("GET", "/v1/status")[1])


def waits_between(first, last):
    """Mean times of a query of each class, in ms: in the queue, in its slot, ready without its turn, computing."""
    found = {}
    for name in ("usual", "heavy"):
        more = {key: last[name][key] - first[name][key] for key in last[name]}
        means = {key[:-3] + "_ms": more[key] / 1000 / max(1, more["ended"])
                 for key in ("in_slot_us", "ready_us", "computing_us")}
        queued = more["queued_us"] / 1000 / max(1, more["begun"])
        found[name] = {"begun": more["begun"], "ended": more["ended"], "queued_ms": queued,
                       "longest_queued_ms": last[name]["longest_queued_us"] / 1000, **means}
    return found


def measure(options, server, address, rows, truth):
    """Honest queries alone, then beside hostile clients, then SIGTERM."""
    quiet = Load()
    honest_load(quiet, address, rows, truth)
    time.sleep(options.quiet_seconds)
    report = {"quiet": summed(quiet.end())}
    before = status_of(address)
    load, attackers = Load(), Load()
    for number, name in enumerate(ATTACKS):
        attackers.add(hostile, address, rows, attackers.stop, attackers.results, name, number)
    time.sleep(1)
    honest_load(load, address, rows, truth)
    load.add(probe_health, address, load.stop, load.results)
    until, peak = time.monotonic() + options.seconds, 0
    while time.monotonic() < until and server.poll() is None:
        peak = max(peak, peak_rss(server.pid))
        time.sleep(0.2)
    try:
        status = status_of(address)
        report["ledger"], report["http"] = status.get("ledger"), status.get("http")
        report["waits"] = waits_between(before["waits"], status["waits"])
    except OSError as why:
        report["status_error"] = str(why)
    found = load.end()
    report["under_load"] = summed(found)
    report["health"] = next((part for part in found if "slowest_s" in part), None)
    began = time.monotonic()
    report["killed"] = server.poll() is not None
    server.send_signal(signal.SIGTERM)
    try:
        report["exit_status"] = server.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        report["exit_status"] = None
    report["stop_s"] = time.monotonic() - began
    report["rounds"] = {name: count for part in attackers.end() for name, count in part.items()}
    report["peak_rss_bytes"] = peak
    return report


def judge(report, limit):
    """Failures, in words."""
    quiet, load = report["quiet"], report["under_load"]
    faults = []
    if report["killed"] or report["exit_status"] != 0:
        faults.append(f"the server ended with status {report['exit_status']}")
    if report["peak_rss_bytes"] > limit:
        faults.append(f"it took {report['peak_rss_bytes'] / 2**20:.0f} MiB")
    if quiet["wrong"] + load["wrong"] > 0:
        faults.append(f"{quiet['wrong'] + load['wrong']} wrong answers")
    if not load["answered"]:
        faults.append("no honest query was answered under load")
    return faults


def show(report):
    for name in ("quiet", "under_load"):
        part = report[name]
        times = ", ".join(f"{key[:-3]} {part[key]:.1f} ms" for key in TIMES if part[key])
        print(f"{name:>11}: {part['answered']} answered, {times}; {part['wrong']} wrong, {part['refused']} refused, "
              f"{part['failed']} failed")
    if report["quiet"]["p99_ms"] and report["under_load"]["p99_ms"]:
        print(f"  p99 ratio: {report['under_load']['p99_ms'] / report['quiet']['p99_ms']:.2f}")
    for name, part in report.get("waits", {}).items():
        print(f"{name:>11}: " + ", ".join(f"{key} {value:.4g}" for key, value in part.items()))
    if report["health"]:
        print(f"     health: slowest {report['health']['slowest_s']:.2f} s, {report['health']['failed']} failed")
    cgroup = report["cgroup_peak_bytes"]
    print(f"     memory: {report['peak_rss_bytes'] / 2**20:.0f} MiB resident at most, limit "
          f"{report['limit_bytes'] / 2**20:.0f} MiB, " +
          (f"cgroup {cgroup / 2**20:.0f} MiB" if cgroup else "no cgroup"))
    print(f"    SIGTERM: {report['stop_s']:.1f} s, status {report['exit_status']}")
    print(f"     rounds: {report['rounds']}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "target/release/stratann")
    parser.add_argument("--base", type=Path, default=ROOT / "sample/base.f16bin")
    parser.add_argument("--queries", type=Path, default=ROOT / "sample/query.f16bin")
    parser.add_argument("--metric", default="cosine")
    parser.add_argument("--kind", default="disk-graph")
    parser.add_argument("--index", type=Path, help="an index that is built already")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quiet-seconds", type=float, default=10)
    parser.add_argument("--ram-budget", default="256MiB")
    parser.add_argument("--margin", default="32MiB", help="what the cgroup allows beyond the budget")
    parser.add_argument("--serve", nargs="*", default=[], help="more options of serve, without their dashes: threads=2")
    parser.add_argument("--json", type=Path, help="write the report here")
    return parser.parse_args()


def main():
    options = arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit = size(options.ram_budget) + size(options.margin)
    with tempfile.TemporaryDirectory(prefix="stratann-hostile-") as folder:
        index, rows, truth = prepare(options, Path(folder))
        cgroup = Cgroup(limit)
        more = [part for option in options.serve for part in ("--" + option).split("=", 1)]
        command = [str(options.program), "serve", "--index", str(index), "--http", "127.0.0.1:0", "--json",
                   "--ram-budget", options.ram_budget, *more]
        with open(Path(folder) / "log", "w") as log:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, preexec_fn=cgroup.enter)
        try:
            host, port = json.loads(server.stdout.readline())["http"].rsplit(":", 1)
            report = measure(options, server, (host, int(port)), rows, truth)
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
            peak = cgroup.peak_bytes()
            cgroup.remove()
        report |= {"cgroup_peak_bytes": peak, "limit_bytes": limit}
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    faults = judge(report, limit)
    if faults:
        sys.exit("hostile: " + "; ".join(faults))


if __name__ == "__main__":
    main()
