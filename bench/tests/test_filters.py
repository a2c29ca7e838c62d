"""Tests of the benchmark of filters: filters and their exact answers, speeds at a recall, and whole runs."""
import json
import sys
from pathlib import Path

import filter_figures as figures
import filter_pages
import filter_roster
import filter_tasks
import filters
import numpy as np
import plots
import pytest
import stored
import vectors
from peers import worker

FAKE = Path(__file__).with_name("fake_stratann.py")
TARGET = Path(__file__).resolve().parents[2] / "target"
PROGRAMS = [path for path in (TARGET / "release" / "stratann", TARGET / "debug" / "stratann") if path.exists()]


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(1)
    centres = 3 * rng.standard_normal((20, 16))
    for name, count in (("base", 3000), ("query", 40)):
        rows = centres[rng.integers(0, 20, count)] + rng.standard_normal((count, 16))
        vectors.write_vectors(folder / f"{name}.fbin", rows)
    return folder


def run_filters(dataset, tmp_path, *extra):
    out = tmp_path / "out"
    status = filters.main(["--data", str(dataset), "--out", str(out), "--rounds", "2", "--min-seconds", "0",
                           "--random-queries", "20", "--near-queries", "10", "--stratann", str(FAKE), *extra])
    return status, json.loads((out / "filters-data-1t.json").read_text())


def made(dataset, tmp_path, seed=1, metric="l2"):
    tasks = filter_tasks.make(dataset / "base.fbin", dataset / "query.fbin", metric, 10, tmp_path / "tasks", (20, 10),
                              seed)
    return {task.name: task for task in tasks}


# Filters and their exact answers

def test_every_place_has_a_filter_of_every_size(dataset, tmp_path):
    tasks = made(dataset, tmp_path)
    assert list(tasks) == filter_tasks.names() and len(tasks) == 18
    assert [tasks[f"random-{p:g}"].matches for p in filter_tasks.PERCENTS] == [3000, 1500, 300, 30, 3, 1]
    assert (tasks["near-10"].count, tasks["random-10"].count, tasks["near-0.1"].k) == (10, 20, 3)
    assert tasks["none"].only is None and filter_tasks.name_in("far", 100) == "near-100"
    for task in tasks.values():
        if task.only:
            np.testing.assert_array_equal(np.load(task.only), task.rows)
            assert np.array_equal(task.rows, np.unique(task.rows))


def test_near_and_far_rows_are_those_around_the_first_query(dataset, tmp_path):
    tasks = made(dataset, tmp_path)
    base, queries = (np.array(vectors.open_vectors(dataset / f"{n}.fbin")) for n in ("base", "query"))
    order = np.argsort(((base - queries[0]) ** 2).sum(1))
    assert set(tasks["near-1"].rows) == set(order[:30]) and set(tasks["far-1"].rows) == set(order[-30:])
    asked = vectors.open_vectors(tasks["far-1"].queries)
    nearest = np.argsort(((queries - queries[0]) ** 2).sum(1))[:10]
    np.testing.assert_array_equal(asked, queries[np.sort(nearest)])


def test_the_seed_draws_the_random_rows_alone(dataset, tmp_path):
    first, again, other = made(dataset, tmp_path), made(dataset, tmp_path), made(dataset, tmp_path, seed=2)
    np.testing.assert_array_equal(first["random-1"].rows, again["random-1"].rows)
    assert not np.array_equal(first["random-1"].rows, other["random-1"].rows)
    np.testing.assert_array_equal(first["far-1"].rows, other["far-1"].rows)
    digests = [filter_tasks.digest(list(tasks.values())) for tasks in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_exact_answers_agree_with_a_naive_twin(monkeypatch, metric):
    monkeypatch.setattr(filter_tasks, "BLOCK_ROWS", 7)
    rng = np.random.default_rng(3)
    # Few values: many distances are equal.
    base, queries = rng.integers(-1, 2, (60, 3)).astype(np.float32), rng.integers(1, 3, (9, 3)).astype(np.float32)
    rows = np.sort(rng.permutation(60)[:25])
    ids, distances = filter_tasks.nearest(base, rows, queries, metric, 6)
    for query, found, near in zip(queries.astype(float), ids, distances, strict=True):
        def naive(row, query=query):
            x = base[row].astype(float)
            if metric == "l2":
                return float(((x - query) ** 2).sum())
            if metric == "ip":
                return -float(x @ query)
            return 1 - float(x @ query) / max(np.linalg.norm(x) * np.linalg.norm(query), 1e-30)

        expected = sorted(rows, key=lambda row: (round(naive(row), 9), row))[:6]
        np.testing.assert_allclose(near, [naive(row) for row in expected], atol=1e-9)
        np.testing.assert_allclose([naive(row) for row in found], near, atol=1e-9)
        assert set(found) <= set(rows)
        if metric == "l2":
            assert list(found) == expected


# Speeds at a recall

def point(recall, us, **fields):
    return {"setting": {"ef": us}, "recall": recall, "qps": 5e5 / us, "cpu_us": us, "few_results": 0} | fields


def test_settings_around_the_recalls_are_kept():
    points = [point(0.5, 1), point(0.85, 2), point(0.84, 3), point(0.93, 4), point(0.94, 5), point(0.99, 9),
              point(0.995, 20)]

    def kept(*targets):
        return [setting["ef"] for setting in figures.kept_settings(points, targets)]

    assert kept(0.9) == [2, 4] and kept(0.9, 0.95) == [2, 4, 5, 9] and kept(0.3) == [1]
    assert kept(0.999) == [20] and kept(0.999, 0.9) == [2, 4]


def test_a_speed_that_is_not_reached_is_none():
    points = [point(0.8, 10), point(0.98, 20)]
    assert figures.qps_at(points, 0.99) is None and figures.qps_at([], 0.9) is None
    assert 1e6 / 20 < figures.qps_at(points, 0.9) < 1e6 / 10
    assert figures.best(points)["recall"] == 0.98
    rounds = [point(0.9, us) for us in (10, 50, 20)]
    assert (figures.middle(rounds)["cpu_us"], figures.middle(rounds)["qps"]) == (20, 25_000)


def document(**fields):
    """Results of three contenders and three filters; the peer is twice as fast, but not far from the query."""
    def entry(tasks):
        return {"version": "1.2", "options": {"M": 16}, "tasks": tasks,
                "build": {"seconds": 1.0, "cpu_seconds": 2.0, "index_bytes": 3}}

    own = {"none": [point(0.96, 40.0)], "random-50": [point(0.96, 80.0, way="search")],
           "random-1": [point(1.0, 20.0, way="codes")], "far-1": [point(1.0, 20.0, way="codes")],
           "near-0.01": [point(1.0, 5.0)]}
    peer = {"none": [point(0.96, 20.0)], "random-1": [point(1.0, 10.0)],
            "far-1": [point(0.4, 10.0, few_results=7)]}
    scan = {"near-0.01": [point(1.0, 4.0)]}
    places = {"none": ("none", 100), "random-50": ("random", 50), "random-1": ("random", 1), "far-1": ("far", 1),
              "near-0.01": ("near", 0.01)}
    tasks = {name: {"place": place, "percent": p, "matches": 10, "k": 10, "queries": 20}
             for name, (place, p) in places.items()}
    return {"date": "2026-01-02", "stratann": "0.1.0", "isa_asked": None, "threads": 1, "rounds": 3, "k": 10,
            "recalls": [0.9, 0.95], "seed": 1, "auto": "disk-graph", "tasks": tasks,
            "machine": {"cpu": "Some CPU", "isa": ["avx2"], "cores": 4, "other_cores": 0.5},
            "data": {"name": "set", "n": 1000, "dim": 8, "dtype": "float32", "metric": "l2"},
            "contenders": {"stratann-disk-graph": entry(own), "hnswlib-16": entry(peer), "scan-numpy": entry(scan)},
            "skipped": {"lancedb-ivf-pq": "its package is missing"}} | fields


def test_ratios_are_of_speeds_at_equal_recall():
    found = {(what.replace("`", ""), *values, target) for what, values, target in filter_pages.ratios(document())}
    assert found == {("stratann-disk-graph: half of the rows at random over no filter", "0.50", "0.50", 0.6),
                     ("stratann-disk-graph over the fastest peer, random-1 %", *["0.50 (hnswlib-16)"] * 2, 1.5),
                     ("stratann-disk-graph over scan-numpy, near-0.01 %", "0.80", "0.80", 1.0)}
    assert [values for _, values, _ in filter_pages.ratios(document(auto=None))] == [["0.50", "0.50"]]


def test_the_block_tells_what_was_measured_and_what_was_not_reached():
    block = filter_pages.block({"a": document()}).replace("\n", " ")
    for said in ("2026-01-02", "Some CPU", "took 0.5", "hnswlib 1.2", "numpy 1.2", "lancedb-ivf-pq on set: its package",
                 "(0.40, 7 few)", "| 50,000 |", "`auto` chooses `disk-graph`", "filters-qps-set.svg"):
        assert said in block, said
    table = filter_pages.place_table(document(), "random").splitlines()
    assert len({line.count("|") for line in table}) == 1 and "no filter" in table[0]
    assert filter_pages.block({}) == "Nothing is stored yet."
    assert "(0.40, 7 few)" in filter_pages.plain_table(document(), 0.95)


def test_equal_results_give_an_equal_plot(tmp_path):
    pytest.importorskip("matplotlib")
    first, second = (plots.draw_filters(document(), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and plots.digest(document()).encode() in first
    assert list(plots.filter_curve(document(), "hnswlib-16", "far", 0.95)) == [(), ()]
    assert [list(x) for x in plots.filter_curve(document(), "stratann-disk-graph", "random", 0.95)] == [
        [50, 1], [12_500.0, 50_000.0]]


def test_stored_results_are_read_as_they_were_measured(tmp_path):
    results = document(skipped={"x": f"no program at {tmp_path}/bin/x"})
    results["contenders"]["scan-numpy"]["tasks"]["near-0.01"][0]["cpu_us"] = 4.123456789
    stored.write_filters(tmp_path / "filters-a.json", results, [tmp_path])
    (read,) = stored.read(tmp_path, stored.FILTERS_PREFIX).values()
    assert read["contenders"]["scan-numpy"]["tasks"]["near-0.01"][0]["cpu_us"] == 4.1235
    assert read["skipped"] == {"x": "no program at bin/x"} and stored.read(tmp_path) == {}
    assert stored.filters_name_of(results) == "filters-set-1t"
    assert (tmp_path / "filters-a.json").read_text().count('"way": "codes"}') == 2


# Peers and whole runs

def test_a_row_that_does_not_match_is_an_error():
    session = worker.Session.__new__(worker.Session)
    session.rows, session.truth = np.array([2, 5, 7]), np.zeros((2, 3))
    assert session.few_results(np.array([[2, 5, 7], [5, -1, -1]])) == 1
    with pytest.raises(ValueError, match="does not match"):
        session.few_results(np.array([[2, 5, 7], [5, 6, -1]]))


def test_a_run_asks_every_contender_every_filter(dataset, tmp_path, capsys):
    asked = ["none", "random-50", "far-0.1"]
    status, results = run_filters(dataset, tmp_path, "--kinds", "disk-graph", "--peers", "scan-numpy", "--filters",
                                  ",".join(asked))
    assert status == 0 and not results["skipped"] and results["auto"] == "disk-graph"
    own, one, batch = (results["contenders"][n]["tasks"] for n in ("stratann-disk-graph", "scan-numpy",
                                                                   "scan-numpy-batch"))
    assert list(own) == list(one) == asked
    for points in (*one.values(), *batch.values()):
        assert points[0]["recall"] == 1 and points[0]["few_results"] == 0
    # Lengths of the beam of the stand-in whose recalls are nearest to 0.9 and 0.95.
    assert sorted(p["recall"] for p in own["random-50"]) == [pytest.approx(1 - 1 / beam) for beam in (5, 10, 14, 20)]
    log = (tmp_path / "out" / "data" / "logs" / "stratann.log").read_text()
    assert log.count("only-random-50.npy") == 2 * 3 and log.count("-k 3 ") == 2 * 3 and log.count("--only") == 4 * 3
    printed = capsys.readouterr().out
    assert "half of the rows at random over no filter" in printed and "filters-data-1t.json" in printed


def test_too_few_results_are_counted_where_the_recall_is_not_reached(dataset, tmp_path):
    status, results = run_filters(dataset, tmp_path, "--kinds", "flat", "--peers", "none", "--filters", "far-1",
                                  "--stratann", str(weak_program(tmp_path)))
    (last,) = results["contenders"]["stratann-flat"]["tasks"]["far-1"]
    assert status == 0 and last["recall"] == 0.25 and last["few_results"] == 10


def weak_program(tmp_path):
    """The stand-in with a poor recall, whose file of results has none."""
    path = tmp_path / "weak"
    path.write_text(f"""#!{sys.executable}
import subprocess, sys, struct
command = [{sys.executable!r}, {str(FAKE)!r}, *sys.argv[1:]]
text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(text.replace('"recall": 0.99', '"recall": 0.25'))
if "-o" in sys.argv and sys.argv[1] == "search":
    with open(sys.argv[sys.argv.index("-o") + 1], "wb") as f:
        f.write(struct.pack("<II", 10, 10) + b"\\xff" * 400 + bytes(400))
""")
    path.chmod(0o755)
    return path


def test_missing_programs_and_bad_usage(dataset, tmp_path, capsys):
    with_peers = ("--peers", "scan-numpy", "--kinds", "disk-graph", "--filters", "random-1")
    status, results = run_filters(dataset, tmp_path, *with_peers, "--stratann", str(tmp_path / "absent"))
    assert status == 0 and "no program at" in results["skipped"]["stratann-disk-graph"]
    assert list(results["contenders"]) == ["scan-numpy", "scan-numpy-batch"] and results["auto"] is None
    for option, value in (("--filters", "somewhere-3"), ("--recalls", "high"), ("--recalls", "2"), ("--rounds", "0")):
        with pytest.raises(SystemExit, match="2"):
            filters.main(["--data", str(dataset), option, value])
    assert "there is no somewhere-3" in capsys.readouterr().err
    assert filters.main(["--data", str(dataset / "base.fbin"), "--out", str(tmp_path / "o")]) == 2
    assert filters.main(["--data", str(dataset), "--peers", "bogus", "--out", str(tmp_path / "o")]) == 2


def test_every_sweep_is_in_the_order_of_rising_effort():
    for spec in (*filter_roster.kinds(10), *filter_roster.peers(10)):
        for knob in {k for s in spec.settings for k in s}:
            values = [s[knob] for s in spec.settings if knob in s and s.get("refine") in (None, 4)]
            assert values == sorted(values) and len(values) >= 1, spec.name


@pytest.mark.parametrize("package,peer", [("faiss", "faiss"), ("faiss", "scan-faiss"), ("hnswlib", "hnswlib"),
                                          ("lancedb", "lancedb"), ("milvus_lite", "milvus-lite"),
                                          ("qdrant_edge", "qdrant-edge")])
def test_real_peers_return_the_rows_of_a_filter(dataset, tmp_path, package, peer):
    pytest.importorskip(package)
    status, results = run_filters(dataset, tmp_path, "--kinds", "none", "--peers", peer, "--filters",
                                  "none,random-50,near-1,far-0.1", "--recalls", "0.9")
    assert status == 0 and not results["skipped"]
    for name, entry in results["contenders"].items():
        assert set(entry["tasks"]) == {"none", "random-50", "near-1", "far-0.1"} and entry["version"], name
        for task in ("none", "random-50"):
            assert figures.qps_at(entry["tasks"][task], 0.9), (name, task)
        last = figures.best(entry["tasks"]["far-0.1"])
        assert last["recall"] == 1 or last["few_results"] > 0, name


@pytest.mark.skipif(not PROGRAMS, reason="the program is not built")
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_the_program_has_the_recall_that_it_is_asked_for(dataset, tmp_path, metric):
    status, results = run_filters(dataset, tmp_path, "--kinds", "disk-graph,grid-ivf,flat", "--peers", "none",
                                  "--filters", "none,random-50,far-1,near-0.01", "--metric", metric, "--stratann",
                                  str(PROGRAMS[0]))
    assert status == 0 and not results["skipped"] and results["auto"]
    for name, entry in results["contenders"].items():
        for task, points in entry["tasks"].items():
            assert figures.qps_at(points, 0.95), (name, task)
            assert (points[0]["way"] is None) == (task == "none"), (name, task)
