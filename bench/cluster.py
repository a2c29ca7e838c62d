#!/usr/bin/env python3
"""Servers as real processes, each in a network namespace of its own: what hand-overs cost, and what a death costs.

    sudo python3 bench/cluster.py --index spread --whole base.idx --queries query.fbin --groundtruth gt.ibin
    sudo python3 bench/cluster.py ... --kill

The first compares N servers of one thread each with one server of N threads, interleaved, the client in a namespace
too.  With --kill (the index needs --replicas 2) a server gets SIGKILL in the middle of a load and is started again
later; every query must have its answer, the same as before, and the throughput of each half second is shown.
Namespaces, and the processes in them, are removed in the end.  Linux, root and iproute2 are needed; nothing leaves the
machine.  Exit codes: 0 done, 1 something was lost or wrong, 2 cannot run here.
"""
import argparse
import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PEER_PORT, HTTP_PORT = 7700, 8700


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="folder made by stratann cluster partition")
    parser.add_argument("--whole", type=Path, help="the index that it was made from, for the comparison")
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--groundtruth", type=Path)
    parser.add_argument("--search-list", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=64, help="queries in flight at the client (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill a server under load instead")
    parser.add_argument("--seconds", type=float, default=12, help="length of the load around a death (%(default)s)")
    parser.add_argument("--stratann", type=Path, default=ROOT / "target" / "release" / "stratann")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args(argv)


def sh(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


class Network:
    """Namespaces on one bridge, which lies in a namespace too."""

    def __init__(self, hosts):
        self.prefix = f"st{os.getpid() % 10000}"
        self.bridge = f"{self.prefix}b"
        self.hosts = [f"{self.prefix}h{i}" for i in range(hosts)]

    def __enter__(self):
        sh("ip", "netns", "add", self.bridge)
        self.inside(self.bridge, "ip", "link", "add", "br0", "type", "bridge")
        self.inside(self.bridge, "ip", "link", "set", "br0", "up")
        for i, name in enumerate(self.hosts):
            sh("ip", "netns", "add", name)
            near, far = f"{self.prefix}n{i}", f"{self.prefix}f{i}"
            sh("ip", "link", "add", near, "netns", name, "type", "veth", "peer", "name", far, "netns", self.bridge)
            self.inside(self.bridge, "ip", "link", "set", far, "master", "br0", "up")
            self.inside(name, "ip", "addr", "add", f"{self.address(i)}/24", "dev", near)
            self.inside(name, "ip", "link", "set", near, "up")
            self.inside(name, "ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in [*self.hosts, self.bridge]:
            sh("ip", "netns", "del", name, check=False)

    @staticmethod
    def inside(name, *words):
        return sh("ip", "netns", "exec", name, *words)

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    def start(self, host, *words, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.hosts[host], *map(str, words)], **options)


class Servers:
    """Server processes by number, and how they are started."""

    def __init__(self, net, args, folder):
        self.net, self.args, self.folder, self.processes = net, args, folder, {}
        self.secret = folder / "secret"
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)

    def config(self, number, index, count, threads):
        lines = [f'index = "{index}"', f"threads = {threads}", f'http = "{self.net.address(number)}:{HTTP_PORT}"']
        if count > 1:
            peers = ", ".join(f'"{self.net.address(i)}:{PEER_PORT}"' for i in range(count))
            lines += [f"server = {number}", f'listen = "{self.net.address(number)}:{PEER_PORT}"', f"peers = [{peers}]"]
            lines.append(f'secret_file = "{self.secret}"')
        path = self.folder / f"server-{number}-{count}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self, number, index, count, threads):
        log = open(self.folder / f"server-{number}-{count}.log", "ab")
        path = self.config(number, index, count, threads)
        command = [self.args.stratann, "serve", "--config", path, "--cache-budget", "0"]
        self.processes[number] = self.net.start(number, *command, stdout=log, stderr=log)

    def wait_until_ready(self, numbers, client):
        deadline = time.monotonic() + 60
        for number in numbers:
            url = f"http://{self.net.address(number)}:{HTTP_PORT}/v1/health"
            ask = f"import urllib.request as u; u.urlopen({url!r}, timeout=2).read()"
            while self.net.start(client, sys.executable, "-c", ask, stderr=subprocess.DEVNULL).wait():
                if time.monotonic() > deadline or self.processes[number].poll() is not None:
                    logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted(self.folder.glob("*.log")))
                    sys.exit(f"cluster.py: server {number} does not become ready\n{logs}")
                time.sleep(0.1)

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}


def search(net, args, client, count, output=None, queries=None):
    """One pass of all queries over `count` servers: the document that the program prints."""
    addresses = ",".join(f"{net.address(i)}:{HTTP_PORT}" for i in range(count))
    words = [args.stratann, "search", "--connect", addresses, queries or args.queries,
             "--search-list", args.search_list, "--width", 1,
             "--threads", 1, "--in-flight", args.in_flight, "--json", "--quiet"]
    if args.groundtruth and not queries:
        words += ["--groundtruth", args.groundtruth]
    if output:
        words += ["-o", output, "--force"]
    process = net.start(client, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=600)
    if not out:
        sys.exit(f"cluster.py: the search failed: {err.strip()}")
    return json.loads(out)["runs"][0]


def servers_of(args):
    out = sh(args.stratann, "info", args.index, "--json").stdout
    return json.loads(out)["cluster"]["servers"]


def compare(net, args, folder, count):
    """Queries a second of `count` servers over those of one with as many threads."""
    client, runs = count, {1: [], count: []}
    for turn in range(args.rounds):
        for kind in ([1, count] if turn % 2 else [count, 1]):
            servers = Servers(net, args, folder)
            try:
                index, threads = (args.whole, count) if kind == 1 else (args.index, 1)
                for number in range(kind):
                    servers.start(number, index, kind, threads)
                servers.wait_until_ready(range(kind), client)
                search(net, args, client, kind)
                runs[kind].append(search(net, args, client, kind))
            finally:
                servers.stop()

    def figure(kind, key):
        return median(run[key] for run in runs[kind])

    result = {
        "servers": count, "rounds": args.rounds, "recall": [runs[k][0]["recall"] for k in (1, count)],
        "qps": [figure(1, "qps"), figure(count, "qps")], "cpu_us": [figure(1, "cpu_us"), figure(count, "cpu_us")],
        "hand_overs": runs[count][0]["per_query"]["hand_overs"],
        "reads": [runs[k][0]["per_query"]["reads"] for k in (1, count)],
        "bytes_sent": runs[count][0]["per_query"]["bytes_sent"],
    }
    result["qps_ratio"] = result["qps"][1] / result["qps"][0]
    result["cpu_ratio"] = result["cpu_us"][1] / result["cpu_us"][0]
    print(f"{count} servers of one thread / one server of {count}: {result['qps_ratio']:.2f} x the queries a second, "
          f"{result['cpu_ratio']:.2f} x the processor time a query")
    print(json.dumps(result))
    same = result["reads"][0] == result["reads"][1] and result["recall"][0] == result["recall"][1]
    return result, same


def answers(path):
    data = path.read_bytes()
    queries, k = struct.unpack_from("<II", data)
    return data[8:8 + 4 * queries * k]


def death(net, args, folder, count):
    """Kills the last server in the middle of a load on the others."""
    client = count
    servers = Servers(net, args, folder)
    passes, stop = [], threading.Event()
    try:
        for number in range(count):
            servers.start(number, args.index, count, 1)
        servers.wait_until_ready(range(count), client)
        search(net, args, client, count - 1, folder / "expected.ibin")
        expected = answers(folder / "expected.ibin")

        def load():
            while not stop.is_set():
                begun = time.monotonic()
                run = search(net, args, client, count - 1, folder / "got.ibin")
                wrong = answers(folder / "got.ibin") != expected
                passes.append((begun, time.monotonic(), run["queries"], run["failed_queries"], wrong))

        loading = threading.Thread(target=load)
        loading.start()
        time.sleep(args.seconds / 3)
        victim = servers.processes[count - 1]
        # `ip netns exec` replaces itself by the server, so this is the server's own process.
        victim.kill()
        killed = time.monotonic()
        victim.wait()
        time.sleep(args.seconds / 3)
        servers.start(count - 1, args.index, count, 1)
        restarted = time.monotonic()
        time.sleep(args.seconds / 3)
        stop.set()
        loading.join()
        servers.wait_until_ready(range(count), client)
    finally:
        stop.set()
        servers.stop()
    failed, wrong = sum(p[3] for p in passes), sum(p[4] for p in passes)

    def rate(of):
        return median([n / (end - begin) for begin, end, n, _, _ in of] or [0])

    before = rate([p for p in passes if p[1] < killed])
    around = [p for p in passes if p[0] <= killed <= p[1]]
    while_gone = rate([p for p in passes if p[0] > killed and p[1] < restarted])
    back = rate([p for p in passes if p[0] > restarted])
    recovered = next((p[1] - killed for p in passes if p[0] > killed and p[2] / (p[1] - p[0]) > 0.8 * while_gone), None)
    result = {"servers": count, "passes": len(passes), "queries": sum(p[2] for p in passes), "failed": failed,
              "wrong_passes": wrong, "qps_before": before, "qps_in_the_pass_of_the_death": rate(around),
              "qps_while_gone": while_gone, "qps_after_return": back, "seconds_until_level": recovered}
    print(json.dumps(result))
    return result, failed == 0 and wrong == 0


def main(argv):
    args = arguments(argv)
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("cluster.py: network namespaces need root and iproute2", file=sys.stderr)
        return 2
    if not args.kill and args.whole is None:
        print("cluster.py: give --whole, or --kill", file=sys.stderr)
        return 2
    args.stratann, args.index = args.stratann.resolve(), args.index.resolve()
    args.whole = args.whole and args.whole.resolve()
    count = servers_of(args)
    with tempfile.TemporaryDirectory() as folder, Network(count + 1) as net:
        result, fine = (death if args.kill else compare)(net, args, Path(folder), count)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
