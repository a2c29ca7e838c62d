"""Tests of the benchmark of databases: payloads, changes and exact answers, figures, and whole runs."""
import json
import sys
import tempfile
from pathlib import Path

import database_contenders
import database_figures as figures
import database_pages
import database_roster
import database_rows
import databases
import numpy as np
import plots
import pytest
import stored
import vectors
from engines import worker

ROOT = Path(__file__).resolve().parents[2]
# The package of the tests, or that of the benchmark.
EXTENSIONS = [path for path in (ROOT / "python" / "stratann" / "_stratann.abi3.so",
                                ROOT / "target" / "release" / "lib_stratann.so") if path.exists()]
SAMPLE = ROOT / "sample"


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(1)
    centres = 3 * rng.standard_normal((20, 16))
    for name, count in (("base", 3000), ("query", 20)):
        rows = centres[rng.integers(0, 20, count)] + rng.standard_normal((count, 16))
        vectors.write_vectors(folder / f"{name}.fbin", rows)
    return folder


# Points, changes, exact answers

def test_every_value_of_a_field_has_its_share_of_the_rows(dataset):
    rows, again, other = (database_rows.Rows(dataset / "base.fbin", 3000, seed) for seed in (1, 1, 2))
    for field, count in database_rows.FIELDS.items():
        assert set(np.bincount(rows.values[field])) == {3000 // count}
    assert rows.payloads([5, 9]) == again.payloads([5, 9]) != other.payloads([5, 9])
    payload = rows.payload(7)
    assert set(payload) == {*database_rows.FIELDS, "price", "title"}
    assert payload["of_10"] == f"v{rows.values['of_10'][7]}"
    base = vectors.open_vectors(dataset / "base.fbin")
    np.testing.assert_array_equal(rows.vectors(10, 13), base[10:13])
    np.testing.assert_array_equal(rows.some_vectors([4, 2]), base[[4, 2]])
    with pytest.raises(vectors.DataError, match="has 3000 vectors, 3001"):
        database_rows.Rows(dataset / "base.fbin", 3001, 1)


def test_overwritten_points_are_what_the_deleted_ones_were():
    churn = database_rows.Churn(1000, 30, 1)
    assert len(churn.deleted) == len(churn.overwritten) == 150 and not set(churn.deleted) & set(churn.overwritten)
    assert (churn.content[churn.deleted] == -1).all()
    np.testing.assert_array_equal(churn.content[churn.overwritten], churn.deleted)
    left = churn.content[churn.content >= 0]
    assert len(set(left)) == len(left) == 850


def test_exact_answers_are_those_of_a_naive_search(dataset, tmp_path):
    rows = database_rows.Rows(dataset / "base.fbin", 3000, 1)
    queries = np.asarray(vectors.open_vectors(dataset / "query.fbin"))
    churn = database_rows.Churn(3000, 30, 1)
    tasks = database_rows.make_tasks(rows, queries, "l2", 5, tmp_path / "tasks", churn.content)
    base = np.asarray(vectors.open_vectors(dataset / "base.fbin"), np.float64)
    alive = np.flatnonzero(churn.content >= 0)
    for name, task in tasks.items():
        document = json.loads(task.path.read_text())
        for i, query in enumerate(queries.astype(np.float64)):
            of = alive
            if name != database_rows.UNFILTERED:
                of = alive[rows.values[name][churn.content[alive]] == document["values"][i]]
            far = ((base[churn.content[of]] - query) ** 2).sum(1)
            assert document["truth"][i] == of[np.argsort(far, kind="stable")[:5]].tolist(), (name, i)
    assert tasks["none"].matches == 2700 - 150 and tasks["of_1000"].matches in (2, 3)
    values = json.loads(tasks["of_100"].path.read_text())["values"]
    assert values[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_answers_that_are_wrong_are_errors(dataset):
    session = worker.Session.__new__(worker.Session)
    session.rows = database_rows.Rows(dataset / "base.fbin", 3000, 1)
    session.content = np.arange(3000)
    session.content[5] = -1
    matching = np.flatnonzero(session.rows.values["of_10"] == 3)[:3].tolist()
    session.truth, session.asked = [matching, [1, 2]], [worker.Only("of_10", "v3"), None]
    assert session.checked([matching, [1]]) == (4, 1)
    for wrong in ([5, 1], [1, 1]):
        with pytest.raises(ValueError, match="deleted point, or a point twice"):
            session.checked([matching, wrong])
    stranger = next(i for i in range(10, 3000) if session.rows.values["of_10"][i] != 3)
    with pytest.raises(ValueError, match="does not match"):
        session.checked([[stranger], [1]])


# Figures and pages

def point(recall, us, ef=16, **fields):
    return {"setting": {"ef": ef}, "recall": recall, "qps": 5e5 / us, "cpu_us": us, "few_results": 0, "p50_us": us,
            "p99_us": 2 * us} | fields


def entry(us, **fields):
    """A database that takes so long for a query."""
    curve = [point(0.8, us, 10), point(0.96, 2 * us, 20), point(0.995, 4 * us, 40)]
    size = {"rss_bytes": 9e7, "baseline_rss_bytes": 4e7, "disk_bytes": 1e8, "log_bytes": 2e7}
    change = {"rows": 100, "seconds": 0.5, "cpu_seconds": 0.1, "flush_seconds": None,
              "batch_us": {"p50": 1e3, "p99": 2e3}}
    later = {"curve": [point(0.7, us, 10), point(0.94, 2 * us, 20)]}
    found = {"curve": curve, "one": curve[1:], "batch": [p | {"cpu_us": p["cpu_us"] / 2} for p in curve[1:]]}
    return {"version": "1.2", "promise": "all survives", "options": {"m": 16}, "modes": ["one", "batch"],
            "empty_disk_bytes": 1000, "load": change | {"rows": 1000, "seconds": 2.0}, "opened": size, "loaded": size,
            "ready": {"seconds": 3.0, "cpu_seconds": 2.9}, "open": {"seconds": 0.02, "cpu_seconds": 0.01},
            "searching_rss_bytes": 1.4e8, "tasks": {"none": found, "of_10": found},
            "later": {"none": later, "of_10": later}, "churn": {"deleted": change, "overwritten": change},
            "changed": size, "compact": {"seconds": 1.0, "cpu_seconds": 0.9}, "compacted": size} | fields


def document(**fields):
    tasks = {"none": {"percent": 100, "matches": 1000, "matches_later": 850},
             "of_10": {"percent": 10.0, "matches": 100, "matches_later": 85}}
    return {"date": "2026-01-02", "stratann": "0.1.0", "isa_asked": None, "threads": 1, "rounds": 3, "opens": 3,
            "k": 10, "recalls": [0.9, 0.95, 0.99], "seed": 1, "batch_rows": 100, "churn_percent": 30, "tasks": tasks,
            "machine": {"cpu": "Some CPU", "isa": ["avx2"], "cores": 4, "other_cores": 0.5, "seconds": 9.0},
            "data": {"name": "set", "n": 1000, "dim": 8, "dtype": "float32", "metric": "l2", "queries": 20},
            "contenders": {"stratann": entry(50.0), "qdrant-edge": entry(100.0, modes=["one"])},
            "skipped": {"milvus-lite": "its package is missing"}} | fields


def test_rates_and_ratios_are_those_of_the_results():
    mine = entry(50.0)
    assert figures.written_per_second(mine) == 500 and figures.ready_per_second(mine) == 200
    assert figures.ready_per_second(mine, "cpu_seconds") == pytest.approx(1000 / 3.0)
    assert figures.used_bytes(mine) == 1e8 and figures.recall_later(mine, "none", 0.95) == (0.96, 0.94)
    assert figures.recall_later(mine, "none", 0.99) is None and figures.recall_later(mine, "of_2", 0.9) is None
    assert figures.speed(mine, "none", 0.99) < 1e6 / 100 and figures.speed(mine, "none", 0.999) is None
    found = {what: over for what, _, over in figures.ratios(document(), 0.95)}
    assert found["queries, no filter"] == {"qdrant-edge": 2.0} and found["disk"] == {"qdrant-edge": 1.0}
    assert figures.ratios(document(contenders={"qdrant-edge": entry(1.0)}), 0.95) == []


def test_the_block_tells_what_was_measured_and_what_was_not():
    block = database_pages.block({"a": document()})
    for said in ("2026-01-02", "Some CPU", "took 0.5", "qdrant 1.2", "milvus-lite on set: its package", "all survives",
                 "30 % of the points changed", "databases-qps-set.svg", "0.960 → 0.940", "| 10 %: 100 |"):
        assert said in block.replace("\n", " "), said
    for table in database_pages.tables(document()):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert database_pages.block({}) == "Nothing is stored yet."
    assert "its package is missing" in database_pages.plain(document())
    poor = entry(1.0)
    poor["tasks"]["of_10"] = {"curve": [point(0.4, 1.0, few_results=7)], "one": [point(0.4, 1.0)], "batch": []}
    assert database_pages.speed_cell(document(), poor, "of_10", "one") == "(0.40, 7 few)"


def test_equal_results_give_an_equal_plot(tmp_path):
    pytest.importorskip("matplotlib")
    first, second = (plots.draw_databases(document(), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and plots.digest(document()).encode() in first


def test_stored_results_are_read_as_they_were_measured(tmp_path):
    results = document(skipped={"x": f"no file at {tmp_path}/bin/x"})
    results["contenders"]["stratann"]["tasks"]["none"]["curve"][0]["cpu_us"] = 4.123456789
    stored.write_databases(tmp_path / "databases-a.json", results, [tmp_path])
    (read,) = stored.read(tmp_path, stored.DATABASES_PREFIX).values()
    assert read["contenders"]["stratann"]["tasks"]["none"]["curve"][0]["cpu_us"] == 4.1235
    assert read["skipped"] == {"x": "no file at bin/x"} and stored.read(tmp_path) == {}
    assert stored.databases_name_of(results) == "databases-set"


def test_every_sweep_is_in_the_order_of_rising_effort():
    specs = database_roster.engines(10, "uint8")
    assert [s.name for s in specs][:2] == ["stratann", "stratann-u8"]
    assert len(database_roster.engines(10, "float32")) == len(specs) - 1
    for spec in specs:
        knob = next(iter(spec.settings[0]))
        values = [setting[knob] for setting in spec.settings]
        assert values == sorted(values) and len(values) > 3, spec.name


# Whole runs

def run_databases(tmp_path, engine, *words):
    extension = EXTENSIONS[0] if EXTENSIONS else tmp_path / "absent"
    status = databases.main([*words, "--engines", engine, "--rounds", "1", "--opens", "1", "--min-seconds", "0",
                             "--extension", str(extension), "--out", str(tmp_path / "out")])
    results = sorted((tmp_path / "out").glob("databases-*.json"))
    return status, json.loads(results[0].read_text()) if results else None


def check_run(results, name):
    entry = results["contenders"][name]
    assert not results["skipped"] and entry["version"] and entry["promise"]
    for task in results["tasks"]:
        assert figures.best(entry, task)["recall"] >= 0.9, task
        assert task not in database_rows.LATER or figures.best({"tasks": entry["later"]}, task)["recall"] >= 0.9, task
    assert figures.speed(entry, "none", 0.9) and figures.speed(entry, "of_10", 0.9, "batch")
    assert entry["load"]["rows"] == results["data"]["n"] and entry["churn"]["deleted"]["rows"] > 0
    assert entry["open"]["seconds"] > 0 and entry["compacted"]["disk_bytes"] > 0


@pytest.mark.skipif(not EXTENSIONS, reason="the Python extension is not built")
def test_collections_are_measured_on_the_sample(tmp_path, capsys):
    status, results = run_databases(tmp_path, "stratann", "--data", str(SAMPLE), "--metric", "cosine", "--rows", "1000",
                                    "--query-count", "10", "--filters", "none,of_10")
    assert status == 0 and list(results["contenders"]) == ["stratann", "stratann-f16"]
    for name in results["contenders"]:
        check_run(results, name)
    assert not (tmp_path / "out" / "databases").exists()
    printed = capsys.readouterr().out
    assert "points/s" in printed and "databases-sample.json" in printed


@pytest.mark.parametrize("engine,module", [("lancedb-ivf-hnsw", "lancedb"), ("milvus-lite", "milvus_lite"),
                                           ("qdrant-edge", "qdrant_edge"), ("postgres-pgvector", "psycopg")])
def test_databases_that_are_installed_are_measured(dataset, tmp_path, engine, module):
    venv = database_contenders.BENCH / ".venv" / "lib"
    if not any(venv.glob(f"*/site-packages/{module}")):
        pytest.skip(f"{module} is not installed")
    # Where the tests are root, PostgreSQL runs as another user, who cannot reach the folders of tests.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        status, results = run_databases(Path(folder), engine, "--data", str(dataset), "--rows", "1000", "--filters",
                                        "none,of_10", "--query-count", "10")
    assert status == 0
    check_run(results, engine)


def test_what_is_missing_is_named_and_bad_usage_is_refused(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(database_contenders.EngineProcess, "interpreter", lambda _: sys.executable)
    status = databases.main(["--data", str(dataset), "--engines", "stratann", "--out", str(tmp_path / "o"),
                             "--extension", str(tmp_path / "absent")])
    assert status == 1 and "extension is not compiled" in capsys.readouterr().err
    for option, value in (("--filters", "of_3"), ("--recalls", "high"), ("--recalls", "2"), ("--rounds", "0"),
                          ("--churn-percent", "0")):
        with pytest.raises(SystemExit, match="2"):
            databases.main(["--data", str(dataset), option, value])
    for words in (["--engines", "bogus"], ["--rows", "5"], ["--rows", "9999"]):
        assert databases.main(["--data", str(dataset), "--out", str(tmp_path / "o"), *words]) == 2
