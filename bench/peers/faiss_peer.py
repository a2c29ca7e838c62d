"""faiss in memory: IVF-Flat, IVF-PQ (4-bit fast scan, 32-byte codes) refined with full vectors, HNSW."""
import math

import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "index.faiss"
# HNSW M and construction list are the same for every HNSW peer.
HNSW_M, HNSW_BUILD_LIST = 16, 200
MAX_FASTSCAN_CHUNKS = 64


def list_count(n):
    """Power of two nearest to 2*sqrt(n): between faiss' own advice of sqrt(n) and 4*sqrt(n) for small sets."""
    return max(1, 2 ** round(math.log2(2 * math.sqrt(n))))


def chunk_count(d):
    """Most 4-bit chunks, at most 64 (32 bytes), that divide d."""
    return max(m for m in range(1, MAX_FASTSCAN_CHUNKS + 1) if d % m == 0)


class Faiss(Peer):
    def __init__(self, job):
        import faiss
        super().__init__(job)
        self.api = faiss
        self.kind = job["kind"]
        self.index = None

    def version(self):
        return self.api.__version__

    def recipe(self, n, d):
        if self.kind == "hnsw":
            return f"HNSW{HNSW_M}"
        lists = list_count(n)
        return f"IVF{lists},Flat" if self.kind == "ivf-flat" else f"IVF{lists},PQ{chunk_count(d)}x4fs,RFlat"

    def build(self, base):
        self.api.omp_set_num_threads(self.job["threads"])
        l2 = self.job["metric"] == "l2"
        metric = self.api.METRIC_L2 if l2 else self.api.METRIC_INNER_PRODUCT
        self.name = self.recipe(*base.shape)
        self.index = self.api.index_factory(base.shape[1], self.name, metric)
        if self.kind == "hnsw":
            self.index.hnsw.efConstruction = HNSW_BUILD_LIST
        rows = np.ascontiguousarray(base, np.float32)
        self.index.train(rows)
        self.index.add(rows)
        self.api.write_index(self.index, str(self.index_dir / INDEX_FILE))

    def details(self):
        return {"recipe": self.name}

    def load(self):
        self.index = self.api.read_index(str(self.index_dir / INDEX_FILE))

    def parameters(self, setting):
        if self.kind == "hnsw":
            return self.api.SearchParametersHNSW(efSearch=setting["ef"])
        lists = self.api.SearchParametersIVF(nprobe=setting["nprobe"])
        if self.kind == "ivf-flat":
            return lists
        return self.api.IndexRefineSearchParameters(k_factor=setting["k_factor"], base_index_params=lists)

    def search(self, queries, setting, threads):
        self.api.omp_set_num_threads(threads)
        return self.index.search(queries, self.job["k"], params=self.parameters(setting))[1]


if __name__ == "__main__":
    serve(Faiss)
