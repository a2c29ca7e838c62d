"""hnswlib in memory, float32."""
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

    def search(self, queries, setting, threads):
        self.index.set_ef(setting["ef"])
        return self.index.knn_query(queries, k=self.job["k"], num_threads=threads)[0].astype(np.int64)


if __name__ == "__main__":
    serve(Hnswlib)
