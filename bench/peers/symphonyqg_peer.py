"""SymphonyQG in memory (rabitqlib): a graph whose nodes hold one-bit codes of their neighbours, and f32 vectors."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, serve

INDEX_FILE = "index.symqg"
# The degree of its documentation. Its random start takes three passes: the graph is better than by its quick start.
DEGREE, BUILD_LIST, START = 32, 200, "random"


class SymphonyQg(Peer):
    def __init__(self, job):
        import rabitqlib
        super().__init__(job)
        self.api = rabitqlib
        # Cosine sets arrive normalised, where l2 gives the same order.
        self.metric = "ip" if job["metric"] == "ip" else "l2"

    def version(self):
        return version("rabitqlib")

    def build(self, base):
        index = self.api.SymqgIndex(dim=base.shape[1], max_degree=DEGREE, metric=self.metric, quantization_bits=0)
        index.build(np.ascontiguousarray(base, np.float32), ef_construction=BUILD_LIST,
                    num_threads=self.job["threads"], init=START)
        index.save(str(self.index_dir / INDEX_FILE))

    def details(self):
        return {"max_degree": DEGREE, "ef_construction": BUILD_LIST, "init": START, "quantization_bits": 0}

    def load(self):
        self.index = self.api.SymqgIndex.load(str(self.index_dir / INDEX_FILE))

    def search(self, queries, setting, threads):
        return self.index.search_batch(queries, self.job["k"], setting["ef"], threads)[0].astype(np.int64)


if __name__ == "__main__":
    serve(SymphonyQg)
