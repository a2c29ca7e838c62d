"""Tests of the comparison: files, recall, the choice of settings, ratios, and whole runs with peers that are there,
missing or broken."""
import json
import os
import random
import sys
from pathlib import Path

import compare
import contenders
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
    base = rng.standard_normal((2000, 32), np.float32)
    queries = rng.standard_normal((50, 32), np.float32)
    write_bin(folder / "base.fbin", base)
    write_bin(folder / "query.fbin", queries)
    write_groundtruth(folder / "groundtruth.ibin", nearest(base, queries, 20))
    return folder


def run_compare(dataset, tmp_path, *extra):
    out = tmp_path / "out"
    status = compare.main(["--data", str(dataset), "--out", str(out), "--rounds", "1", "--min-seconds", "0",
                           "--latency-queries", "5", "--stratann", str(FAKE), *extra])
    return status, json.loads((out / "results.json").read_text())


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
    return {"storage": storage, "chosen": chosen, "reached": reached, "pages_at_recall": pages, "sweep": [chosen],
            "build": {"seconds": seconds, "peak_rss_bytes": 9e6, "baseline_rss_bytes": 0, "index_bytes": 1e6}}


def test_ratio_rows():
    entries = {
        "stratann": entry(point(0.95, 20, 30, 3000, 30e6, 0), "disk", 10, pages=19),
        "stratann-in-cache": entry(point(0.95, 0, 20, 9000, 90e6, 0), "memory", 10),
        "diskann": entry(point(0.95, 40, 60, 1500, 100e6, 40e6), "disk", 20, pages=38),
        "hnswlib": entry(point(0.95, 0, 10, 18000), "memory", 5),
        "usearch": entry(point(0.95, 0, 10, 9000), "memory", 5),
    }
    rows = {(r["stratann"], r["peer"]): r for r in report.ratio_rows(entries, {"hnswlib", "usearch"})}
    disk = rows["stratann", "diskann"]
    assert [disk[k] for k in ("qps", "pages", "pages_at_recall", "cpu", "rss", "build")] == [2, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert rows["stratann", "hnswlib"]["pages"] is None
    assert ("stratann-in-cache", "diskann") not in rows
    assert [n for n, r in rows.items() if r["best_hnsw"]] == [("stratann", "hnswlib"),
                                                              ("stratann-in-cache", "hnswlib")]
    text = report.ratio_table(list(rows.values()))
    assert len({len(line) for line in text.splitlines()}) == 1


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

def test_peer_selection():
    specs = roster.roster(10)
    names = [s.name for s in roster.select("usearch,faiss", specs)]
    assert names == ["faiss-ivf-flat", "faiss-ivf-pq", "faiss-hnsw", "usearch"]
    assert roster.select("none", specs) == []
    assert roster.select("all", specs) == list(specs)
    with pytest.raises(ValueError, match="no peer 'bogus'"):
        roster.select("bogus", specs)
    assert all(s["ef"] >= 40 for s in roster.select("hnswlib", roster.roster(40))[0].settings)


def test_fake_stratann_alone(dataset, tmp_path, capsys):
    status, results = run_compare(dataset, tmp_path, "--peers", "none", "--recall", "0.95")
    assert status == 0
    found = results["contenders"]
    assert list(found) == ["stratann", "stratann-one-in-flight", "stratann-in-cache"]
    assert found["stratann"]["chosen"]["setting"] == {"search_list": 20}
    assert {"search_list": 15} in [p["setting"] for p in found["stratann"]["sweep"]]
    assert found["stratann"]["chosen"]["pages_read"] == 10
    assert found["stratann-in-cache"]["chosen"]["pages_read"] == 0
    assert found["stratann-one-in-flight"]["chosen"]["latency_kind"] == "one query at a time"
    assert results["disk"] == {"iops": 50_000, "samples": [50_000], "method": "stratann doctor"}
    assert (tmp_path / "out" / "results.json").exists()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("stratann "))
    assert "20 %" in line            # 1,000 QPS of the 5,000 that 10 pages a query allow
    log = (tmp_path / "out" / "logs" / "stratann.log").read_text()
    assert "--in-flight 1" in log and "--cache-budget" in log and "--search-list 20,20" in log


def test_missing_stratann_and_missing_package_are_skipped(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contenders.PeerProcess, "interpreter", lambda self: sys.executable)
    blocked = tmp_path / "blocked" / "hnswlib"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'hnswlib'\")\n")
    monkeypatch.setattr(contenders, "BENCH", link_bench(tmp_path, blocked))
    status, results = run_compare(dataset, tmp_path, "--peers", "hnswlib", "--stratann", str(tmp_path / "absent"))
    assert status == 1
    assert "No module named 'hnswlib'" in results["skipped"]["hnswlib"]
    assert "install_peers.sh" in results["skipped"]["hnswlib"]
    assert "absent" in results["skipped"]["stratann"]
    assert "skipped: hnswlib" in capsys.readouterr().out


def link_bench(tmp_path, package):
    """A copy of the bench folder, by links, whose import path finds `package` first."""
    copy = tmp_path / "bench"
    copy.mkdir()
    for name in ("peers", "vectors.py"):
        (copy / name).symlink_to(compare.BENCH / name)
    (copy / package.name).symlink_to(package)
    return copy


def test_a_dying_program_is_dropped_and_the_reason_kept(dataset, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text(f"#!/bin/sh\n[ $1 = search ] && exit 3\nexec {sys.executable} {FAKE} \"$@\"\n")
    broken.chmod(0o755)
    status, results = run_compare(dataset, tmp_path, "--peers", "none", "--stratann", str(broken))
    assert status == 1
    assert "exited with status 3" in results["skipped"]["stratann"]


def test_json_off_the_contract_is_named(dataset, tmp_path):
    odd = tmp_path / "odd"
    odd.write_text(f"#!/bin/sh\n{sys.executable} {FAKE} \"$@\" | sed 's/\"cpu_us\"/\"cpu\"/g'\n")
    odd.chmod(0o755)
    status, results = run_compare(dataset, tmp_path, "--peers", "none", "--stratann", str(odd))
    assert status == 1
    assert "no key 'cpu_us'" in results["skipped"]["stratann"]


def test_bad_usage(dataset, tmp_path, capsys):
    out = ["--out", str(tmp_path / "o"), "--stratann", str(FAKE)]
    assert compare.main(["--data", str(dataset), "--peers", "bogus", *out]) == 2
    assert compare.main(["--data", str(dataset / "base.fbin"), *out]) == 2
    assert compare.main(["--data", str(dataset), "--k", "30", *out]) == 2
    with pytest.raises(SystemExit, match="2"):
        compare.main(["--data", str(dataset), "--rounds", "0", *out])
    assert "--rounds must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("package,peer", [("faiss", "faiss"), ("hnswlib", "hnswlib"), ("usearch", "usearch")])
def test_real_peers(dataset, tmp_path, package, peer):
    pytest.importorskip(package)
    status, results = run_compare(dataset, tmp_path, "--peers", peer, "--recall", "0.9")
    assert status == 0 and not results["skipped"]
    peers = {n: e for n, e in results["contenders"].items() if n.startswith(peer)}
    assert len(peers) == (3 if peer == "faiss" else 1)
    for entry_ in peers.values():
        chosen = entry_["chosen"]
        assert entry_["reached"] and 0.9 <= chosen["recall"] <= 1
        assert chosen["qps"] > 0 and chosen["cpu_us"] > 0 and chosen["latency_us"]["p50"] > 0
        assert chosen["peak_rss_bytes"] > chosen["baseline_rss_bytes"] > 0
        assert entry_["build"]["index_bytes"] > 2000 * 32
    with_reuse = run_compare(dataset, tmp_path, "--peers", peer, "--recall", "0.9", "--reuse")[1]
    assert all(with_reuse["contenders"][n]["build"]["reused"] for n in peers)
    other_seed = run_compare(dataset, tmp_path, "--peers", peer, "--reuse", "--seed", "2")[1]
    assert not any(other_seed["contenders"][n]["build"].get("reused") for n in peers)


def test_real_disk_peer(dataset, tmp_path):
    if not (compare.BENCH / ".venv-diskann").exists():
        pytest.skip("bench/install_peers.sh diskann was not run")
    status, results = run_compare(dataset, tmp_path, "--peers", "diskann", "--code-bytes", "16")
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
