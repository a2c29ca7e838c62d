"""Tests of the comparison: files, recall, the choice of settings, ratios, and whole runs with peers that are there,
missing or broken."""
import json
import os
import random
import sys
from pathlib import Path

import compare
import contenders
import dataset as dataset_module
import disk_probe
import numpy as np
import pytest
import report
import roster
import vectors

FAKE = Path(__file__).with_name("fake_stratann.py")


def write_bin(path, rows):
    with open(path, "wb") as f:
        np.array(rows.shape, "<u4").tofile(f)
        rows.tofile(f)


def write_groundtruth(path, ids):
    with open(path, "wb") as f:
        np.array(ids.shape, "<u4").tofile(f)
        ids.astype("<i4").tofile(f)
        np.zeros(ids.shape, "<f4").tofile(f)


def nearest(base, queries, k):
    distances = ((queries[:, None, :].astype(np.float64) - base[None].astype(np.float64)) ** 2).sum(2)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(1)
    # SymphonyQG takes no fewer dimensions.
    base = rng.standard_normal((2000, 64), np.float32)
    queries = rng.standard_normal((50, 64), np.float32)
    write_bin(folder / "base.fbin", base)
    write_bin(folder / "query.fbin", queries)
    write_groundtruth(folder / "groundtruth.ibin", nearest(base, queries, 20))
    return folder


def run_compare(dataset, tmp_path, *extra):
    """Runs a comparison of one session; the session's results are those of the last --threads."""
    out = tmp_path / "out"
    status = compare.main(["--data", str(dataset), "--out", str(out), "--rounds", "1", "--min-seconds", "0",
                           "--latency-queries", "5", "--stratann", str(FAKE), "--threads", "2", "--distributions",
                           "in", *extra])
    threads = extra[extra.index("--threads") + 1].split(",")[-1] if "--threads" in extra else 2
    return status, json.loads((out / f"compare-data-in-{threads}t.json").read_text())


# Files and recall

@pytest.mark.parametrize("suffix,dtype", vectors.DTYPES.items())
def test_vectors_of_every_dtype_come_back(tmp_path, suffix, dtype):
    rows = (np.random.default_rng(2).standard_normal((7, 5)) * 40).astype(dtype)
    write_bin(tmp_path / f"x{suffix}", rows)
    read = vectors.open_vectors(tmp_path / f"x{suffix}")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, rows)


def test_bad_files_are_named(tmp_path):
    rows = np.ones((4, 3), np.float32)
    write_bin(tmp_path / "x.fbin", rows)
    data = (tmp_path / "x.fbin").read_bytes()
    for name, content, message in [("short.fbin", data[:-1], "header says 4 x 3"), ("tiny.fbin", b"abc", "shorter"),
                                   ("empty.fbin", bytes(8), "0 x 0"), ("x.dat", data, "unknown suffix")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(vectors.DataError, match=message) as error:
            vectors.open_vectors(tmp_path / name)
        assert name in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(vectors.DataError, match=r"absent\.fbin"):
        vectors.open_vectors(tmp_path / "absent.fbin")


def test_groundtruth_must_fit_the_queries(tmp_path):
    ids = np.arange(12).reshape(3, 4)
    write_groundtruth(tmp_path / "gt", ids)
    np.testing.assert_array_equal(vectors.read_groundtruth(tmp_path / "gt", 3, 2), ids[:, :2])
    for nq, k in [(2, 2), (3, 5)]:
        with pytest.raises(vectors.DataError, match="are needed"):
            vectors.read_groundtruth(tmp_path / "gt", nq, k)


def test_converted_copy_has_unit_rows(tmp_path):
    rows = np.random.default_rng(3).standard_normal((9, 6)).astype(np.float16)
    vectors.write_vectors(tmp_path / "x.fbin", rows, normalise=True)
    read = vectors.open_vectors(tmp_path / "x.fbin")
    np.testing.assert_allclose(np.linalg.norm(read, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(read[3], rows[3].astype(np.float32) / np.linalg.norm(rows[3].astype(np.float32)),
                               rtol=1e-6)


def test_recall_agrees_with_a_naive_twin():
    rng = np.random.default_rng(4)
    for _ in range(50):
        nq, k = rng.integers(1, 8), rng.integers(1, 12)
        truth = np.stack([rng.permutation(30)[:k] for _ in range(nq)])
        found = rng.integers(-1, 30, (nq, k))
        naive = sum(1 for q in range(nq) for t in truth[q] if t in found[q].tolist()) / (nq * k)
        assert vectors.recall(found, truth) == pytest.approx(naive, abs=1e-12)
    assert vectors.recall([[5, 5, 5]], np.array([[5, 6, 7]])) == pytest.approx(1 / 3)


# Choice and ratios

def point(recall, pages=0.0, cpu=1.0, qps=100.0, rss=100e6, baseline=40e6):
    return {"setting": {"ef": 1}, "recall": recall, "pages_read": pages, "reads": pages, "cpu_us": cpu, "qps": qps,
            "peak_rss_bytes": rss, "baseline_rss_bytes": baseline, "latency_us": None}


def test_cheapest_is_by_pages_on_disk_and_by_cpu_in_memory():
    few_pages, little_cpu = point(0.96, pages=20, cpu=50), point(0.97, pages=30, cpu=10)
    points = [point(0.90, pages=5, cpu=1), few_pages, little_cpu, point(0.99, pages=60, cpu=90)]
    random.Random(5).shuffle(points)
    assert report.cheapest(points, 0.95, "disk") == (few_pages, True)
    assert report.cheapest(points, 0.95, "memory") == (little_cpu, True)


def test_best_recall_stands_in_when_the_target_is_out_of_reach():
    best = point(0.8)
    assert report.cheapest([point(0.5), best, point(0.7)], 0.95, "memory") == (best, False)


def test_pages_are_interpolated_at_the_target():
    points = [point(0.90, pages=20), point(1.0, pages=60), point(0.94, pages=30)]
    assert report.pages_at(points, 0.97) == pytest.approx(45)
    assert report.pages_at(points, 0.94) == pytest.approx(30)
    assert report.pages_at(points, 0.85) is None


def test_summary_takes_medians():
    runs = [point(0.9, qps=q) | {"latency_us": {"mean": q, "p50": q, "p95": q, "p99": q}} for q in (10, 500, 20)]
    summary = report.summarise(runs)
    assert (summary["qps"], summary["latency_us"]["p95"], summary["rounds"]) == (20, 20, 3)


def entry(chosen, storage, seconds, reached=True, pages=None):
    return {"storage": storage, "chosen": chosen, "reached": reached, "pages_at_recall": pages,
            "cpu_at_recall": chosen["cpu_us"], "sweep": [chosen],
            "build": {"seconds": seconds, "peak_rss_bytes": 9e6, "baseline_rss_bytes": 0, "index_bytes": 1e6}}


def test_ratio_rows():
    entries = {
        "stratann-disk-graph": entry(point(0.95, 0, 20, 9000, 90e6, 0), "memory", 10),
        "stratann-flat": entry(point(1.0, 0, 900, 900, 90e6, 0), "memory", 1),
        "stratann-from-disk": entry(point(0.95, 20, 30, 3000, 30e6, 0), "disk", 10, pages=19),
        "diskann": entry(point(0.95, 40, 60, 1500, 100e6, 40e6), "disk", 20, pages=38),
        "hnswlib-16": entry(point(0.95, 0, 10, 18000), "memory", 5),
        "svs-lvq8": entry(point(0.95, 0, 10, 9000), "memory", 5),
    }
    rows = {(r["stratann"], r["peer"]): r for r in report.ratio_rows(entries, {"hnswlib-16"})}
    assert list(rows) == [("stratann-disk-graph", "hnswlib-16"), ("stratann-disk-graph", "svs-lvq8"),
                          ("stratann-from-disk", "diskann")]
    disk = rows["stratann-from-disk", "diskann"]
    keys = ("qps", "pages", "pages_at_recall", "cpu", "cpu_at_recall", "rss", "build")
    assert [disk[k] for k in keys] == [2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert rows["stratann-disk-graph", "svs-lvq8"]["pages"] is None
    assert [n for n, r in rows.items() if r["best_hnsw"]] == [("stratann-disk-graph", "hnswlib-16")]
    text = report.ratio_table(list(rows.values()))
    assert len({len(line) for line in text.splitlines()}) == 1


def test_a_front_leaves_out_what_others_beat():
    points = [point(0.9, cpu=10), point(0.92, cpu=9), point(0.95, cpu=30), point(0.95, cpu=25), point(0.93, cpu=40)]
    assert report.front(points) == [(0.92, 9), (0.95, 25)]


def test_time_at_a_recall_lies_between_the_settings_around_it():
    curve = [(0.9, 10.0), (0.99, 20.0)]
    assert report.at_recall(curve, 0.5) == 10.0
    assert report.at_recall(curve, 0.999) is None
    # Misses shrink evenly: half of the way from 0.1 to 0.01 is their geometric mean.
    assert report.at_recall(curve, 1 - (0.1 * 0.01) ** 0.5) == pytest.approx(15.0)
    assert report.at_recall([(0.9, 10.0), (1.0, 20.0)], 0.95) < 20.0


def test_noise_is_how_far_twins_differ():
    def swept(*cpu):
        return {"sweep": [point(0.9, cpu=c, qps=1000 / c) | {"setting": {"ef": i}} for i, c in enumerate(cpu)]}

    first, second = roster.TWINS
    noise = report.noise({first: swept(10, 20, 30), second: swept(10, 25, 29)})
    assert noise["cpu_us"] == {"max": 0.2, "median": pytest.approx(1 / 29, abs=1e-4)}
    assert "up to 20 %" in report.noise_text(noise)
    assert report.noise({first: swept(10)}) is None
    assert "unknown" in report.noise_text(None)


def test_a_setting_between_those_around_the_target():
    def swept(*pairs, **fixed):
        return [{"setting": {"ef": ef} | fixed, "recall": recall} for ef, recall in pairs]

    assert report.between(swept((80, 0.9496), (100, 0.961)), 0.95) == {"ef": 90}
    assert report.between(swept((100, 0.961), (80, 0.9496), (60, 0.93)), 0.95) == {"ef": 90}
    assert report.between(swept((80, 0.94), (100, 0.96), width=4), 0.95) == {"ef": 90, "width": 4}
    assert report.between(swept((80, 0.94), (85, 0.96)), 0.95) is None       # near enough
    assert report.between(swept((80, 0.94), (100, 0.945)), 0.95) is None     # nothing reaches it
    assert report.between(swept((80, 0.96), (100, 0.97)), 0.95) is None      # everything does
    assert report.between(swept((80, 0.94), width=4) + swept((100, 0.96), width=8), 0.95) is None


def test_disk_share():
    assert report.disk_share(point(0.95, pages=40, qps=1000), 80_000) == pytest.approx(0.5)
    assert report.disk_share(point(0.95, pages=0), 80_000) is None
    assert report.disk_share(point(0.95, pages=40), None) is None


# Peers and whole runs

def test_selection():
    specs = roster.peers(10)

    def named(text):
        return [s.name for s in roster.select("--peers", text, specs)]

    assert named("usearch,faiss") == ["faiss-ivf-flat", "faiss-ivf-pq", "faiss-hnsw", "usearch"]
    assert named("hnswlib,svs") == ["hnswlib-16", "hnswlib-32", "svs-lvq8", "svs-lvq4x8"]
    assert named("none") == []
    assert roster.select("--peers", "all", specs) == list(specs)
    with pytest.raises(ValueError, match="--peers: there is no 'bogus'"):
        named("bogus")
    assert all(s["ef"] >= 40 for s in roster.select("--peers", "hnswlib", roster.peers(40))[0].settings)
    own = roster.select("--kinds", "flat,from-disk", roster.kinds(10))
    assert [s.name for s in own] == ["stratann-flat", "stratann-from-disk", "stratann-from-disk-one-in-flight"]
    assert [s.name for s in roster.select("--kinds", "disk-graph", roster.kinds(10))] == list(roster.TWINS)


def test_thinned_sweeps_keep_their_ends():
    assert roster.thinned((1, 2, 3, 4, 5, 6), 2) == (1, 3, 5, 6)
    assert roster.thinned((1, 2, 3), 9) == (1, 3)
    assert roster.thinned((1,), 4) == (1,)


def test_fake_stratann_alone(dataset, tmp_path, capsys):
    status, results = run_compare(dataset, tmp_path, "--peers", "none", "--recall", "0.95")
    assert status == 0 and not results["skipped"]
    found = results["contenders"]
    assert list(found) == [s.name for s in roster.kinds(10)]
    disk = found["stratann-from-disk"]
    assert disk["chosen"]["setting"] == {"search_list": 20}
    assert {"search_list": 15} in [p["setting"] for p in disk["sweep"]]
    assert disk["chosen"]["pages_read"] == 10
    assert disk["chosen"]["latency_kind"] == "under load"
    for name in roster.TWINS:
        assert found[name]["chosen"]["pages_read"] == 0
        assert found[name]["chosen"]["latency_kind"] == "one query at a time"
    assert results["noise"]["cpu_us"] == {"max": 0.0, "median": 0.0}
    assert results["stratann"] == "9.9"
    assert results["disk"] == {"iops": 50_000, "samples": [50_000], "method": "stratann doctor"}
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("stratann-from-disk "))
    assert "20 %" in line            # 1,000 QPS of the 5,000 that 10 pages a query allow
    log = (tmp_path / "out" / "logs" / "stratann.log").read_text()
    assert log.count("+ ") and "--in-flight 1" in log and "--no-learning" in log
    assert log.count(" build ") == len({s.index for s in roster.kinds(10)})
    # In memory the first pass does not count.
    assert "--search-list 22,22 " in log and "--search-list 20 " in log


def test_short_passes_are_repeated(dataset, tmp_path):
    run_compare(dataset, tmp_path, "--peers", "none", "--kinds", "disk-graph", "--min-seconds", "0.1", "--rounds", "2")
    log = (tmp_path / "out" / "logs" / "stratann.log").read_text()
    # 50 queries with a beam of 10 take 25 ms; four such passes and one to warm up, asked for at once in round two.
    assert log.count("--search-list 10,10,10,10,10 ") == 2 * len(roster.TWINS)


def test_a_session_for_each_distribution_and_number_of_threads(dataset, tmp_path):
    run_compare(dataset, tmp_path, "--peers", "none", "--kinds", "disk-graph", "--threads", "1,2", "--distributions",
                "in,out")
    names = {p.stem for p in (tmp_path / "out").glob("compare-*.json")}
    assert names == {f"compare-data-{kind}-{threads}t" for kind in ("in", "out") for threads in (1, 2)}
    outside = json.loads((tmp_path / "out" / "compare-data-out-1t.json").read_text())
    assert outside["data"]["distribution"] == "out" and "common vector" in outside["data"]["made"]


def test_queries_from_outside_are_farther_and_the_same_each_time():
    rng = np.random.default_rng(7)
    plane = rng.standard_normal((4, 24))
    base, queries = ((rng.standard_normal((n, 4)) @ plane).astype(np.float32) for n in (3000, 40))
    for cosine in (False, True):
        moved = dataset_module.moved(base, queries, cosine, seed=1)
        np.testing.assert_array_equal(moved, dataset_module.moved(base, queries, cosine, seed=1))
        rows, asked = (vectors.unit_rows(x) if cosine else x for x in (base, queries))

        def nearest_of(q, rows=rows):
            return np.sqrt(((q[:, None] - rows[None]) ** 2).sum(2)).min(1).mean()

        assert nearest_of(moved) > 1.05 * nearest_of(asked)
    bytes_ = dataset_module.moved((base * 40 + 128).clip(0, 255).astype(np.uint8), np.full((3, 24), 250, np.uint8),
                                  False, 1)
    assert bytes_.dtype == np.uint8


def test_missing_stratann_and_missing_package_are_skipped(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contenders.PeerProcess, "interpreter", lambda self: sys.executable)
    blocked = tmp_path / "blocked" / "hnswlib"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'hnswlib'\")\n")
    monkeypatch.setattr(contenders, "BENCH", link_bench(tmp_path, blocked))
    extra = ("--peers", "hnswlib", "--kinds", "disk-graph", "--stratann", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        run_compare(dataset, tmp_path, *extra)
    printed = capsys.readouterr()
    assert "nothing was measured" in printed.err
    reason = next(line for line in printed.out.splitlines() if line.startswith("skipped: hnswlib-16"))
    assert "No module named 'hnswlib'" in reason and "install_peers.sh" in reason
    assert "skipped: stratann-disk-graph: no program at" in printed.out and "absent" in printed.out


def link_bench(tmp_path, package):
    """A copy of the bench folder, by links, whose import path finds `package` first."""
    copy = tmp_path / "bench"
    copy.mkdir()
    for name in ("peers", "vectors.py"):
        (copy / name).symlink_to(compare.BENCH / name)
    (copy / package.name).symlink_to(package)
    return copy


def broken_program(tmp_path, text):
    path = tmp_path / "broken"
    path.write_text(text)
    path.chmod(0o755)
    return ("--peers", "none", "--kinds", "disk-graph", "--stratann", str(path))


def test_a_dying_program_is_dropped_and_the_reason_told(dataset, tmp_path, capsys):
    dying = f"#!/bin/sh\n[ $1 = search ] && exit 3\nexec {sys.executable} {FAKE} \"$@\"\n"
    with pytest.raises(FileNotFoundError):
        run_compare(dataset, tmp_path, *broken_program(tmp_path, dying))
    assert "exited with status 3; see logs/stratann.log" in capsys.readouterr().out


def test_json_off_the_contract_is_named(dataset, tmp_path, capsys):
    odd = f"#!/bin/sh\n{sys.executable} {FAKE} \"$@\" | sed 's/\"cpu_us\"/\"cpu\"/g'\n"
    with pytest.raises(FileNotFoundError):
        run_compare(dataset, tmp_path, *broken_program(tmp_path, odd))
    assert "no key 'cpu_us'" in capsys.readouterr().out


def test_a_search_in_memory_that_reads_is_refused(dataset, tmp_path, capsys):
    reading = f"#!/bin/sh\n{sys.executable} {FAKE} \"$@\" | sed 's/\"reads\": 0.0/\"reads\": 0.5/g'\n"
    with pytest.raises(FileNotFoundError):
        run_compare(dataset, tmp_path, *broken_program(tmp_path, reading))
    assert "0.50 reads per query: the index is not in memory" in capsys.readouterr().out


def test_bad_usage(dataset, tmp_path, capsys):
    out = ["--out", str(tmp_path / "o"), "--stratann", str(FAKE), "--distributions", "in"]
    assert compare.main(["--data", str(dataset), "--peers", "bogus", *out]) == 2
    assert compare.main(["--data", str(dataset / "base.fbin"), *out]) == 2
    assert compare.main(["--data", str(dataset), "--k", "30", *out]) == 2
    with pytest.raises(SystemExit, match="2"):
        compare.main(["--data", str(dataset), "--rounds", "0", *out])
    assert "--rounds must be at least 1" in capsys.readouterr().err
    for option, value in (("--threads", "0"), ("--threads", "x"), ("--distributions", "far")):
        with pytest.raises(SystemExit, match="2"):
            compare.main(["--data", str(dataset), option, value, *out[:4]])


@pytest.mark.parametrize("package,peer,count", [("faiss", "faiss", 3), ("hnswlib", "hnswlib", 2), ("svs", "svs", 2),
                                                ("usearch", "usearch", 1), ("rabitqlib", "symphonyqg", 1)])
def test_real_peers(dataset, tmp_path, package, peer, count):
    pytest.importorskip(package)
    if peer == "svs" and "GenuineIntel" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("LVQ is for processors by Intel")
    own = ("--kinds", "none", "--peers", peer)
    status, results = run_compare(dataset, tmp_path, *own, "--recall", "0.9")
    assert status == 0 and not results["skipped"]
    peers = {n: e for n, e in results["contenders"].items() if n.startswith(peer)}
    assert len(peers) == count
    for entry_ in peers.values():
        chosen = entry_["chosen"]
        assert entry_["reached"] and 0.9 <= chosen["recall"] <= 1
        assert chosen["qps"] > 0 and chosen["cpu_us"] > 0 and chosen["latency_us"]["p50"] > 0
        assert chosen["peak_rss_bytes"] > chosen["baseline_rss_bytes"] > 0
        assert entry_["build"]["index_bytes"] > 2000 * 32
    with_reuse = run_compare(dataset, tmp_path, *own, "--recall", "0.9", "--reuse")[1]
    assert all(with_reuse["contenders"][n]["build"]["reused"] for n in peers)
    other_seed = run_compare(dataset, tmp_path, *own, "--reuse", "--seed", "2")[1]
    assert not any(other_seed["contenders"][n]["build"].get("reused") for n in peers)


def test_real_disk_peer(dataset, tmp_path):
    if not (compare.BENCH / ".venv-diskann").exists():
        pytest.skip("bench/install_peers.sh diskann was not run")
    status, results = run_compare(dataset, tmp_path, "--kinds", "none", "--peers", "diskann", "--code-bytes", "16",
                                  "--threads", "1")
    assert status == 0 and not results["skipped"]
    entry_ = results["contenders"]["diskann"]
    assert entry_["build"]["details"]["code_bytes"] == 16
    assert entry_["reached"]
    for p in entry_["sweep"]:       # every list entry is expanded: one page each at the least
        assert p["pages_read"] >= p["setting"]["search_list"]


def test_probe_counts_reads(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    before = io_bytes()
    try:
        iops = disk_probe.random_read_iops(path, seconds=0.05)
    except disk_probe.ProbeError as e:
        pytest.skip(str(e))
    assert iops > 0
    assert io_bytes() - before >= 0.05 * iops * 4096 * 0.9
    with pytest.raises(disk_probe.ProbeError, match="smaller than one page"):
        path.write_bytes(b"x")
        disk_probe.random_read_iops(path)


def io_bytes():
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines()
                    if line.startswith("read_bytes")).split()[1])
