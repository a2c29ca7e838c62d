"""remote-hnsw: in a folder, and in the memory of a memory node, which is the real program when it is there."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import warnings

import numpy as np
import pytest
from conftest import brute_force, recall, vectors
from test_client import free_address, program, serving

import stratann
from stratann._routing import Routing, Silent

OPTIONS = {"kind": "remote-hnsw", "partitions": 32, "calibration_queries": 100, "threads": 2}


@pytest.fixture(scope="module")
def path(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("remote") / "index"
    stratann.build(base, path, **OPTIONS)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    key.chmod(0o600)
    return key


@contextlib.contextmanager
def started(*command):
    """The program with this command, until it is left; gives what it says once it is ready."""
    process = subprocess.Popen(
        [program(), *command, "--json", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("{"), process.stderr.read()
        yield json.loads(line)
    finally:
        process.communicate()
    assert process.returncode == 0


@contextlib.contextmanager
def memory_node(key, *more):
    """An empty memory node; gives its address."""
    node = ["memory-node", "--size", "32MiB", "--listen", "127.0.0.1:0", "--key-file", str(key)]
    with started(*node, *more) as ready:
        yield ready["listen"]


def load(path, address, key):
    """Copies an index into a memory node."""
    command = [program(), "memory-node", "load", str(path), "--nodes", address, "--key-file", str(key)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def address(path, key):
    with memory_node(key) as address:
        load(path, address, key)
        yield address


@contextlib.contextmanager
def etcd(folder):
    """An etcd of one member; gives its URL."""
    if shutil.which("etcd") is None:
        pytest.skip("the program etcd is not installed")
    client, peer = (f"http://{free_address()}" for _ in range(2))
    command = ["etcd", "--data-dir", str(folder), "--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield client
    finally:
        process.kill()
        process.wait()


def opened_in_etcd(url, key):
    """Opens what the memory nodes of cluster ``tests`` in etcd hold, once one is there."""
    end = time.monotonic() + 30
    while True:
        try:
            return stratann.open_memory(f"etcd:tests@{url}", key)
        except stratann.Error as e:
            if time.monotonic() > end or not re.search("no memory node|etcd: ", str(e)):
                raise
        time.sleep(0.05)


def test_a_folder_and_the_numbers_of_a_search(path, base, queries):
    truth, _ = brute_force(base, queries, 10, "l2")
    with stratann.open(path, cache_budget=0) as index:
        assert index.kind == "remote-hnsw"
        assert recall(index.search(queries, recall=0.95).ids, truth) > 0.9
        graphs = {"nprobe": 8, "scan_clusters": False}
        short, long = (index.search(queries, ef=ef, **graphs).stats["totals"] for ef in (10, 200))
        assert short["full_comparisons"] < long["full_comparisons"]
        together = index.search(queries, nprobe=8, doorbell=4).stats["totals"]
        alone = index.search(queries, nprobe=8, batch=1, doorbell=1).stats["totals"]
        assert together["reads"] <= 32 and alone["reads"] == alone["round_trips"] == 8 * len(queries)
        assert together["round_trips"] == -(-together["reads"] // 4)
        trace = index.explain(queries[0], nprobe=5, ef=20)
        assert (trace["loads"], trace["round_trips"], trace["cache_hits"], trace["ef"]) == (5, 1, 0, 20)
        assert "memory_nodes" not in index.info()
        for change in (lambda: index.upsert([1], base[:1]), lambda: index.delete([1])):
            with pytest.raises(stratann.InputError, match="memory"):
                change()
        for numbers, what in [({"batch": 70_000}, "batch is 70000"), ({"doorbell": 0}, "doorbell")]:
            with pytest.raises(stratann.InputError, match=what):
                index.search(queries, nprobe=5, **numbers)


def test_numbers_of_a_remote_hnsw_are_refused_elsewhere(index, queries):
    for name in ("ef", "batch", "doorbell"):
        with pytest.raises(stratann.InputError, match=f"{name} is for remote-hnsw"):
            index.search(queries, **{name: 20})


def test_memory_nodes_are_searched_and_changed(path, key, address, base, queries):
    with stratann.open(path) as folder, stratann.open_memory(address, key) as index:
        assert (index.kind, index.rows, index.dim) == ("remote-hnsw", len(base), 24)
        assert address in repr(index)
        here, there = (opened.search(queries, nprobe=8) for opened in (folder, index))
        assert np.array_equal(here.ids, there.ids) and np.array_equal(here.distances, there.distances)
        assert index.search(queries, nprobe=8, batch=50).stats["per_query"]["round_trips"] > 0

        new = vectors(7, 60, 24)
        made = index.upsert(np.arange(3970, 4030), new)
        assert (made.count, made.place) == (60, "memory")
        with stratann.open_memory([address], key, cache_budget=0) as other:
            found = other.search(new, k=1, nprobe=32)
            assert found.ids[:, 0].tolist() == list(range(3970, 4030)) and found.distances.max() < 1e-3
            assert other.delete([4000, 123456]).count == 2
        assert 4000 not in index.search(new[30], k=50, nprobe=32).ids
        nodes = index.info()["memory_nodes"]
        assert (nodes["fresh_reserved"], nodes["tombstones"]) == (60, 61)
        report = index.verify()
        assert report["violations_found"] == 0 and report["fresh"]["published"] == 60
        assert index.explain(new[0], nprobe=4)["headers"]["round_trips"] > 0


def test_memory_nodes_are_found_in_etcd(path, key, queries, tmp_path):
    with etcd(tmp_path / "etcd") as url, memory_node(key, "--etcd", url, "--cluster", "tests") as address:
        load(path, address, key)
        with opened_in_etcd(url, key) as index, stratann.open_memory(address, key) as other:
            here, there = (opened.search(queries, nprobe=4) for opened in (index, other))
            assert np.array_equal(here.ids, there.ids)
    with pytest.raises(stratann.InputError, match="etcd:CLUSTER@http"):
        stratann.open_memory("etcd:tests", key)


def loads(client):
    return sum(status["loads"] for status in client.status())


def test_queries_go_to_the_servers_that_have_their_clusters_cached(address, key, queries):
    serve = ["serve", "--http", "127.0.0.1:0", "--threads", "1", "--cache-budget", "150KiB"]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(started(*serve, "--memory", address, "--key-file", str(key)))["http"]
            for _ in range(3)
        ]
        many = np.concatenate([queries] * 5)
        in_turn = stack.enter_context(stratann.connect(servers, affinity=False))
        expected = in_turn.search(many, k=5, nprobe=2)
        usual = loads(in_turn)
        assert "routed_by_cache" not in expected.stats
        client = stack.enter_context(stratann.connect(servers))
        found = client.search(many, k=5, nprobe=2)
        assert np.array_equal(found.ids, expected.ids)
        assert found.stats["routed_by_cache"] > 0
        assert 0 < loads(client) - usual < 0.8 * usual
        with stratann.connect([servers[0], free_address(), servers[2]]) as other:
            assert np.array_equal(other.search(many, k=5, nprobe=2).ids, expected.ids)


def test_one_server_and_other_kinds_are_asked_in_turn(address, key, graph_path, queries):
    with started("serve", "--http", "127.0.0.1:0", "--memory", address, "--key-file", str(key)) as server:
        with stratann.connect(server["http"]) as client:
            assert "routed_by_cache" not in client.search(queries, nprobe=2).stats
    with serving(graph_path) as first, serving(graph_path) as second:
        with stratann.connect([first, second]) as client:
            assert "routed_by_cache" not in client.search(queries, search_list=20).stats


def test_a_meta_hnsw_that_does_not_arrive_is_a_warning():
    def clusters(address, path):
        return 200, {"build": "1", "nprobe": 2, "bytes": [1], "cached": {"version": "0"}}

    def silent(address, path):
        raise Silent(f"{address}: timed out")

    routing = Routing(["a:1", "b:1"], (2, "l2", "f32"), clusters, silent)
    with pytest.warns(UserWarning, match="a:1: timed out; b:1: timed out.*affinity=False"):
        assert routing.found("nprobe=2") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert routing.found("nprobe=2") is None


def test_bad_changes_change_nothing(key, address, base):
    with stratann.open_memory(address, key) as index:
        bad = base[:3].copy()
        bad[1, 5] = np.nan
        for ids, rows, what in [
            ([1, 2, 3], bad, "NaN|finite"),
            ([1, 2], base[:3], "2 ids and 3 vectors"),
            ([1, -2, 3], base[:3], "-2"),
            ([0.5, 1.5, 2.5], base[:3], "whole numbers"),
            ([1, 2, 3], base[:3, :5], "5 dimensions"),
        ]:
            with pytest.raises(stratann.InputError, match=what):
                index.upsert(ids, rows)
        assert index.info()["memory_nodes"]["clock"] == 0
        with pytest.raises(stratann.InputError, match="tune its folder"):
            index.tune()


def test_what_cannot_be_opened_says_why(key, tmp_path):
    with memory_node(key) as address:
        with pytest.raises(stratann.InputError, match="memory-node load"):
            stratann.open_memory(address, key)
        other = tmp_path / "other"
        other.write_text("f" * 64)
        other.chmod(0o600)
        with pytest.raises(stratann.Error, match=r"key|secret"):
            stratann.open_memory(address, other)
    with pytest.raises(stratann.DiskError, match=address):
        stratann.open_memory(address, key)
    with pytest.raises(stratann.InputError, match="no address"):
        stratann.open_memory(" , ", key)
    with pytest.raises(stratann.InputError, match="go together"):
        stratann.open_memory(address, key, authority=key)


def test_an_unfinished_change_names_what_is_acknowledged():
    from stratann._changes import changed

    with pytest.raises(stratann.ChangeError, match="1 of 3") as raised:
        changed({"error": "gone; 1 of 3 changes are acknowledged", "acknowledged": [2]})
    assert raised.value.acknowledged == [2]
