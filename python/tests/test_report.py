"""`Index.tune`, `verify`, `explain` and `recall` report what the program reports."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from conftest import brute_force, vectors

import stratann


@pytest.fixture
def copied(graph_path, tmp_path):
    shutil.copytree(graph_path, tmp_path / "index")
    with stratann.open(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def program():
    path = os.environ.get("STRATANN_PROGRAM")
    if path is None:
        pytest.skip("STRATANN_PROGRAM does not name the program: make test-python")
    return path


def document(program, *args):
    return json.loads(subprocess.run([program, *args, "--json"], capture_output=True, check=True, text=True).stdout)


def test_tune_measures_and_opens_the_new_version(copied, base, queries):
    truth = stratann.groundtruth(base, queries, k=10)
    version = copied.info()["version"]
    report = copied.tune(queries, truth, recall=[0.9], k=[10])
    assert report["version"] == version + 1 == copied.info()["version"]
    assert (report["source"], report["fitted_on"], report["checked_on"]) == ("queries", 100, 100)
    (check,) = report["checks"]
    assert (check["k"], check["asked"]) == (10, 0.9) and check["measured"] > 0.8
    assert copied.search(queries, k=10, recall=0.9).ids.shape == (200, 10)
    assert copied.tune(sample=60, k=[5])["source"] == "mixture"
    with pytest.raises(stratann.InputError, match="go together"):
        copied.tune(queries)


def test_wrong_ground_truth_is_an_error(copied, base, queries):
    version = copied.info()["version"]
    right = stratann.groundtruth(base, queries, k=10)
    result = copied.search(queries, k=10, search_list=60)
    other = stratann.groundtruth(vectors(31, 4000, 24), queries, k=10)
    cosine = stratann.groundtruth(base, queries, k=10, metric="cosine")
    shifted = stratann.Neighbors((right.ids + 2000) % 4000, right.distances)
    for wrong in (other, cosine, shifted, other.ids, shifted.ids):
        with pytest.raises(stratann.InputError, match="ground truth"):
            copied.tune(queries, wrong, k=[10])
        with pytest.raises(stratann.InputError, match="ground truth"):
            copied.recall(queries, result, wrong)
    assert copied.info()["version"] == version
    expected = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(result.ids, right.ids)])
    for truth in (right, right.ids, brute_force(base, queries, 10, "l2")[0]):
        assert copied.recall(queries, result, truth) == pytest.approx(expected)
    with pytest.raises(stratann.InputError, match="200 queries"):
        copied.recall(queries[:5], copied.search(queries[:5], k=10), right)


def test_verify_is_that_of_the_program(copied, program):
    assert copied.verify() == document(program, "verify", copied._path)
    assert copied.verify()["violations_found"] == 0
    blocks = next(os.path.join(copied._path, f) for f in os.listdir(copied._path) if "blocks" in f)
    with open(blocks, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    assert copied.verify()["violations_found"] > 0


def test_explain_is_that_of_the_program(copied, program, queries, tmp_path):
    path = tmp_path / "query.fbin"
    stratann.write_vectors(path, queries)
    asked = ("--query", "3", "--search-list", "40", "--rerank", "12")
    told = document(program, "explain", copied._path, str(path), *asked)
    found = copied.explain(queries[3], search_list=40, rerank=12)
    assert found.pop("query") == 0 and told.pop("query") == 3
    counters = found.pop("counters")
    assert all(told["counters"][name] == value for name, value in counters.items())
    del told["counters"]
    assert found == told and len(found["ids"]) == 10
    with pytest.raises(stratann.InputError, match="one query"):
        copied.explain(queries[:2])


def test_lists_and_float64_are_numbers(tmp_path, index, queries):
    right = index.search(queries[:3], k=5)
    for given in (queries[:3].tolist(), queries[:3].astype(np.float64), queries[:3].astype(">f4")):
        np.testing.assert_array_equal(index.search(given, k=5).ids, right.ids)
    assert index.search(queries[0].tolist(), k=5).ids.shape == (1, 5)
    base = vectors(3, 60, 8)
    for name, given in (("a", base), ("b", base.astype(np.float64)), ("c", base.tolist())):
        stratann.build(given, tmp_path / name, kind="flat")
    a, b, c = (stratann.open(tmp_path / name) for name in "abc")
    assert a.info()["files"] == b.info()["files"] == c.info()["files"]
    stratann.build(vectors(4, 60, 8, "u8"), tmp_path / "u8", kind="flat")
    with stratann.open(tmp_path / "u8") as bytes_index:
        row = vectors(4, 60, 8, "u8")[7].tolist()
        assert bytes_index.search(row, k=1).ids[0, 0] == 7
        assert bytes_index.search([float(x) for x in row], k=1).ids[0, 0] == 7
        for wrong in ([0.5, *row[1:]], [256, *row[1:]], [-1, *row[1:]]):
            with pytest.raises(stratann.InputError, match=r"queries\[0\] is .*uint8 cannot hold"):
                bytes_index.search(wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1.0, 2.0], [3.0]], "rows of equal lengths"),
        ([["a", "b"]], "pass numbers"),
        (np.array([[1e39, 0.0]]), r"base\[0, 0\] is .*float32 cannot hold"),
        ([[2**53 + 1, 0]], "float32 cannot hold"),
        ([[float("nan"), 0.0]], "row 0.*NaN"),
        (np.array([[True, False]]), "pass numbers"),
        ([[1j, 0]], "pass numbers"),
    ],
)
def test_what_a_conversion_would_lose_is_refused(tmp_path, given, message):
    with pytest.raises(stratann.InputError, match=message):
        stratann.build(given, tmp_path / "i", kind="flat")
    assert not (tmp_path / "i").exists()
