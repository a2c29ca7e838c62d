"""Scan of the rows that match a filter by numpy, in memory: one query at a time, or all queries as one product."""
import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "rows.npy"


class Scan(Peer):
    def version(self):
        return np.__version__

    def build(self, base):
        np.save(self.index_dir / INDEX_FILE, np.ascontiguousarray(base, np.float32))

    def details(self):
        return {"queries": "all at once" if self.job["is_batch"] else "one at a time"}

    def load(self):
        self.all = np.load(self.index_dir / INDEX_FILE)
        self.use_filter(None, None)

    def use_filter(self, name, rows):
        self.ids = np.arange(len(self.all)) if rows is None else rows
        self.rows = self.all if rows is None else np.ascontiguousarray(self.all[rows])
        # Half of the squared length: what a distance has beside the product. Unit vectors have equal lengths.
        self.half = np.einsum("ij,ij->i", self.rows, self.rows) / 2 if self.job["metric"] == "l2" else np.float32(0)

    def search(self, queries, setting, threads):
        if self.job["is_batch"]:
            return self.ids[self.nearest(queries @ self.rows.T)]
        return np.stack([self.ids[self.nearest(self.rows @ query)] for query in queries])

    def nearest(self, products):
        far = self.half - products
        k = self.job["k"]
        near = np.argpartition(far, k - 1, axis=-1)[..., :k] if k < far.shape[-1] else np.arange(k)
        return np.broadcast_to(near, (*far.shape[:-1], k))


if __name__ == "__main__":
    serve(Scan)
