"""hnswlib in memory, float32."""
from contextlib import suppress
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "index.hnsw"
# As in ann-benchmarks: with the default, 200, recall is slightly lower at equal ef.
HNSW_BUILD_LIST = 500


class Hnswlib(Peer):
    def __init__(self, job):
        import hnswlib
        super().__init__(job)
        self.api = hnswlib
        self.matches, self.starved = None, set()

    def version(self):
        return version("hnswlib")

    def empty(self, d):
        # Cosine sets arrive normalised, so inner product gives their order without a second normalisation.
        return self.api.Index(space="l2" if self.job["metric"] == "l2" else "ip", dim=d)

    def build(self, base):
        index = self.empty(base.shape[1])
        index.init_index(max_elements=len(base), ef_construction=HNSW_BUILD_LIST, M=self.job["m"],
                         random_seed=self.job["seed"])
        index.add_items(np.ascontiguousarray(base, np.float32), num_threads=self.job["threads"])
        index.save_index(str(self.index_dir / INDEX_FILE))

    def details(self):
        return {"M": self.job["m"], "ef_construction": HNSW_BUILD_LIST}

    def load(self):
        self.index = self.empty(self.job["dim"])
        self.index.load_index(str(self.index_dir / INDEX_FILE))

    def use_filter(self, name, rows):
        # A method of a list is the fastest that its functor, called for each vector from C++, can be in Python.
        self.matches, self.starved = None, set()
        if rows is not None:
            allowed = np.zeros(self.index.get_current_count(), bool)
            allowed[rows] = True
            self.matches = allowed.tolist().__getitem__

    def search(self, queries, setting, threads):
        self.index.set_ef(setting["ef"])
        if setting["ef"] in self.starved:
            return self.one_by_one(queries)
        try:
            ids = self.index.knn_query(queries, k=self.job["k"], num_threads=threads, filter=self.matches)[0]
        except RuntimeError:
            # A query with too few results fails the batch.
            if self.matches is None:
                raise
            self.starved.add(setting["ef"])
            return self.one_by_one(queries)
        return ids.astype(np.int64)

    def one_by_one(self, queries):
        """Results of each query; none of one that failed."""
        ids = np.full((len(queries), self.job["k"]), -1, np.int64)
        for i in range(len(queries)):
            with suppress(RuntimeError):
                ids[i] = self.index.knn_query(queries[i:i + 1], k=self.job["k"], num_threads=1,
                                              filter=self.matches)[0][0]
        return ids


if __name__ == "__main__":
    serve(Hnswlib)
