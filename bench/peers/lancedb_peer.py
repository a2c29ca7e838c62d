"""LanceDB on a local folder: an inverted file of codes, or of small graphs, and a boolean column for each filter."""
import os
from datetime import timedelta
from importlib.metadata import version

import numpy as np

from peers.faiss_peer import chunk_count, list_count
from peers.worker import Peer, bind_to_cores, column_of, serve

TABLE = "rows"
METRICS = {"l2": "l2", "cosine": "cosine", "ip": "dot"}
# Of a list's graph, so many candidates for each result are compared with full vectors.
REFINE_OF_GRAPHS = 3


class LanceDb(Peer):
    def __init__(self, job):
        bind_to_cores(job["threads"])
        for name in ("LANCE_CPU_THREADS", "LANCE_IO_THREADS", "TOKIO_WORKER_THREADS", "RAYON_NUM_THREADS"):
            os.environ[name] = str(job["threads"])
        import lancedb
        import pyarrow
        super().__init__(job)
        self.api, self.arrow, self.where = lancedb, pyarrow, None
        self.metric = METRICS[job["metric"]]

    def version(self):
        return version("lancedb")

    def build(self, base):
        pa, dim = self.arrow, base.shape[1]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(base, np.float32).ravel()), dim)
        columns = {"id": pa.array(np.arange(len(base), dtype=np.int64)), "vector": vectors}
        for name, path in self.job["filters"].items():
            mask = np.zeros(len(base), bool)
            mask[np.load(path).astype(np.int64)] = True
            columns[column_of(name)] = pa.array(mask)
        table = self.api.connect(str(self.index_dir)).create_table(TABLE, pa.table(columns))
        table.create_index(metric=self.metric, vector_column_name="vector", index_type=self.job["kind"],
                           **self.shape(*base.shape))
        names = [column_of(name) for name in self.job["filters"]]
        for name in names:
            table.create_scalar_index(name, index_type="BITMAP")
        table.wait_for_index([f"{name}_idx" for name in ("vector", *names)], timeout=timedelta(minutes=10))

    def shape(self, n, d):
        """Lists as many as faiss gets, and a byte of codes for four dimensions; graphs as it makes them itself."""
        if self.job["kind"] != "IVF_PQ":
            return {}
        return {"num_partitions": list_count(n), "num_sub_vectors": max(1, chunk_count(d) // 2)}

    def details(self):
        return {"index_type": self.job["kind"], "filters": "a boolean column each, BITMAP"}

    def load(self):
        self.table = self.api.connect(str(self.index_dir)).open_table(TABLE)

    def use_filter(self, name, rows):
        self.where = None if rows is None else f"{column_of(name)} = true"

    def request(self, query, setting):
        request = self.table.search(query, vector_column_name="vector").distance_type(self.metric)
        request = request.limit(self.job["k"]).select(["id", "_distance"])
        if "nprobe" in setting:
            request = request.nprobes(setting["nprobe"]).refine_factor(setting["refine"])
        if "ef" in setting:
            # It has a list or two for so many rows: all are searched. A beam must hold what is compared.
            ef = max(setting["ef"], REFINE_OF_GRAPHS * self.job["k"])
            request = request.nprobes(100).ef(ef).refine_factor(REFINE_OF_GRAPHS)
        return request.where(self.where, prefilter=True) if self.where else request

    def search(self, queries, setting, threads):
        ids = np.full((len(queries), self.job["k"]), -1, np.int64)
        for i, query in enumerate(queries):
            found = self.request(query, setting).to_arrow()["id"].to_numpy()
            ids[i, :len(found)] = found
        return ids


if __name__ == "__main__":
    serve(LanceDb)
