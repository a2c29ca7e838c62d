import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from stratann.sklearn import StratannTransformer


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 4, 600)
    X = rng.normal(0, 1, (4, 10))[y] * 3 + rng.normal(0, 1, (600, 10))
    return X.astype(np.float32), y


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
def test_graph_is_that_of_scikit_learn(blobs, metric, mode):
    X, _ = blobs
    ours = StratannTransformer(n_neighbors=6, mode=mode, metric=metric, kind="flat").fit(X[:500])
    theirs = KNeighborsTransformer(n_neighbors=6, mode=mode, metric=metric, algorithm="brute").fit(X[:500])
    for rows in (X[:500], X[500:]):
        a, b = ours.transform(rows), theirs.transform(rows)
        assert a.shape == b.shape and a.format == b.format == "csr"
        np.testing.assert_array_equal(np.diff(a.indptr), 6 + (mode == "distance"))
        np.testing.assert_allclose(a.toarray(), b.toarray(), rtol=1e-3, atol=2e-3)
        # A neighbour at distance 0 is stored all the same.
        assert a.nnz == b.nnz
    np.testing.assert_array_equal(
        ours.get_feature_names_out()[:2], ["stratanntransformer0", "stratanntransformer1"]
    )


def test_neighbours_are_those_of_scikit_learn(blobs):
    X, _ = blobs
    ours = StratannTransformer(n_neighbors=4, kind="flat").fit(X)
    theirs = KNeighborsTransformer(n_neighbors=4, algorithm="brute").fit(X)
    for rows in (X[:30], None):
        (d, i), (their_d, their_i) = ours.kneighbors(rows), theirs.kneighbors(rows)
        np.testing.assert_array_equal(i, their_i)
        np.testing.assert_allclose(d, their_d, rtol=1e-3, atol=2e-3)
    np.testing.assert_array_equal(
        ours.kneighbors(X[:3], 2, return_distance=False), theirs.kneighbors(X[:3], 2, False)
    )
    np.testing.assert_array_equal(ours.kneighbors_graph().toarray(), theirs.kneighbors_graph().toarray())


def test_graph_index_nearly_agrees(blobs):
    X, _ = blobs
    ours = StratannTransformer(n_neighbors=5, build_options={"calibration_queries": 100}).fit_transform(X)
    theirs = KNeighborsTransformer(n_neighbors=5).fit_transform(X)
    shared = (ours.toarray() > 0) & (theirs.toarray() > 0)
    assert shared.sum() / (600 * 5) > 0.93


def test_pipeline_classifies_like_scikit_learns_own(blobs, tmp_path):
    X, y = blobs
    ours = StratannTransformer(n_neighbors=5, kind="flat", path=tmp_path / "nn")
    theirs = KNeighborsTransformer(n_neighbors=5)
    labels = []
    for transformer in (ours, theirs):
        model = make_pipeline(transformer, KNeighborsClassifier(n_neighbors=5, metric="precomputed"))
        labels.append(model.fit(X[:500], y[:500]).predict(X[500:]))
    np.testing.assert_array_equal(*labels)
    assert (tmp_path / "nn" / "index").is_dir()
    fresh = clone(ours.set_params(n_neighbors=3))
    assert fresh.get_params()["n_neighbors"] == 3 and not hasattr(fresh, "n_samples_fit_")


def test_a_pickled_copy_outlives_the_original(blobs):
    X, _ = blobs
    original = StratannTransformer(n_neighbors=3, kind="flat").fit(X)
    wanted = original.transform(X[:10]).toarray()
    data = pickle.dumps(original)
    del original
    np.testing.assert_array_equal(pickle.loads(data).transform(X[:10]).toarray(), wanted)


def test_wrong_arguments_are_named(blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match="metric is 'l7'"):
        StratannTransformer(metric="l7").fit(X)
    with pytest.raises(ValueError, match="mode is 'x'"):
        StratannTransformer(mode="x").fit(X)
    fitted = StratannTransformer(n_neighbors=9, kind="flat").fit(X[:9])
    with pytest.raises(ValueError, match="n_neighbors <= 9"):
        fitted.transform(X[:9])


@parametrize_with_checks([StratannTransformer(n_neighbors=2, kind="flat")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)
