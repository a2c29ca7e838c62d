"""hybrid-ivf: clusters on disk that learn from their queries."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from conftest import brute_force, recall, vectors

import stratann

OPTIONS = {"kind": "hybrid-ivf", "clusters": 40, "calibration_queries": 100, "threads": 2}


@pytest.fixture(scope="module")
def path(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("hybrid") / "index"
    report = stratann.build(base, path, **OPTIONS, plan="uniform-ivf", search_budget="64MiB")
    assert report.facts["clusters"] == 40 and report.facts["lists"] > 40
    return path


def test_recall_and_nprobe(path, base, queries):
    truth, distances = brute_force(base, queries, 10, "l2")
    with stratann.open(path, learning="off") as index:
        assert index.kind == "hybrid-ivf" and index.info()["clusters"]["sizes"]["count"] == 40
        by_recall = index.search(queries, k=10, recall=0.9)
        assert recall(by_recall.ids, truth) > 0.85
        few, many = (index.search(queries, k=10, nprobe=n) for n in (2, 40))
        assert recall(few.ids, truth) < recall(many.ids, truth)
        assert recall(many.ids, truth) > 0.9
        early = index.search(queries, k=10, nprobe=40, early_stop=0.1, stop_slack=2.0)
        # Of a cluster that is divided not every list is scanned.
        assert np.isclose(many.distances[:, 0], distances[:, 0], rtol=1e-3, atol=1e-3).mean() > 0.95
    totals = many.stats["totals"]
    assert totals["clusters"] == 40 * len(queries) and totals["pinned_hits"] == 0
    assert 0 < totals["fruitful_clusters"] <= totals["clusters"] <= totals["lists"]
    assert totals["pruned"] > 0 and totals["result_clusters"] > 0
    assert many.stats["params"]["nprobe"] == 40 and many.stats["params"]["early_stop"] is None
    assert early.stats["params"]["early_stop"] == pytest.approx(0.1)
    assert early.stats["totals"]["clusters"] < totals["clusters"]


def test_codes_in_ram_are_not_read(path, queries):
    with stratann.open(path, learning="off", head_budget=0) as cold:
        read = cold.search(queries, nprobe=8)
    with stratann.open(path, learning="off", head_budget="16MiB") as warm:
        assert warm.memory()["codes in RAM"] > 0
        held = warm.search(queries, nprobe=8)
    np.testing.assert_array_equal(read.ids, held.ids)
    assert held.stats["totals"]["reads"] < read.stats["totals"]["reads"] / 2


def test_it_learns_unless_told_otherwise(path, queries):
    learnt = path / "learnt.bin"
    for learning in ("off", "frozen"):
        with stratann.open(path, learning=learning, epoch_queries=50) as index:
            for _ in range(3):
                assert index.search(queries, nprobe=6).stats["totals"]["pinned_hits"] == 0
        assert not learnt.exists()
    # Queries without a hot spot teach nothing.
    with stratann.open(path, epoch_queries=50) as index:
        assert index.search(queries, nprobe=6).stats["totals"]["pinned_hits"] == 0
    assert not learnt.exists()
    hot = np.tile(queries[:1], (150, 1))
    with stratann.open(path, epoch_queries=50) as index:
        hits = [index.search(hot, nprobe=6).stats["totals"]["pinned_hits"] for _ in range(3)]
    assert hits[-1] > 0 and learnt.exists()
    kept = learnt.read_bytes()
    with stratann.open(path, learning="frozen", epoch_queries=50) as index:
        assert index.search(hot, nprobe=6).stats["totals"]["pinned_hits"] > 0
    assert learnt.read_bytes() == kept
    learnt.write_bytes(kept[:-1])
    with pytest.warns(UserWarning, match=r"learnt\.bin is damaged"):
        stratann.open(path, learning="frozen").close()
    learnt.unlink()


def test_wrong_arguments_are_named(path, graph_path, base, queries, tmp_path):
    with stratann.open(path) as index, stratann.open(graph_path) as graph:
        for where, how, said in [
            (graph, {"nprobe": 5}, "nprobe is for .*, and this index is a disk-graph; give search_list instead"),
            (
                index,
                {"search_list": 50},
                "search_list is for disk-graph or flat, and this index is a hybrid-ivf; give nprobe instead",
            ),
            (index, {"nprobe": 5, "recall": 0.9}, "recall and nprobe are both given"),
            (index, {"search_list": 5, "nprobe": 5}, "search_list is for disk-graph or flat"),
            (index, {"early_stop": 0.5}, "early_stop goes with nprobe"),
            (index, {"stop_slack": 2.0}, "stop_slack goes with search_list or nprobe"),
            (index, {"nprobe": 0}, "nprobe is 0; use 1 to"),
            (index, {"nprobe": 5, "early_stop": 0.0}, "early_stop is a share above 0"),
        ]:
            with pytest.raises(stratann.InputError, match=said):
                where.search(queries, **how)
    with pytest.raises(stratann.InputError, match='learning is "sometimes"; use "on", "always", "frozen" or "off"'):
        stratann.open(path, learning="sometimes")
    for how, said in [
        ({"plan": "uniform-tree"}, 'plan is "uniform-tree"; use "auto"'),
        ({"kind": "disk-graph"}, 'clusters is for hybrid-ivf, and the kind is disk-graph'),
        ({"kind": "ivf"}, 'kind is "ivf"; use "auto", "disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote'),
    ]:
        with pytest.raises(stratann.InputError, match=said):
            stratann.build(base, tmp_path / "i", **(OPTIONS | how))
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(stratann.InputError, match="is no profile"):
        stratann.build(base, tmp_path / "i", **OPTIONS, profile=tmp_path / "profile.json")


def test_a_budget_too_small_names_one_that_does(base, tmp_path):
    with pytest.raises(stratann.BudgetError, match=r"search_budget=1\.0 MiB is too small.*give \d+MiB"):
        stratann.build(base, tmp_path / "i", **OPTIONS, search_budget="1MiB")


def test_equal_vectors_and_single_clusters(tmp_path):
    base = np.repeat(vectors(3, 1, 8), 300, axis=0)
    for name, clusters in (("one", 1), ("all", 300)):
        stratann.build(base, tmp_path / name, **(OPTIONS | {"clusters": clusters}))
        with stratann.open(tmp_path / name) as index:
            r = index.search(base[:5], k=10, nprobe=300)
            assert (r.distances < 1e-3).all()


def test_a_client_asks_for_clusters(path, queries):
    """Options that go over the wire; servers are tested with the program."""
    asked = []
    status = {"rows": 4000, "dim": 24, "dtype": "f32", "metric": "l2", "build_id": "x", "server": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, status)

        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(400, {"error": "enough seen"})

        def answer(self, code, body):
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = stratann.connect(f"127.0.0.1:{server.server_port}")
    with pytest.raises(stratann.InputError, match="enough seen"):
        client.search(queries[:1], nprobe=7, early_stop=0.25)
    server.shutdown()
    assert "nprobe=7" in asked[0] and "early_stop=0.25" in asked[0] and "recall" not in asked[0]
    assert os.path.isdir(path)
