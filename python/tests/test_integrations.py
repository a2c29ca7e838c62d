"""The adapters against the signatures of the two benchmarks' base classes, and on a small set."""

import inspect
import sys
import types

import numpy as np
import pytest
from conftest import brute_force, recall, vectors

import stratann
from stratann.integrations import ann_benchmarks, big_ann_benchmarks

ANN_BENCHMARKS = {
    "__init__": ["self", "metric", "method_param"],
    "fit": ["self", "X"],
    "query": ["self", "q", "n"],
    "batch_query": ["self", "X", "n"],
    "get_batch_results": ["self"],
    "get_batch_latencies": ["self"],
    "get_additional": ["self"],
    "get_memory_usage": ["self"],
    "done": ["self"],
    "__str__": ["self"],
}
BIG_ANN_BENCHMARKS = {
    "track": ["self"],
    "fit": ["self", "dataset"],
    "load_index": ["self", "dataset"],
    "index_files_to_store": ["self", "dataset"],
    "query": ["self", "X", "k"],
    "range_query": ["self", "X", "radius"],
    "get_results": ["self"],
    "get_range_results": ["self"],
    "get_additional": ["self"],
    "get_memory_usage": ["self"],
    "set_query_arguments": ["self", "query_args"],
    "done": ["self"],
    "__str__": ["self"],
}


@pytest.mark.parametrize(
    ("adapter", "methods"),
    [(ann_benchmarks.Stratann, ANN_BENCHMARKS), (big_ann_benchmarks.Stratann, BIG_ANN_BENCHMARKS)],
    ids=["ann-benchmarks", "big-ann-benchmarks"],
)
def test_methods_have_the_base_class_signatures(adapter, methods):
    for name, parameters in methods.items():
        assert list(inspect.signature(vars(adapter)[name]).parameters) == parameters, name


@pytest.mark.parametrize(("metric", "ours"), [("euclidean", "l2"), ("angular", "cosine")])
def test_ann_benchmarks(metric, ours):
    base, queries = vectors(1, 1500, 16), vectors(2, 40, 16)
    truth, _ = brute_force(base, queries, 10, ours)
    algorithm = ann_benchmarks.Stratann(metric, {"degree": 24, "build_list": 48, "calibration_queries": 0})
    algorithm.fit(base.astype(np.float64))
    algorithm.set_query_arguments(80)
    assert "search_list=80" in str(algorithm)
    one_by_one = [algorithm.query(q, 10) for q in queries]
    algorithm.batch_query(queries, 10)
    together = algorithm.get_batch_results()
    assert recall(one_by_one, truth) > 0.93 and recall(together, truth) > 0.93
    assert algorithm.get_batch_latencies().shape == (40,)
    assert algorithm.get_additional()["full_comparisons"] > 10
    assert 1000 < algorithm.get_memory_usage() < 10_000_000
    algorithm.done()
    with pytest.raises(RuntimeError, match="fit"):
        algorithm.query(queries[0], 10)
    with pytest.raises(NotImplementedError, match="jaccard"):
        ann_benchmarks.Stratann("jaccard", {})


@pytest.fixture
def benchmark_data(tmp_path, monkeypatch):
    """The part of big-ann-benchmarks' datasets that an adapter sees. The file has no plain suffix."""
    base = vectors(3, 1200, 16, "u8")
    stratann.write_vectors(tmp_path / "base.u8bin", base)
    file = (tmp_path / "base.u8bin").rename(tmp_path / "base.1B.u8bin.crop_nb_1200")

    class Small:
        dtype = "uint8"

        def get_dataset_fn(self):
            return str(file)

        def short_name(self):
            return "small-1200"

    datasets = types.ModuleType("benchmark.datasets")
    datasets.DATASETS = {"small": Small}
    monkeypatch.setitem(sys.modules, "benchmark", types.ModuleType("benchmark"))
    monkeypatch.setitem(sys.modules, "benchmark.datasets", datasets)
    monkeypatch.chdir(tmp_path)
    return base


def test_big_ann_benchmarks(benchmark_data):
    queries = vectors(4, 30, 16, "u8")
    truth, _ = brute_force(benchmark_data, queries, 10, "l2")
    parameters = {"degree": 24, "build_list": 48, "calibration_queries": 0}
    algorithm = big_ann_benchmarks.Stratann("euclidean", parameters)
    assert not algorithm.load_index("small")
    algorithm.fit("small")
    folder, prefix, names = algorithm.index_files_to_store("small")
    assert folder.startswith("data/indices/T2/") and "manifest-1.json" in names and prefix == ""
    algorithm.done()
    again = big_ann_benchmarks.Stratann("euclidean", parameters)
    assert again.load_index("small")
    again.set_query_arguments({"search_list": 80, "threads": 2})
    again.query(queries.astype(np.float32), 10)
    assert again.get_results().shape == (30, 10)
    assert recall(again.get_results(), truth) > 0.93
    assert again.get_additional()["mean_ssd_ios"] > 0
    with pytest.raises(NotImplementedError, match="range search"):
        again.range_query(queries, 1.0)
