#!/usr/bin/env python3
"""Write a large synthetic set: clusters of unequal size whose spread lies in a few directions, as embeddings have it.

    python3 demo/make_large.py base.fbin query.fbin --rows 300000 --dim 128

Both files are .fbin (u32 rows, u32 dim, rows of f32). Rows are drawn chunk by chunk, so memory stays at a few MB.
The queries come from the same clusters and are no rows of the base. Equal arguments give equal files.
"""

import argparse
from pathlib import Path

import numpy as np

CHUNK_ROWS = 20_000
CLUSTERS = 500
LOCAL_DIMS = 24  # directions in which the rows of a cluster differ most
NOISE = 0.15


class Clusters:
    """Centres, how often each is drawn, and the directions in which its rows spread."""

    def __init__(self, dim, rng):
        self.centres = rng.standard_normal((CLUSTERS, dim), np.float32)
        self.shares = rng.pareto(1.5, CLUSTERS) + 0.2
        self.shares /= self.shares.sum()
        self.directions = rng.standard_normal((CLUSTERS, LOCAL_DIMS, dim), np.float32)
        self.directions /= np.sqrt(LOCAL_DIMS, dtype=np.float32)

    def draw(self, rows, rng):
        which = np.sort(rng.choice(CLUSTERS, rows, p=self.shares))
        out = self.centres[which] + NOISE * rng.standard_normal((rows, self.centres.shape[1]), np.float32)
        starts = np.searchsorted(which, np.arange(CLUSTERS + 1))
        for cluster in range(CLUSTERS):
            members = slice(starts[cluster], starts[cluster + 1])
            local = rng.standard_normal((starts[cluster + 1] - starts[cluster], LOCAL_DIMS), np.float32)
            out[members] += local @ self.directions[cluster]
        return out[rng.permutation(rows)]


def write(path, clusters, rows, dim, rng):
    with open(path, "wb") as file:
        np.array([rows, dim], "<u4").tofile(file)
        for start in range(0, rows, CHUNK_ROWS):
            clusters.draw(min(CHUNK_ROWS, rows - start), rng).astype("<f4", copy=False).tofile(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--query-rows", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if min(args.rows, args.dim, args.query_rows) < 1:
        parser.error("rows, dim and query-rows must be at least 1")
    rng = np.random.default_rng(args.seed)
    clusters = Clusters(args.dim, rng)
    write(args.base, clusters, args.rows, args.dim, rng)
    write(args.queries, clusters, args.query_rows, args.dim, rng)


if __name__ == "__main__":
    main()
