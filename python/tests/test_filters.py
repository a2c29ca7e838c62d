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
    assert not recwarn.list


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


def test_a_kind_without_filters_says_so(data, tmp_path):
    stratann.build(data[0], tmp_path / "remote", "remote-hnsw")
    with stratann.open(tmp_path / "remote") as opened, pytest.raises(stratann.InputError, match="remote-hnsw"):
        opened.search(data[1], 5, only=[1])
