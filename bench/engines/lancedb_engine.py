"""LanceDB on a local folder: an inverted file of codes, or of small graphs, and indexes of scalar columns."""
import os
from datetime import timedelta
from importlib.metadata import version

from peers.faiss_peer import chunk_count, list_count

from engines.worker import HNSW_BUILD_LIST, HNSW_M, Engine, serve

TABLE = "rows"
METRICS = {"l2": "l2", "cosine": "cosine", "ip": "dot"}
# Columns with more values than this have a B-tree: a bitmap is for few.
BITMAP_VALUES = 100
# Of a list's graph, so many candidates for each result are compared with full vectors.
REFINE_OF_GRAPHS = 3
READY = timedelta(minutes=15)


class LanceDb(Engine):
    promise = "each batch is a version of files that are not flushed: it survives the end of the process"

    def __init__(self, job):
        for name in ("LANCE_CPU_THREADS", "TOKIO_WORKER_THREADS", "RAYON_NUM_THREADS"):
            os.environ[name] = "1"
        # With one it waits for itself while it writes. The process has one core.
        os.environ["LANCE_IO_THREADS"] = "2"
        import lancedb
        import pyarrow
        from database_rows import FIELDS
        super().__init__(job)
        self.api, self.arrow, self.fields = lancedb, pyarrow, FIELDS
        self.metric, self.table, self.n, self.is_indexed = METRICS[job["metric"]], None, job["rows"], False
        vector = pyarrow.list_(pyarrow.float32(), job["dim"])
        self.schema = pyarrow.schema([("id", pyarrow.int64()), ("vector", vector),
                                      *((field, pyarrow.string()) for field in FIELDS),
                                      ("price", pyarrow.float64()), ("title", pyarrow.string())])

    def version(self):
        return version("lancedb")

    def details(self):
        effort = "nprobes, refine_factor" if self.job["index"] == "IVF_PQ" else "ef"
        return self.shape() | {"index_type": self.job["index"], "threads": "1, for I/O 2",
                               "filters": "BITMAP indexes, BTREE of of_1000", "ready": "create_index, optimize()",
                               "compact": "optimize(cleanup_older_than=0)", "effort": effort}

    def shape(self):
        """Lists as many as faiss gets, and a byte of codes for four dimensions; graphs with usual parameters."""
        if self.job["index"] == "IVF_PQ":
            codes = max(1, chunk_count(self.job["dim"]) // 2)
            return {"num_partitions": list_count(self.n), "num_sub_vectors": codes}
        return {"m": HNSW_M, "ef_construction": HNSW_BUILD_LIST}

    def create(self):
        self.table = self.api.connect(str(self.folder)).create_table(TABLE, schema=self.schema)

    def records(self, ids, rows, payloads):
        pa = self.arrow
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        names = [*self.fields, "price", "title"]
        return pa.table([pa.array(ids), vectors, *(pa.array([p[name] for p in payloads]) for name in names)],
                        schema=self.schema)

    def write(self, ids, rows, payloads):
        self.table.add(self.records(ids, rows, payloads))

    def overwrite(self, ids, rows, payloads):
        change = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        change.execute(self.records(ids, rows, payloads))

    def delete(self, ids):
        self.table.delete(f"id IN ({', '.join(map(str, ids.tolist()))})")

    def make_ready(self):
        self.table.optimize(cleanup_older_than=timedelta(0))
        if not self.is_indexed:
            self.build_indexes()

    def build_indexes(self):
        self.table.create_index(metric=self.metric, vector_column_name="vector", index_type=self.job["index"],
                                **self.shape())
        for field, values in self.fields.items():
            self.table.create_scalar_index(field, index_type="BITMAP" if values <= BITMAP_VALUES else "BTREE")
        self.table.create_scalar_index("id", index_type="BTREE")
        self.table.wait_for_index([f"{name}_idx" for name in ("vector", "id", *self.fields)], timeout=READY)
        self.table.optimize(cleanup_older_than=timedelta(0))
        self.is_indexed = True

    def open(self):
        self.table = self.api.connect(str(self.folder)).open_table(TABLE)
        self.is_indexed = True

    def close(self):
        self.table = None

    def request(self, query, only, setting):
        request = self.table.search(query, vector_column_name="vector").distance_type(self.metric)
        request = request.limit(self.job["k"]).select(["id", "_distance"])
        if "nprobes" in setting:
            request = request.nprobes(setting["nprobes"]).refine_factor(setting["refine"])
        if "ef" in setting:
            # It has a list or two for so many rows: all are searched. A beam must hold what is compared.
            ef = max(setting["ef"], REFINE_OF_GRAPHS * self.job["k"])
            request = request.nprobes(100).ef(ef).refine_factor(REFINE_OF_GRAPHS)
        return request.where(f"{only.field} = '{only.value}'", prefilter=True) if only else request

    def search_one(self, query, only, setting):
        return self.request(query, only, setting).to_arrow()["id"].to_pylist()

    def search_many(self, queries, only, setting):
        found = self.request(list(queries), only, setting).to_arrow()
        ids = [[] for _ in queries]
        if len(queries) == 1:
            return [found["id"].to_pylist()]
        for at, i in zip(found["query_index"].to_pylist(), found["id"].to_pylist(), strict=True):
            ids[at].append(i)
        return ids


if __name__ == "__main__":
    serve(LanceDb)
