"""Qdrant Edge: the shard engine of Qdrant in this process. HNSW, and keyword indexes of payload fields."""
import time
from importlib.metadata import version

from engines.worker import HNSW_BUILD_LIST, HNSW_M, Engine, serve

# Filters that match vectors of fewer KiB are scanned (its default), and segments of more get a graph.
FULL_SCAN_KIB, INDEXING_KIB = 10_000, 1_000


class Qdrant(Engine):
    promise = ("each batch survives a power failure when flush(), which is called after each, has returned; its log is "
               "not flushed before")
    flush_seconds = 0.0

    def __init__(self, job):
        import qdrant_edge
        from database_rows import FIELDS
        super().__init__(job)
        self.api, self.shard, self.fields = qdrant_edge, None, list(FIELDS)

    def version(self):
        return version("qdrant-edge-py")

    def details(self):
        return {"m": HNSW_M, "ef_construct": HNSW_BUILD_LIST, "full_scan_threshold": FULL_SCAN_KIB, "segments": 1,
                "vectors": "pinned in memory", "threads": 1, "durable": "flush() after each batch",
                "ready": "optimize(), flush()", "filters": "keyword indexes", "effort": "hnsw_ef"}

    def create(self):
        q = self.api
        distance = {"l2": q.Distance.Euclid, "cosine": q.Distance.Cosine, "ip": q.Distance.Dot}[self.job["metric"]]
        graph = q.HnswIndexConfig(HNSW_M, HNSW_BUILD_LIST, FULL_SCAN_KIB, max_indexing_threads=1)
        config = q.EdgeConfig(
            vectors=q.EdgeVectorParams(self.job["dim"], distance, memory=q.Memory.Pinned), hnsw_config=graph,
            optimizers=q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=INDEXING_KIB),
            max_search_threads=1)
        self.shard = q.EdgeShard.create(str(self.folder), config)
        for field in self.fields:
            self.shard.update(q.UpdateOperation.create_field_index(field, q.PayloadSchemaType.Keyword))

    def write(self, ids, rows, payloads):
        q = self.api
        points = [q.Point(int(i), row, payload) for i, row, payload in zip(ids, rows.tolist(), payloads, strict=True)]
        self.shard.update(q.UpdateOperation.upsert_points(points))
        self.flush()

    def flush(self):
        start = time.perf_counter()
        self.shard.flush()
        self.flush_seconds += time.perf_counter() - start

    def delete(self, ids):
        self.shard.update(self.api.UpdateOperation.delete_points(ids.tolist()))
        self.flush()

    def make_ready(self):
        while self.shard.optimize():
            pass
        self.shard.flush()

    def open(self):
        self.shard = self.api.EdgeShard.load(str(self.folder))

    def close(self):
        if self.shard is not None:
            self.shard.close()
            self.shard = None

    def request(self, query, only, setting):
        q, matching = self.api, None
        if only:
            matching = q.Filter(must=[q.FieldCondition(only.field, match=q.MatchValue(only.value))])
        return q.QueryRequest(self.job["k"], query=q.Query.Nearest(query.tolist()), filter=matching,
                              params=q.SearchParams(hnsw_ef=setting["ef"]))

    def search_one(self, query, only, setting):
        return [hit.id for hit in self.shard.query(self.request(query, only, setting))]

    def search_many(self, queries, only, setting):
        requests = [self.request(query, only, setting) for query in queries]
        found = self.shard.query_batch(self.api.QueryBatchRequest(requests))
        return [[hit.id for hit in hits] for hits in found]

    def log_paths(self):
        return [self.folder / "wal"]


if __name__ == "__main__":
    serve(Qdrant)
