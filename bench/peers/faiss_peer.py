"""faiss in memory: IVF-Flat, IVF-PQ (4-bit fast scan, two dimensions a code) refined with full vectors, HNSW, and a
scan of all vectors, or of those that match a filter."""
import math

import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "index.faiss"
HNSW_M, HNSW_BUILD_LIST = 16, 200


def list_count(n):
    """Power of two nearest to 1.6*sqrt(n): among 128 to 1,024 lists the fastest at equal recall, or as fast, for
    10,000 embeddings and for 100,000 descriptors."""
    return max(1, 2 ** round(math.log2(1.6 * math.sqrt(n))))


def chunk_count(d):
    """Most 4-bit chunks, of two dimensions at least, that divide d; fewer were slower at equal recall."""
    return max(m for m in range(1, max(1, d // 2) + 1) if d % m == 0)


class Faiss(Peer):
    def __init__(self, job):
        import faiss
        super().__init__(job)
        self.api = faiss
        self.kind = job["kind"]
        self.index = self.selector = self.bits = self.matches = None

    def version(self):
        return self.api.__version__

    def recipe(self, n, d):
        if self.kind == "hnsw":
            return f"HNSW{HNSW_M}"
        if self.kind == "flat":
            return "Flat"
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
        return {"recipe": self.name} | ({"efConstruction": HNSW_BUILD_LIST} if self.kind == "hnsw" else {})

    def load(self):
        self.index = self.api.read_index(str(self.index_dir / INDEX_FILE))

    def use_filter(self, name, rows):
        self.selector = self.bits = self.matches = None
        if self.kind == "flat":
            self.narrow(rows)
        elif rows is not None:
            mask = np.zeros(self.index.ntotal, bool)
            mask[rows] = True
            self.bits = np.packbits(mask, bitorder="little")
            self.selector = self.api.IDSelectorBitmap(self.bits)

    def narrow(self, rows):
        """An index of the vectors that match, for scans."""
        self.matches = None
        if rows is not None:
            self.matches = rows, self.api.IndexFlat(self.index.d, self.index.metric_type)
            self.matches[1].add(self.index.reconstruct_n(0, self.index.ntotal)[rows])

    def parameters(self, setting):
        if self.kind == "flat":
            return None
        if self.kind == "hnsw":
            return self.api.SearchParametersHNSW(efSearch=setting["ef"], sel=self.selector)
        lists = self.api.SearchParametersIVF(nprobe=setting["nprobe"], sel=self.selector)
        if self.kind == "ivf-flat":
            return lists
        return self.api.IndexRefineSearchParameters(k_factor=setting["k_factor"], base_index_params=lists)

    def search(self, queries, setting, threads):
        self.api.omp_set_num_threads(threads)
        if self.matches:
            rows, index = self.matches
            return rows[index.search(queries, self.job["k"])[1]]
        return self.index.search(queries, self.job["k"], params=self.parameters(setting))[1]


if __name__ == "__main__":
    serve(Faiss)
