"""Searches that may return some rows alone."""

import numpy as np
import pytest

import stratann

ROWS = 600


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(3)
    return random.normal(size=(ROWS, 12)).astype(np.float32), random.normal(size=(9, 12)).astype(np.float32)


@pytest.fixture(scope="module", params=["disk-graph", "flat", "hybrid-ivf", "grid-ivf", "gpu-ivf"])
def index(request, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / request.param
    stratann.build(data[0], path, request.param)
    with stratann.open(path) as opened:
        yield opened


def nearest(data, allowed, k=5):
    base, queries = data
    distances = ((queries[:, None, :] - base[allowed][None]) ** 2).sum(axis=2)
    return allowed[np.argsort(distances, axis=1, kind="stable")[:, :k]]


def test_ids_a_mask_and_the_others_are_the_same_filter(index, data):
    allowed = np.arange(1, ROWS, 4)
    others = np.setdiff1d(np.arange(ROWS), allowed)
    mask = np.zeros(ROWS, bool)
    mask[allowed] = True
    expected = nearest(data, allowed)
    forms = [{"only": allowed[::-1]}, {"only": list(map(int, allowed))}, {"only": mask}, {"without": others}]
    forms += [{"without": ~mask}, {"only": np.concatenate([allowed, allowed, [10**12]])}]
    for form in forms:
        found = index.search(data[1], 5, 1.0, **form)
        assert np.array_equal(found.ids, expected), form
        assert (found.counts == 5).all()


def test_each_query_has_a_filter_of_its_own(index, data):
    each = [np.arange(query, ROWS, 9) for query in range(9)]
    found = index.search(data[1], 5, 1.0, only=each)
    for query, allowed in enumerate(each):
        assert np.array_equal(found.ids[query], nearest(data, allowed)[query])
    masks = np.zeros((9, ROWS), bool)
    for query, allowed in enumerate(each):
        masks[query, allowed] = True
    assert np.array_equal(index.search(data[1], 5, 1.0, only=masks).ids, found.ids)


def test_few_rows_and_none_give_fewer_results_without_a_warning(index, data, recwarn):
    found = index.search(data[1], 5, only=[3, 4])
    assert (found.counts == 2).all() and set(found.ids[:, :2].ravel()) == {3, 4}
    assert (index.search(data[1], 5, only=[]).counts == 0).all()
    assert (index.search(data[1], 5, only=[10**9]).counts == 0).all()
    assert (index.search(data[1], 5, without=np.arange(ROWS)).counts == 0).all()
    # What other tests left open may be collected meanwhile.
    assert not [own for own in recwarn.list if own.category is not ResourceWarning]


def test_searches_with_and_without_a_filter_do_not_mix(index, data):
    before = index.search(data[1], 5, 1.0).ids
    index.search(data[1], 5, 1.0, only=[1, 2, 3, 4, 5])
    assert np.array_equal(index.search(data[1], 5, 1.0).ids, before)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"only": [1], "without": [2]}, "both given"),
        ({"only": [-1]}, "negative id -1"),
        ({"only": [1.5]}, "float64"),
        ({"only": np.ones(ROWS - 1, bool)}, f"mask of {ROWS - 1} rows"),
        ({"only": [[1], [2]]}, "2 filters for 9 queries"),
        ({"only": np.zeros((2, 2, 2), int)}, "shape"),
        ({"without": 7}, "shape"),
        ({"only": ["a"]}, "give integers"),
    ],
)
def test_bad_filters_are_refused_and_said(index, data, filters, words):
    with pytest.raises(stratann.InputError, match=words):
        index.search(data[1], 5, **filters)


def test_a_mask_over_an_index_with_ids_of_its_own_is_refused(data, tmp_path):
    ids = np.arange(ROWS) * 3 + 5
    stratann.build(data[0], tmp_path / "own", "flat", ids=ids)
    with stratann.open(tmp_path / "own") as opened:
        assert set(opened.search(data[1], 2, only=[5, 8]).ids.ravel()) == {5, 8}
        with pytest.raises(stratann.InputError, match="mask"):
            opened.search(data[1], 2, only=np.ones(ROWS, bool))


def test_a_remote_hnsw_takes_filters(data, tmp_path):
    stratann.build(data[0], tmp_path / "remote", "remote-hnsw")
    with stratann.open(tmp_path / "remote") as opened:
        assert set(opened.search(data[1], 2, only=[1, 8]).ids.ravel()) == {1, 8}


def test_ids_beyond_2_to_the_53_are_exact(data, tmp_path):
    first = 2**53 + 1
    stratann.build(data[0], tmp_path / "own", "flat", ids=np.arange(ROWS, dtype=np.uint64) + np.uint64(first))
    named = [first + 6, first + 7]
    with stratann.open(tmp_path / "own") as opened:
        for ids in (named, np.array(named, np.uint64), np.array(named, np.int64), [*named, 2**64 - 1, first - 1]):
            found = opened.search(data[1], 3, only=ids)
            assert (found.counts == 2).all()
            assert set(found.ids[:, :2].ravel().tolist()) == set(named)
        with pytest.raises(stratann.InputError, match="give integers"):
            opened.search(data[1], 3, only=[2**64])


def test_ground_truth_is_that_of_the_rows_that_match(index, data):
    base, queries = data
    allowed = np.arange(1, ROWS, 4)
    mask = np.zeros(ROWS, bool)
    mask[allowed] = True
    for form in ({"only": allowed[::-1]}, {"only": mask}, {"without": ~mask}, {"only": [*allowed, allowed[0], 10**12]}):
        truth = stratann.groundtruth(base, queries, 5, **form)
        assert np.array_equal(truth.ids, nearest(data, allowed)), form
    found = index.search(queries, 5, 1.0, only=allowed)
    assert index.recall(queries, found, truth) == 1.0


def test_ground_truth_of_each_query_is_that_of_its_own_rows(index, data, tmp_path):
    base, queries = data
    each = [np.arange(query, ROWS, 9) for query in range(9)]
    each[0], each[1] = np.empty(0, int), np.array([7])
    np.save(tmp_path / "base.npy", base)
    np.save(tmp_path / "queries.npy", queries)
    truth = stratann.groundtruth(base, queries, 5, only=each)
    files = stratann.groundtruth(tmp_path / "base.npy", tmp_path / "queries.npy", 5, only=each)
    assert np.array_equal(files.ids, truth.ids)
    for query, allowed in enumerate(each):
        near = nearest(data, allowed)[query] if len(allowed) else allowed
        assert np.array_equal(truth.ids[query, : len(near)], near)
        assert (truth.ids[query, len(near) :] == 2**32 - 1).all()
        assert np.isinf(truth.distances[query, len(near) :]).all()
    found = index.search(queries, 5, 1.0, only=each)
    assert index.recall(queries, found, truth) == 1.0
    # Another filter is noticed: a query without neighbours has results.
    with pytest.raises(stratann.InputError, match="query 0 has 0 neighbours"):
        index.recall(queries, index.search(queries, 5, 1.0), truth)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"only": [1], "without": [2]}, "both given"),
        ({"only": np.ones(ROWS - 1, bool)}, f"mask of {ROWS - 1} rows, the base has {ROWS}"),
        ({"only": [[1], [2]]}, "2 filters for 9 queries"),
        ({"only": [-1]}, "negative id -1"),
        ({"only": []}, "no row can be a neighbour"),
        ({"without": np.arange(ROWS)}, "no row can be a neighbour"),
    ],
)
def test_bad_filters_of_ground_truth_are_refused_and_said(data, filters, words):
    with pytest.raises(stratann.InputError, match=words):
        stratann.groundtruth(*data, 5, **filters)


def test_explain_names_the_plan(index, data):
    allowed = np.arange(1, ROWS, 4)
    for form in ({"only": allowed}, {"only": [allowed]}, {"without": np.setdiff1d(np.arange(ROWS), allowed)}):
        trace = index.explain(data[1][2], 5, 1.0, **form)
        found = trace["ids"] if "ids" in trace else [result["id"] for result in trace["results"]]
        assert found == nearest(data, allowed)[2].tolist()
        plan = trace["filter"]
        assert (plan["matches"], plan["way"], plan["gave_way"]) == (len(allowed), "exact", False)
        assert ("prices" in plan) == (index.kind != "flat")
    assert "filter" not in index.explain(data[1][2], 5, 1.0)
    with pytest.raises(stratann.InputError, match="both given"):
        index.explain(data[1][2], 5, only=[1], without=[2])
    with pytest.raises(stratann.InputError, match="2 filters for 1 queries"):
        index.explain(data[1][2], 5, only=[[1], [2]])
