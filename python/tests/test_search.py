import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import brute_force, recall, vectors

import stratann


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "u8", "i8"])
def test_recall_of_every_dtype_and_metric(tmp_path, dtype, metric):
    base, queries = vectors(3, 1500, 24, dtype), vectors(4, 50, 24, dtype)
    truth, distances = brute_force(base, queries, 10, metric)
    stratann.build(
        base, tmp_path / "i", "disk-graph", metric, calibration_queries=0, degree=32, build_list=64
    )
    index = stratann.open(tmp_path / "i")
    assert (index.metric, index.dtype, index.rows, index.dim) == (metric, base.dtype, 1500, 24)
    r = index.search(queries, k=10, search_list=80)
    assert recall(r.ids, truth) > 0.93
    np.testing.assert_allclose(r.distances[:, 0], distances[:, 0], rtol=1e-3, atol=1e-3)
    assert (np.diff(r.distances, axis=1) >= 0).all()


def test_flat_is_exact_and_agrees_with_groundtruth(tmp_path, base, queries):
    truth, distances = brute_force(base, queries, 7, "l2")
    stratann.build(base, tmp_path / "i", kind="flat")
    r = stratann.open(tmp_path / "i").search(queries, k=7)
    exact = stratann.groundtruth(base, queries, k=7)
    np.testing.assert_array_equal(r.ids, truth)
    np.testing.assert_array_equal(exact.ids, truth)
    np.testing.assert_array_equal(exact.distances, r.distances)
    np.testing.assert_allclose(r.distances, distances, rtol=1e-4, atol=1e-4)
    assert exact.ids.dtype == np.uint64 and exact.distances.dtype == np.float32


def test_recall_is_a_setting(tmp_path):
    rng = np.random.default_rng(15)
    base, queries = (rng.standard_normal((n, 48), dtype=np.float32) for n in (4000, 200))
    truth, _ = brute_force(base, queries, 10, "l2")
    options = {"code_bytes": 12, "degree": 24, "build_list": 48, "calibration_queries": 200}
    stratann.build(base, tmp_path / "i", "disk-graph", **options)
    index = stratann.open(tmp_path / "i", cache_budget=0)
    low, high = (index.search(queries, k=10, recall=wanted) for wanted in (0.5, 0.95))
    assert recall(low.ids, truth) > 0.45 and recall(high.ids, truth) > 0.92
    assert low.stats["per_query"]["reads"] < high.stats["per_query"]["reads"]


def test_parameters_of_earlier_calls_do_not_mix(index, queries):
    wanted = {length: index.search(queries[:3], search_list=length, width=1, threads=1) for length in (10, 80)}
    assert wanted[10].stats["totals"] != wanted[80].stats["totals"]
    for length in (80, 10, 80, 10):
        found = index.search(queries[:3], search_list=length, width=1, threads=1)
        assert found.stats["params"]["search_list"] == length
        assert found.stats["totals"] == wanted[length].stats["totals"]
        np.testing.assert_array_equal(found.ids, wanted[length].ids)
    # Many sets of them, and some that cannot be looked up.
    for length in range(10, 90):
        assert index.search(queries[0], search_list=length).stats["params"]["search_list"] == length
    assert index.search(queries[0], search_list=[20]).stats["params"]["search_list"] == 20


def test_stats_are_made_once(index, queries):
    r = index.search(queries[0])
    assert r.stats is r.stats and "stats" not in repr(r)
    assert r.stats["queries"] == 1 and r.stats["latency_us"]["p50"] == pytest.approx(r.latency_us[0], abs=1)


def test_result_has_shapes_and_stats(index, queries):
    r = index.search(queries, k=5, threads=2)
    assert r.ids.shape == r.distances.shape == (200, 5)
    assert (r.ids.dtype, r.distances.dtype) == (np.uint64, np.float32)
    assert r.latency_us.shape == (200,) and (r.latency_us > 0).all()
    assert r.stats["queries"] == 200 and r.stats["threads"] == 2
    assert r.stats["per_query"]["reads"] * 200 == pytest.approx(r.stats["totals"]["reads"])
    assert r.stats["latency_us"]["mean"] == pytest.approx(r.latency_us.mean(), rel=1e-3)
    assert "io_uring" in r.stats["io_backend"] or "pread" in r.stats["io_backend"]
    memory = dict(r.stats["memory"])
    assert memory.pop("total") == sum(memory.values())
    with pytest.raises(TypeError):
        _ids, _distances = r


def test_one_query_gives_one_row(index, base):
    r = index.search(base[17], k=3, search_list=50)
    assert r.ids.shape == (1, 3) and r.ids[0, 0] == 17 and r.distances[0, 0] == 0


def test_no_query_gives_no_row(index, base):
    assert index.search(base[:0], k=3).ids.shape == (0, 3)


def test_threads_do_not_change_answers(index, queries):
    one, two = (index.search(queries, k=10, search_list=40, threads=n, in_flight=8) for n in (1, 2))
    np.testing.assert_array_equal(one.ids, two.ids)


def test_k_beyond_rows_gives_fewer_columns_and_says_so(tmp_path):
    base = vectors(5, 12, 8)
    stratann.build(base, tmp_path / "i", kind="flat")
    with pytest.warns(UserWarning, match="k is 20, the index has 12 rows: 12 columns"):
        r = stratann.open(tmp_path / "i").search(base[:2], k=20)
    assert r.ids.shape == (2, 12) and sorted(r.ids[0]) == list(range(12))


@pytest.mark.parametrize("as_file", [False, True])
def test_large_ids_make_the_round_trip(tmp_path, as_file):
    base = vectors(6, 50, 8)
    ids = np.arange(50, dtype=np.uint64) + np.uint64(2**63 + 1)
    if as_file:
        np.save(tmp_path / "ids.npy", ids)
    stratann.build(base, tmp_path / "i", kind="flat", ids=tmp_path / "ids.npy" if as_file else ids)
    r = stratann.open(tmp_path / "i").search(base, k=1)
    np.testing.assert_array_equal(r.ids[:, 0], ids)


def test_files_and_arrays_build_the_same_index(tmp_path, base):
    stratann.write_vectors(tmp_path / "base.fbin", base)
    np.testing.assert_array_equal(stratann.read_vectors(tmp_path / "base.fbin"), base)
    stratann.build(base, tmp_path / "a", kind="flat")
    stratann.build(tmp_path / "base.fbin", tmp_path / "b", kind="flat")
    a, b = (stratann.open(tmp_path / name).info()["build_id"] for name in "ab")
    assert a == b


def test_info_memory_and_close(graph_path):
    with stratann.open(graph_path, ram_budget="1GiB", cache_budget="4MiB") as index:
        info, memory = index.info(), index.memory()
        assert (
            (info["kind"], info["rows"], info["dim"])
            == ("disk-graph", 4000, 24)
            == (index.kind, len(index), 24)
        )
        assert info["build"]["degree"] == 64 and info["curves"]
        assert memory["total"] == sum(size for what, size in memory.items() if what != "total")
        (codes,) = [entry["bytes"] for name, entry in info["files"].items() if "codes" in name]
        assert memory["codes"] == codes
        assert "4000 rows of 24 f32" in repr(index)
    assert index.closed and "closed" in repr(index)
    with pytest.raises(stratann.InputError, match="closed"):
        index.search(np.zeros((1, 24), np.float32))


def test_cache_hits_are_not_counted_as_reads(graph_path, queries):
    with stratann.open(graph_path, cache_budget="64MiB") as index:
        in_memory = index.search(queries, search_list=40, width=1, rerank=0).stats["totals"]
        blocks = index.info()["blocks"]
    assert in_memory["reads"] == in_memory["cache_hits"] == 0
    # Room for all blocks, but not for the graph as searches in memory use it.
    with stratann.open(graph_path, cache_budget=blocks["count"] * (blocks["bytes"] + 256)) as index:
        pages_per_block = blocks["bytes"] // 4096
        first, again = (
            index.search(queries, search_list=40, width=1, rerank=0).stats["totals"] for _ in range(2)
        )
    assert first["reads"] > 0
    # Both searches ask for the same blocks; the second finds nearly all of them in the cache.
    assert first["reads"] + first["cache_hits"] == again["reads"] + again["cache_hits"]
    assert again["reads"] < 0.1 * again["cache_hits"]
    for counters in (first, again):
        assert counters["pages_read"] == counters["reads"] * pages_per_block
        assert counters["bytes_read"] == 4096 * counters["pages_read"]


def test_searches_run_beside_each_other(index, queries):
    wanted = index.search(queries, k=10, search_list=40, threads=1, in_flight=8).ids
    found = [None] * 4

    def search(i):
        found[i] = index.search(queries, k=10, search_list=40, threads=1, in_flight=8).ids

    threads = [threading.Thread(target=search, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ids in found:
        np.testing.assert_array_equal(ids, wanted)


def test_ctrl_c_ends_a_search(index, queries):
    many = np.repeat(queries, 5000, axis=0)
    presser = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    presser.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        index.search(many, k=10, search_list=100)
    assert time.monotonic() - started < 5
    presser.join()


MEMORY = """
import resource, sys, numpy as np, stratann
base = np.zeros((200_000, 256), np.float32)
base[:, 0] = np.arange(200_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = stratann.build(base, sys.argv[1], kind="flat", ram_budget="64MiB")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
index = stratann.open(sys.argv[1])
assert index.search(base[777:778], k=1).ids[0, 0] == 777
print(after - before, base.nbytes // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux only")
def test_building_from_an_array_does_not_copy_it(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, os.fspath(tmp_path / "i")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    grown_kb, array_kb = map(int, run.stdout.split())
    assert grown_kb < min(80 << 10, array_kb // 2)
