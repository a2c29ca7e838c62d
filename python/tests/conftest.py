import os
import signal
import tempfile

# One of scikit-learn's own checks needs this before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

import numpy as np
import pytest

import stratann

# Builds keep the profile of the disk here, not in the folder of the user.
_cache = tempfile.TemporaryDirectory()
os.environ.setdefault("STRATANN_CACHE", _cache.name)

DTYPES = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "i8": np.int8}


def vectors(seed, n, dim, dtype="f32"):
    """Rows around 40 centres, in the range of the element type."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, 1, (40, dim))
    x = centres[rng.integers(0, 40, n)] + rng.normal(0, 0.7, (n, dim))
    if dtype == "u8":
        return np.clip(x * 25 + 128, 0, 255).astype(np.uint8)
    if dtype == "i8":
        return np.clip(x * 25, -128, 127).astype(np.int8)
    return x.astype(DTYPES[dtype])


def brute_force(base, queries, k, metric):
    """Row numbers and distances, computed in float64 by NumPy alone."""
    b, q = base.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        d = (q**2).sum(1)[:, None] - 2 * q @ b.T + (b**2).sum(1)
    elif metric == "ip":
        d = -(q @ b.T)
    else:
        d = 1 - (q @ b.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    ids = np.argsort(d, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(d, ids, axis=1)


def recall(found, truth):
    return np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth)])


@pytest.fixture(scope="session", autouse=True)
def ctrl_c():
    """A shell that starts the tests in its background has them, and all that they start, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def base():
    return vectors(1, 4000, 24)


@pytest.fixture(scope="session")
def queries():
    return vectors(2, 200, 24)


@pytest.fixture(scope="session")
def graph_path(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "index"
    stratann.build(base, path, "disk-graph", threads=2, calibration_queries=100)
    return path


@pytest.fixture
def index(graph_path):
    with stratann.open(graph_path, cache_budget=0) as opened:
        yield opened
