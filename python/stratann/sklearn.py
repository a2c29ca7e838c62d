"""Neighbours for scikit-learn pipelines.

>>> import numpy as np
>>> from sklearn.neighbors import KNeighborsClassifier
>>> from sklearn.pipeline import make_pipeline
>>> from stratann.sklearn import StratannTransformer
>>> rng = np.random.default_rng(0)
>>> X = np.concatenate([rng.normal(0, 1, (200, 8)), rng.normal(5, 1, (200, 8))]).astype(np.float32)
>>> y = np.repeat([0, 1], 200)
>>> knn = KNeighborsClassifier(n_neighbors=5, metric="precomputed")
>>> model = make_pipeline(StratannTransformer(n_neighbors=5, kind="flat"), knn).fit(X, y)
>>> model.predict(X[[0, 399]])
array([0, 1])
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ._arrays import Path, fixed
from ._build import build
from ._index import Index
from ._open import open as open_index

_METRICS = {"euclidean": "l2", "l2": "l2", "sqeuclidean": "l2", "cosine": "cosine"}


class StratannTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """X to the sparse graph of its nearest neighbours among the rows given to `fit`.

    It takes the place of scikit-learn's `KNeighborsTransformer`.

    Rows are indexed as float32; other numbers are converted, as scikit-learn's estimators do.

    Args:
        n_neighbors: neighbours of each row. In mode ``"distance"`` the graph has one more, since a row of the
            fit data is its own first neighbour.
        mode: ``"distance"`` or ``"connectivity"`` (ones).
        metric: ``"euclidean"`` (also ``"l2"``), ``"sqeuclidean"`` or ``"cosine"``.
        recall: mean recall wanted; ignored by the kind ``"flat"``, which is exact.
        kind: ``"disk-graph"`` or ``"flat"``.
        path: folder for the index and the fit data; None for a temporary one that goes with the estimator.
        ram_budget: as in `stratann.build` and `stratann.open`.
        n_jobs: threads, by scikit-learn's rule: None is 1, -1 is one per core.
        seed: as in `stratann.build`.
        build_options: further arguments of `stratann.build`, as a dict.

    Attributes:
        n_samples_fit_: rows in the index.
        n_features_in_: components of a row.
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        mode: str = "distance",
        metric: str = "euclidean",
        recall: float = 0.95,
        kind: str = "disk-graph",
        path: Path | None = None,
        ram_budget: int | str | None = "2GiB",
        n_jobs: int | None = None,
        seed: int = 1,
        build_options: dict[str, Any] | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.recall = recall
        self.kind = kind
        self.path = path
        self.ram_budget = ram_budget
        self.n_jobs = n_jobs
        self.seed = seed
        self.build_options = build_options

    def fit(self, X: ArrayLike, y: Any = None) -> StratannTransformer:
        """Indexes the rows of `X`, shape (n, d). `y` is ignored."""
        if self.metric not in _METRICS:
            raise ValueError(f"metric is {self.metric!r}; use one of {', '.join(sorted(_METRICS))}")
        if self.mode not in ("distance", "connectivity"):
            raise ValueError(f"mode is {self.mode!r}; use 'distance' or 'connectivity'")
        rows = validate_data(self, X, dtype=np.float32, order="C")
        self._temporary = None if self.path is not None else tempfile.TemporaryDirectory(prefix="stratann-")
        self._folder = fixed(self.path) if self.path is not None else self._temporary.name  # type: ignore[union-attr]
        os.makedirs(self._folder, exist_ok=True)
        # On disk, so that `kneighbors()` can search for the fitted data without holding it in RAM.
        np.save(self._fit_data, rows)
        build(
            rows,
            os.path.join(self._folder, "index"),
            kind=self.kind,
            metric=_METRICS[self.metric],
            ram_budget=self.ram_budget,
            threads=effective_n_jobs(self.n_jobs),
            seed=self.seed,
            force=True,
            **(self.build_options or {}),
        )
        self.n_samples_fit_ = rows.shape[0]
        self._open()
        return self

    def transform(self, X: ArrayLike) -> csr_matrix:
        """The graph of `X`'s neighbours, shape (len(X), n_samples_fit_), in CSR form; each row by ascending
        distance.
        """
        check_is_fitted(self)
        count = self.n_neighbors + (self.mode == "distance")
        return self.kneighbors_graph(X, n_neighbors=count, mode=self.mode)

    def fit_transform(self, X: ArrayLike, y: Any = None) -> csr_matrix:
        """`fit`, then `transform` of the same rows: each is its own first neighbour."""
        return self.fit(X).transform(X)

    def kneighbors(
        self,
        X: ArrayLike | None = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> NDArray[np.int64] | tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Neighbours of `X`, or of the fit data, where no row is its own neighbour.

        Returns:
            Distances (unless `return_distance` is false) and row numbers of the fit data, both of shape (n,
            n_neighbors).
        """
        check_is_fitted(self)
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        among_itself = X is None
        if count < 1 or count + among_itself > self.n_samples_fit_:
            limit = self.n_samples_fit_ - among_itself
            fitted = f"{self.n_samples_fit_} rows were fitted"
            raise ValueError(f"Expected 0 < n_neighbors <= {limit}, but it is {count}; {fitted}")
        if among_itself:
            rows = np.load(self._fit_data, mmap_mode="r")
        else:
            rows = validate_data(self, X, dtype=np.float32, order="C", reset=False)
        ids, distances = self._search(rows, count + among_itself)
        if among_itself:
            ids, distances = _without_self(ids, distances)
        return (distances, ids) if return_distance else ids

    def kneighbors_graph(
        self,
        X: ArrayLike | None = None,
        n_neighbors: int | None = None,
        mode: str = "connectivity",
    ) -> csr_matrix:
        """Neighbours as a sparse matrix of shape (n, n_samples_fit_): ones, or distances with
        ``mode="distance"``.
        """
        if mode not in ("distance", "connectivity"):
            raise ValueError(f"mode is {mode!r}; use 'distance' or 'connectivity'")
        found = self.kneighbors(X, n_neighbors, return_distance=True)
        distances, ids = found
        n, k = ids.shape
        data = distances if mode == "distance" else np.ones_like(distances)
        shape = (n, self.n_samples_fit_)
        return csr_matrix((data.reshape(-1), ids.reshape(-1), np.arange(0, n * k + 1, k)), shape=shape)

    def _search(self, rows: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        result = self._index.search(rows, count, self.recall, threads=effective_n_jobs(self.n_jobs))
        # Rounding may give a slightly negative distance of a row to itself.
        distances = np.maximum(result.distances.astype(np.float64), 0.0)
        if self.metric in ("euclidean", "l2"):
            np.sqrt(distances, out=distances)
        return result.ids.astype(np.int64), distances

    @property
    def _fit_data(self) -> str:
        return os.path.join(self._folder, "fit.npy")

    @property
    def _n_features_out(self) -> int:
        return int(self.n_samples_fit_)

    def _open(self) -> None:
        self._index: Index = open_index(os.path.join(self._folder, "index"))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_index")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles a temporary index with the bytes of its files; an index with a `path` stays where it is."""
        state = dict(super().__getstate__())
        state.pop("_index", None)
        if state.pop("_temporary", None) is not None:
            state["_files"] = _read_files(self._folder)
            state.pop("_folder")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self._temporary = tempfile.TemporaryDirectory(prefix="stratann-")
            self._folder = self._temporary.name
            _write_files(self._folder, files)
        if hasattr(self, "_folder"):
            self._open()


def _without_self(
    ids: NDArray[np.int64], distances: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Takes each row out of its own neighbours; where it was not found among them, the farthest goes
    instead.
    """
    n, k = ids.shape
    keep = ids != np.arange(n)[:, np.newaxis]
    keep[keep.all(axis=1), -1] = False
    return ids[keep].reshape(n, k - 1), distances[keep].reshape(n, k - 1)


def _read_files(folder: str) -> dict[str, bytes]:
    files = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, folder)] = file.read()
    return files


def _write_files(folder: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
