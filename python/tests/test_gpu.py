"""gpu-ivf: codes on a GPU or in memory, vectors on disk."""

import json

import numpy as np
import pytest
from conftest import brute_force, recall

import stratann

OPTIONS = {"kind": "gpu-ivf", "calibration_queries": 200, "threads": 2}


@pytest.fixture(scope="module")
def path(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "index"
    report = stratann.build(base, path, **OPTIONS)
    assert report.rows == len(base)
    return path


def opened(path, **how):
    return stratann.open(path, cache_budget=0, scorer="cpu", **how)


def test_recall_nprobe_and_counters(path, base, queries):
    truth, distances = brute_force(base, queries, 10, "l2")
    with opened(path) as index:
        assert index.kind == "gpu-ivf" and index.memory()["total"] > 0
        by_recall = index.search(queries, k=10, recall=0.9)
        assert recall(by_recall.ids, truth) > 0.85
        every = index.search(queries, k=10, nprobe=300, candidates=len(base), rule="static")
        assert np.array_equal(np.sort(every.ids), np.sort(truth))
        assert np.allclose(every.distances, distances, rtol=1e-4, atol=1e-4)
        few = index.search(queries, k=10, nprobe=300, candidates=20, rule="static")
        trace = json.loads(json.dumps(index.explain(queries[0], nprobe=30)))
        assert trace["batches"] and trace["counters"]["code_comparisons"] > 0
    assert few.stats["totals"]["full_comparisons"] < every.stats["totals"]["full_comparisons"]
    assert every.stats["totals"]["duplicates"] > 0


def test_techniques_change_reads(path, queries):
    with opened(path) as index:

        def reads(**techniques):
            found = index.search(queries, k=10, nprobe=60, candidates=200, **techniques)
            return found, found.stats["totals"]

        static, whole = reads(rule="static")
        _, stopped = reads(rule="changes", batch_size=10, epsilon_stop=0.0, beta=1)
        assert stopped["reads"] < whole["reads"] and stopped["mini_batches"] > 0
        with pytest.raises(stratann.InputError, match="belong to rule changes"):
            reads(beta=2)
        assert static.stats["params"]["rule"] == "static" and static.stats["params"]["candidates"] == 200


def test_baselines_are_left_to_the_laboratory(path, base, queries, tmp_path):
    with opened(path) as index, pytest.raises(stratann.InputError, match="stratann-lab search"):
        index.search(queries, k=10, nprobe=60, baseline="spann")
    for wanted in ("disk", "ram"):
        with pytest.raises(stratann.InputError, match="stratann-lab search"):
            stratann.open(path, baselines=wanted)
    with pytest.raises(stratann.InputError, match="stratann-lab build"):
        stratann.build(base, tmp_path / "index", **OPTIONS, baselines=True)
    assert not (tmp_path / "index").exists()


def test_scorers(path, queries):
    with stratann.open(path) as auto, opened(path) as cpu:
        here, there = (index.search(queries, k=10, nprobe=60) for index in (auto, cpu))
    assert np.array_equal(here.ids, there.ids) and np.array_equal(here.distances, there.distances)
    with pytest.raises(stratann.InputError, match="for a GPU"):
        stratann.open(path, scorer="cpu", gpu_budget="1GiB")
    with pytest.raises(stratann.InputError, match='"auto", "cuda" or "cpu"'):
        stratann.open(path, scorer="tpu")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"baseline": 3}, "baseline is 3; use"),
        ({"rule": "other"}, "use \"static\", "),
        ({"candidates": 0}, "candidates"),
        ({"batch_size": 0}, "batch"),
        ({"epsilon_stop": 2.0}, "epsilon"),
        ({"margin": -2.0}, "margin"),
    ],
)
def test_wrong_techniques(path, queries, wrong, told):
    with opened(path) as index, pytest.raises(stratann.InputError, match=told):
        index.search(queries, k=10, nprobe=20, **wrong)


def test_techniques_of_another_kind_are_refused(base, queries, tmp_path):
    stratann.build(base, tmp_path / "index", kind="grid-ivf", lists=20, calibration_queries=0)
    refused = pytest.raises(stratann.InputError, match="rule is for gpu-ivf, and this index is a grid-ivf")
    with stratann.open(tmp_path / "index") as index, refused:
        index.search(queries, k=10, nprobe=5, rule="static")
