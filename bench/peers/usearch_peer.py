"""USearch in memory; vectors are stored as float32, or as float16 where the data is float16."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "index.usearch"
HNSW_M, HNSW_BUILD_LIST = 16, 200


class Usearch(Peer):
    def __init__(self, job):
        from usearch.index import Index
        super().__init__(job)
        self.make = Index

    def version(self):
        return version("usearch")

    def empty(self):
        return self.make(ndim=self.job["dim"], metric="l2sq" if self.job["metric"] == "l2" else "ip",
                         dtype="f16" if self.job["source_dtype"] == "float16" else "f32",
                         connectivity=HNSW_M, expansion_add=HNSW_BUILD_LIST)

    def build(self, base):
        index = self.empty()
        index.add(np.arange(len(base), dtype=np.uint64), np.ascontiguousarray(base, np.float32),
                  threads=self.job["threads"])
        index.save(str(self.index_dir / INDEX_FILE))

    def details(self):
        return {"connectivity": HNSW_M, "expansion_add": HNSW_BUILD_LIST, "stored": str(self.empty().dtype)}

    def load(self):
        self.index = self.empty()
        self.index.load(str(self.index_dir / INDEX_FILE))

    def search(self, queries, setting, threads):
        self.index.expansion_search = setting["ef"]
        keys = self.index.search(queries, self.job["k"], threads=threads).keys
        return np.asarray(keys, np.int64).reshape(len(queries), -1)


if __name__ == "__main__":
    serve(Usearch)
