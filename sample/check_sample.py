#!/usr/bin/env python3
"""Check the sample data set: shapes, unit length, exact neighbours of 20 random queries, texts.

    python3 check_sample.py [FOLDER]

Needs numpy only and takes about a second. Exit status 1 and one line on the first fault.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from pathlib import Path

import numpy as np

DIM = 384
CHECKED_QUERIES = 20
HEADER_BYTES = 8
UNIT_TOLERANCE = 1e-3  # 384 values rounded to halves move the length by far less
DISTANCE_TOLERANCE = 1e-6  # a distance is stored as float32
MAX_BYTES = 15_000_000


class Fault(Exception):
    """Damage of the data, in one line."""


def read_header(path: Path, raw: bytes) -> tuple[int, int]:
    if len(raw) < HEADER_BYTES:
        raise Fault(f"{path.name}: {len(raw)} bytes, too short for the 8-byte header")
    rows, columns = np.frombuffer(raw, "<u4", 2).tolist()
    return rows, columns


def expect_bytes(path: Path, raw: bytes, expected: int, shape: str) -> None:
    if len(raw) != expected:
        raise Fault(f"{path.name}: {len(raw)} bytes, {shape} needs {expected}: make the data again")


def read_vectors(path: Path) -> np.ndarray:
    """(n, DIM) float64; the values are checked to be unit vectors."""
    raw = path.read_bytes()
    n, d = read_header(path, raw)
    if d != DIM or n == 0:
        raise Fault(f"{path.name}: {n} rows of {d} values, expected at least one row of {DIM}")
    expect_bytes(path, raw, HEADER_BYTES + n * d * 2, f"{n} x {d} halves")
    rows = np.frombuffer(raw, "<f2", offset=HEADER_BYTES).reshape(n, d).astype(np.float64)
    off = ~(np.abs(np.linalg.norm(rows, axis=1) - 1) <= UNIT_TOLERANCE)  # also true for NaN
    if off.any():
        row = int(np.flatnonzero(off)[0])
        raise Fault(f"{path.name}: row {row} has length {np.linalg.norm(rows[row]):.5f}, expected 1")
    return rows


def read_ground_truth(path: Path, nq: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    raw = path.read_bytes()
    rows, k = read_header(path, raw)
    if rows != nq or not 0 < k <= n:
        raise Fault(f"{path.name}: {rows} x {k}, expected {nq} rows of 1 to {n} neighbours")
    expect_bytes(path, raw, HEADER_BYTES + rows * k * 8, f"{rows} x {k} ids and distances")
    ids = np.frombuffer(raw, "<i4", rows * k, HEADER_BYTES).reshape(rows, k)
    distances = np.frombuffer(raw, "<f4", rows * k, HEADER_BYTES + rows * k * 4).reshape(rows, k)
    if ids.min() < 0 or ids.max() >= n:
        raise Fault(f"{path.name}: an id lies outside 0..{n - 1}")
    return ids, distances


def check_neighbours(base: np.ndarray, query: np.ndarray, ids: np.ndarray, distances: np.ndarray) -> None:
    """Scans the whole base for some queries; ties go to the smaller id."""
    k = ids.shape[1]
    base_length = np.linalg.norm(base, axis=1)
    picked = np.random.default_rng().choice(len(query), min(CHECKED_QUERIES, len(query)), replace=False)
    for q in sorted(picked.tolist()):
        distance = 1 - (base @ query[q]) / (np.linalg.norm(query[q]) * base_length)
        order = np.argsort(distance, kind="stable")[:k]
        if not np.array_equal(order, ids[q]):
            rank = int(np.flatnonzero(order != ids[q])[0])
            place = f"groundtruth.ibin: query {q}, rank {rank}"
            raise Fault(f"{place} is row {ids[q, rank]}, the scan finds row {order[rank]}")
        worst = np.abs(distance[order] - distances[q]).max()
        if not worst <= DISTANCE_TOLERANCE:
            raise Fault(f"groundtruth.ibin: query {q} has a distance that is off by {worst:.2e}")


def check_lines(path: Path, raw: bytes, count: int, keys: set[str]) -> list[dict[str, str]]:
    """`count` JSON lines, each with exactly `keys`, all non-empty strings."""
    lines = raw.decode("utf-8").removesuffix("\n").split("\n")
    if len(lines) != count:
        raise Fault(f"{path.name}: {len(lines)} lines for {count} rows")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise Fault(f"{path.name}: line {number} is not JSON: {error}") from None
        whole = isinstance(record, dict) and set(record) == keys
        if not whole or not all(isinstance(v, str) and v.strip() for v in record.values()):
            raise Fault(f"{path.name}: line {number} must have the non-empty texts {sorted(keys)}")
        records.append(record)
    return records


def check_texts(folder: Path, n: int, nq: int) -> None:
    """A line per row; each text begins with its own title, and no query is a text of the base."""
    path = folder / "texts.jsonl.gz"
    try:
        raw = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Fault(f"{path.name}: damaged: {error}") from None
    texts = check_lines(path, raw, n, {"title", "text"})
    for number, record in enumerate(texts, start=1):
        name = record["title"].split(" (part ")[0]
        if not record["text"].startswith(name + ": "):
            raise Fault(f"{path.name}: line {number} is titled {name} but its text does not begin with that")
    path = folder / "queries.jsonl"
    queries = check_lines(path, path.read_bytes(), nq, {"text", "kind"})
    said = {record["text"].split(": ", 1)[1].rstrip(".").lower() for record in texts}
    for number, record in enumerate(queries, start=1):
        if record["kind"] not in ("question", "held-out"):
            raise Fault(f"{path.name}: line {number} has the kind {record['kind']!r}")
        if record["text"].lower() in said:
            raise Fault(f"{path.name}: line {number} is also a text of the base")


def check(folder: Path) -> str:
    base = read_vectors(folder / "base.f16bin")
    query = read_vectors(folder / "query.f16bin")
    ids, distances = read_ground_truth(folder / "groundtruth.ibin", len(query), len(base))
    check_neighbours(base, query, ids, distances)
    check_texts(folder, len(base), len(query))
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    if size > MAX_BYTES:
        raise Fault(f"{folder}: {size} bytes, the limit is {MAX_BYTES}")
    return f"ok: {len(base)} rows, {len(query)} queries, k = {ids.shape[1]}, {size / 1e6:.1f} MB"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    try:
        print(check(folder))
    except (Fault, OSError, UnicodeDecodeError) as fault:
        print(f"sample data: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
