"""grid-ivf: inverted lists in memory."""

import json

import numpy as np
import pytest
from conftest import brute_force, recall

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
        ({"kind": "disk-graph"}, 'lists is an option of kind="grid-ivf"'),
        ({"lists": 0}, "--lists is 0; use 1 or more"),
        ({"centroids": "none.fbin"}, "none.fbin"),
        ({"clusters": 3}, 'clusters is an option of kind="hybrid-ivf", the kind is "grid-ivf"'),
    ],
)
def test_bad_options_are_refused(base, tmp_path, options, message):
    given = {**OPTIONS, **options}
    if "centroids" in options:
        given["lists"] = None
    with pytest.raises(stratann.Error, match=message):
        stratann.build(base, tmp_path / "index", **given)
    assert not (tmp_path / "index").exists()
