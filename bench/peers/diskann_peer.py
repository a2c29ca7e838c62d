"""DiskANN's disk index (diskannpy 0.7, C++): PQ codes in memory, graph and vectors on disk, libaio with O_DIRECT."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, serve

DTYPES = {"float32": np.float32, "uint8": np.uint8, "int8": np.int8}
GIB = 1 << 30
PREFIX = "ann"
# DiskANN keeps 0.25 GB of the budget for cached nodes once the budget exceeds 1.25 GB (src/disk_utils.cpp).
CACHE_RESERVE_GIB, CACHE_THRESHOLD_GIB = 0.25, 1.0


def search_budget_gib(n, code_bytes):
    """The search memory, in GiB, from which DiskANN derives exactly code_bytes per vector (it rounds down)."""
    budget = n * (code_bytes + 0.5) / GIB
    return budget + CACHE_RESERVE_GIB if budget > CACHE_THRESHOLD_GIB else budget


class DiskAnn(Peer):
    def __init__(self, job):
        import diskannpy
        super().__init__(job)
        self.api = diskannpy
        # Its disk index has no cosine: cosine sets arrive normalised, where l2 gives the same order.
        self.metric = {"l2": "l2", "cosine": "l2", "ip": "mips"}[job["metric"]]

    def version(self):
        return version("diskannpy")

    def build(self, base):
        self.api.build_disk_index(
            data=str(self.job["base"]), vector_dtype=DTYPES[base.dtype.name], distance_metric=self.metric,
            index_directory=str(self.index_dir), index_prefix=PREFIX,
            graph_degree=64, complexity=self.job["diskann_build_list"],
            search_memory_maximum=search_budget_gib(len(base), self.job["code_bytes"]),
            build_memory_maximum=8.0, num_threads=self.job["threads"], pq_disk_bytes=0)

    def details(self):
        """Shape of the compressed codes, as written: the budget is only a wish."""
        chunks = int(np.fromfile(self.index_dir / f"{PREFIX}_pq_compressed.bin", "<u4", 2)[1])
        if chunks != self.job["code_bytes"]:
            raise ValueError(f"DiskANN made {chunks}-byte codes, {self.job['code_bytes']} were asked for")
        return {"code_bytes": chunks, "graph_degree": 64, "build_list": self.job["diskann_build_list"]}

    def index_bytes(self):
        # The build leaves a copy of the vectors and a sample behind, which an uncached search never opens.
        return sum((self.index_dir / f"{PREFIX}_{part}").stat().st_size
                   for part in ("disk.index", "pq_compressed.bin", "pq_pivots.bin"))

    def load(self):
        # With room for a single thread it waits for itself while it loads; a search still takes the threads it is told.
        room = max(2, self.job["threads"])
        self.index = self.api.StaticDiskIndex(
            index_directory=str(self.index_dir), index_prefix=PREFIX, num_threads=room,
            num_nodes_to_cache=0, cache_mechanism=0)

    def search(self, queries, setting, threads):
        return self.index.batch_search(
            queries, k_neighbors=self.job["k"], complexity=setting["search_list"], num_threads=threads,
            beam_width=setting["beam_width"]).identifiers

    def search_one(self, query, setting):
        return self.index.search(query[0], k_neighbors=self.job["k"], complexity=setting["search_list"],
                                 beam_width=setting["beam_width"]).identifiers


if __name__ == "__main__":
    serve(DiskAnn)
