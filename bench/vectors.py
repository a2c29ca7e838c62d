"""Vector files in the big-ann layout, exact conversions for peers, and recall@k.

Layout of ``.fbin .f16bin .u8bin .i8bin``: u32 n, u32 d, then n rows of d values, little-endian.
Layout of a ground truth: u32 nq, u32 k, nq*k int32 ids, nq*k float32 distances.
"""
from pathlib import Path

import numpy as np

DTYPES = {".fbin": np.float32, ".f16bin": np.float16, ".u8bin": np.uint8, ".i8bin": np.int8}
HEADER_BYTES = 8
BLOCK_ROWS = 65536


class DataError(ValueError):
    """A data file that cannot be used; the message is one line and names the file."""


def _header(path, what):
    try:
        head = np.fromfile(path, "<u4", 2)
    except OSError as e:
        raise DataError(f"{path}: {e.strerror}; give an existing {what} file") from e
    if len(head) < 2:
        raise DataError(f"{path}: {Path(path).stat().st_size} bytes, shorter than the 8-byte header of a {what}")
    return int(head[0]), int(head[1])


def open_vectors(path):
    """Memory-map a big-ann vector file; returns an (n, d) array of the file's dtype, read-only."""
    path = Path(path)
    dtype = DTYPES.get(path.suffix)
    if dtype is None:
        raise DataError(f"{path}: unknown suffix '{path.suffix}'; use one of {' '.join(DTYPES)}")
    n, d = _header(path, "vector")
    want, have = HEADER_BYTES + n * d * np.dtype(dtype).itemsize, path.stat().st_size
    if n == 0 or d == 0 or want != have:
        raise DataError(f"{path}: header says {n} x {d} ({want} bytes), the file has {have} bytes")
    return np.memmap(path, dtype, "r", HEADER_BYTES, (n, d))


def read_groundtruth(path, nq, k):
    """First k true ids of each of nq queries: (nq, k) int32."""
    rows, cols = _header(path, "ground truth")
    want, have = HEADER_BYTES + 8 * rows * cols, Path(path).stat().st_size
    if want != have:
        raise DataError(f"{path}: header says {rows} x {cols} ({want} bytes), the file has {have} bytes")
    if rows != nq or cols < k:
        raise DataError(f"{path}: holds {cols} ids for {rows} queries; {k} ids for {nq} queries are needed")
    ids = np.fromfile(path, "<i4", rows * cols, offset=HEADER_BYTES).reshape(rows, cols)
    return ids[:, :k].copy()


def write_vectors(path, vectors, normalise=False):
    """Write (n, d) vectors as the dtype of the suffix, block by block; unit length first if asked."""
    path = Path(path)
    with open(path, "wb") as f:
        np.array(vectors.shape, "<u4").tofile(f)
        for start in range(0, len(vectors), BLOCK_ROWS):
            block = np.asarray(vectors[start:start + BLOCK_ROWS])
            if normalise:
                block = unit_rows(block)
            np.ascontiguousarray(block, DTYPES[path.suffix]).tofile(f)


def write_groundtruth(path, ids, distances):
    """Write (nq, k) true ids and their distances."""
    with open(path, "wb") as f:
        np.array(ids.shape, "<u4").tofile(f)
        np.ascontiguousarray(ids, "<i4").tofile(f)
        np.ascontiguousarray(distances, "<f4").tofile(f)


def unit_rows(x):
    """Rows of x scaled to length one, float32; zero rows stay zero."""
    x = np.asarray(x, np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)


def recall(found, truth):
    """Share of the true ids that were found; (nq, k) ids each.  Repeated or negative ids count once or never."""
    hits = sum(len(np.intersect1d(f, t)) for f, t in zip(found, truth, strict=True))
    return hits / truth.size
