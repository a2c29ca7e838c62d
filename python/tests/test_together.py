import os

import numpy as np
import pytest
from conftest import brute_force, vectors

import stratann


@pytest.fixture
def halves(tmp_path, base):
    """The rows of the set in two indexes of different kinds, with the ids of the whole."""
    ids = np.arange(len(base), dtype=np.uint64)
    stratann.build(base[:2500], tmp_path / "flat", kind="flat", ids=ids[:2500])
    stratann.build(base[2500:], tmp_path / "graph", kind="disk-graph", ids=ids[2500:], calibration_queries=0)
    with stratann.open(tmp_path / "flat") as flat, stratann.open(tmp_path / "graph") as graph:
        yield flat, graph


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_two_indexes_answer_as_one(halves, base, queries, threads):
    truth, _ = brute_force(base, queries, 10, "l2")
    r = stratann.search_together(halves, queries, k=10, search_list=200, threads=threads)
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(r.ids, truth)]) > 9.8
    each = [index.search(queries, k=10, search_list=200) for index in halves]
    ids = np.concatenate([one.ids for one in each], axis=1)
    distances = np.concatenate([one.distances for one in each], axis=1)
    order = np.lexsort((ids, distances), axis=1)[:, :10]
    np.testing.assert_array_equal(r.ids, np.take_along_axis(ids, order, axis=1))
    totals = [one.stats["totals"]["reads"] + one.stats["totals"]["cache_hits"] for one in each]
    assert r.stats["totals"]["reads"] + r.stats["totals"]["cache_hits"] == sum(totals)


def test_what_cannot_be_searched_as_one_is_refused(halves, tmp_path, queries):
    flat, graph = halves
    with pytest.raises(stratann.InputError, match="no index"):
        stratann.search_together([], queries)
    with pytest.raises(stratann.InputError, match="str"):
        stratann.search_together([flat, "graph"], queries)
    stratann.build(vectors(5, 300, 16), tmp_path / "other", kind="flat")
    with stratann.open(tmp_path / "other") as other:
        with pytest.raises(stratann.InputError, match="only indexes of equal vectors"):
            stratann.search_together([flat, other], queries)
    with pytest.raises(stratann.InputError, match="closed"):
        stratann.search_together([flat, other], queries)
    with pytest.raises(stratann.InputError, match="dimensions"):
        stratann.search_together([flat, graph], queries[:, :5])


def test_an_index_that_fails_is_named_and_the_other_can_answer(tmp_path, base, queries):
    for name in ("sound", "broken"):
        stratann.build(base, tmp_path / name, kind="flat")
    opened = [stratann.open(tmp_path / name, cache_budget=0) for name in ("sound", "broken")]
    blocks = next(path for path in os.listdir(tmp_path / "broken") if "blocks" in path)
    os.truncate(tmp_path / "broken" / blocks, 4096)
    with pytest.raises(stratann.QueryError, match="broken"):
        stratann.search_together(opened, queries, k=5)
    r = stratann.search_together(opened, queries, k=5, partial=True)
    truth, _ = brute_force(base, queries, 5, "l2")
    np.testing.assert_array_equal(r.ids, truth)
    number, why = r.stats["failed"][0]
    assert number == 0 and "broken" in why


@pytest.mark.filterwarnings("error")
def test_each_index_takes_of_a_filter_what_it_has(halves, base, queries):
    own = [np.arange(query % 5, 4000, query % 9 + 2, dtype=np.uint64) for query in range(len(queries))]
    thirds = np.arange(1, 4000, 3, dtype=np.uint64)
    for filters, allowed in (
        ({"only": thirds}, [thirds] * len(queries)),
        ({"without": thirds}, [np.setdiff1d(np.arange(4000), thirds)] * len(queries)),
        ({"only": own}, own),
        ({"only": [7, 2600, 9000]}, [np.array([7, 2600])] * len(queries)),
    ):
        r = stratann.search_together(halves, queries, k=10, recall=1.0, **filters)
        for query, rows in enumerate(allowed):
            truth, _ = brute_force(base[rows], queries[query : query + 1], min(10, len(rows)), "l2")
            np.testing.assert_array_equal(np.sort(r.ids[query, : r.counts[query]]), np.sort(rows[truth[0]]))
    with pytest.raises(stratann.InputError, match="mask, and several indexes"):
        stratann.search_together(halves, queries, only=np.ones(4000, bool))
