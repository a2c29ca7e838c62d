"""grid-ivf: inverted lists in memory."""

import json

import numpy as np
import pytest
from conftest import brute_force, recall
from test_client import serving

import stratann

OPTIONS = {"kind": "grid-ivf", "lists": 30, "calibration_queries": 100, "threads": 2}


@pytest.fixture(scope="module")
def path(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "index"
    report = stratann.build(base, path, **OPTIONS)
    assert report.facts["lists"] == 30
    return path


def test_recall_nprobe_and_counters(path, base, queries):
    truth, distances = brute_force(base, queries, 10, "l2")
    with stratann.open(path) as index:
        assert index.kind == "grid-ivf" and index.info()["grid"]["sizes"]["count"] == 30
        by_recall = index.search(queries, k=10, recall=0.9)
        assert recall(by_recall.ids, truth) > 0.85
        few, every = (index.search(queries, k=10, nprobe=n) for n in (2, 30))
        assert recall(few.ids, truth) < recall(every.ids, truth) == 1.0
        assert np.allclose(every.distances, distances, rtol=1e-4, atol=1e-4)
        trace = json.loads(json.dumps(index.explain(queries[0], nprobe=4)))
        assert len(trace["lists"]) == 4 and trace["counters"]["components"] > 0
    totals = every.stats["totals"]
    assert totals["lists"] == 30 * len(queries)
    assert totals["components_unpruned"] == base.size * len(queries)
    assert 0 < totals["components"] < totals["components_unpruned"]
    assert totals["pruned"] + totals["full_comparisons"] == len(base) * len(queries)


def test_switches_change_the_work_and_no_answer(path, base, queries):
    with stratann.open(path) as index:
        usual = index.search(queries, k=10, nprobe=12)

        def work(**switches):
            found = index.search(queries, k=10, nprobe=12, **switches)
            assert np.array_equal(found.ids, usual.ids) and np.array_equal(found.distances, usual.distances)
            return found.stats["totals"]

        whole = work(prune_dimension=False, prune_vector=False)
        assert whole["components"] == whole["components_unpruned"] and whole["pruned"] == 0
        pruned = usual.stats["totals"]
        assert pruned["components"] < work(prune_vector=False)["components"] < whole["components"]
        assert work(prune_dimension=False)["pruned"] == 0
        assert work(prewarm=False)["components"] != pruned["components"]
        # They are for lists that servers divide.
        assert work(prune_dimension=True, prewarm=True) == pruned
        plain = index.explain(queries[0], nprobe=4, prewarm=False)
        assert plain["prewarmed_components"] == 0 < index.explain(queries[0], nprobe=4)["prewarmed_components"]


def test_switches_reach_a_server(path, queries):
    every = [
        {},
        {"prune_dimension": False, "prune_vector": False},
        {"prune_vector": False},
        {"prewarm": False},
        {"fan_out": 3, "static_order": True},
        {"balance": False, "pipeline": False},
    ]
    with serving(path, "--threads", "1") as address, stratann.open(path) as index:
        client = stratann.connect(address)
        for switches in every:
            # What is for servers has no effect on one.
            local = {name: value for name, value in switches.items() if name.startswith("pr")}
            here = index.search(queries, k=10, nprobe=12, **local)
            there = client.search(queries, k=10, nprobe=12, **switches)
            assert np.array_equal(here.ids, there.ids)
            assert here.stats["totals"]["components"] == there.stats["totals"]["components"], switches
        with pytest.raises(stratann.InputError, match="fan_out is 65"):
            client.search(queries, nprobe=12, fan_out=65)
        client.close()


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ({"fan_out": 0}, "fan_out is for a search on servers"),
        ({"fan_out": True}, "fan_out is True; use 1 to 64"),
        ({"prewarm": 1}, "prewarm is 1; give True or False"),
        ({"static_order": "no"}, "static_order is 'no'"),
        ({"pipeline": False}, "pipeline is for a search on servers"),
    ],
)
def test_bad_switches_are_refused(path, queries, switch, message):
    with stratann.open(path) as index, pytest.raises(stratann.InputError, match=message):
        index.search(queries, nprobe=4, **switch)


def test_given_centroids(base, queries, tmp_path):
    centroids = np.ascontiguousarray(base[:7], dtype=np.float32)
    header = np.array(centroids.shape, dtype=np.uint32).tobytes()
    (tmp_path / "centroids.fbin").write_bytes(header + centroids.tobytes())
    options = {**OPTIONS, "lists": None, "centroids": tmp_path / "centroids.fbin", "calibration_queries": 0}
    stratann.build(base, tmp_path / "index", **options)
    with stratann.open(tmp_path / "index") as index:
        assert index.info()["grid"]["sizes"]["count"] == 7
        truth, _ = brute_force(base, queries, 10, "l2")
        assert recall(index.search(queries, k=10, nprobe=7).ids, truth) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "disk-graph"}, 'lists is for grid-ivf, and the kind is disk-graph'),
        ({"lists": 0}, "lists is 0; use 1 or more"),
        ({"centroids": "none.fbin"}, "none.fbin"),
        ({"clusters": 3}, 'clusters is for hybrid-ivf, and the kind is grid-ivf; give lists instead'),
    ],
)
def test_bad_options_are_refused(base, tmp_path, options, message):
    given = {**OPTIONS, **options}
    if "centroids" in options:
        given["lists"] = None
    with pytest.raises(stratann.Error, match=message):
        stratann.build(base, tmp_path / "index", **given)
    assert not (tmp_path / "index").exists()
