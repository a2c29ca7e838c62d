"""Qdrant Edge: the shard engine of Qdrant in this process. HNSW, and an indexed tag for each filter."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, bind_to_cores, column_of, serve

HNSW_M, HNSW_BUILD_LIST = 16, 200
# Its own defaults: filters that match vectors of fewer KiB are scanned, and segments of more are indexed.
FULL_SCAN_KIB, INDEXING_KIB = 10_000, 1_000
BLOCK_ROWS = 5000
TAGS = "tags"


class Qdrant(Peer):
    def __init__(self, job):
        bind_to_cores(job["threads"])
        import qdrant_edge
        super().__init__(job)
        self.api, self.filter, self.shard = qdrant_edge, None, None

    def version(self):
        return version("qdrant-edge-py")

    def build(self, base):
        q = self.api
        distance = {"l2": q.Distance.Euclid, "cosine": q.Distance.Cosine, "ip": q.Distance.Dot}[self.job["metric"]]
        graph = q.HnswIndexConfig(HNSW_M, HNSW_BUILD_LIST, FULL_SCAN_KIB, max_indexing_threads=self.job["threads"])
        config = q.EdgeConfig(
            vectors=q.EdgeVectorParams(base.shape[1], distance, memory=q.Memory.Pinned), hnsw_config=graph,
            optimizers=q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=INDEXING_KIB))
        shard = q.EdgeShard.create(str(self.index_dir), config)
        shard.update(q.UpdateOperation.create_field_index(TAGS, q.PayloadSchemaType.Keyword))
        tags = self.tags(len(base))
        for start in range(0, len(base), BLOCK_ROWS):
            block = np.ascontiguousarray(base[start:start + BLOCK_ROWS], np.float32)
            points = [q.Point(start + i, row.tolist(), {TAGS: tags[start + i]}) for i, row in enumerate(block)]
            shard.update(q.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
        shard.close()

    def tags(self, n):
        """Names of the filters that each row matches."""
        tags = [[] for _ in range(n)]
        for name, path in self.job["filters"].items():
            for row in np.load(path).tolist():
                tags[row].append(column_of(name))
        return tags

    def details(self):
        return {"m": HNSW_M, "ef_construct": HNSW_BUILD_LIST, "full_scan_threshold": FULL_SCAN_KIB,
                "filters": "tags with a keyword index"}

    def load(self):
        self.shard = self.api.EdgeShard.load(str(self.index_dir))

    def use_filter(self, name, rows):
        q = self.api
        self.filter = None
        if rows is not None:
            self.filter = q.Filter(must=[q.FieldCondition(TAGS, match=q.MatchValue(column_of(name)))])

    def search(self, queries, setting, threads):
        q, k = self.api, self.job["k"]
        params = q.SearchParams(hnsw_ef=setting["ef"])
        ids = np.full((len(queries), k), -1, np.int64)
        for i, query in enumerate(queries):
            found = self.shard.query(q.QueryRequest(k, query=q.Query.Nearest(query.tolist()), filter=self.filter,
                                                    params=params))
            ids[i, :len(found)] = [hit.id for hit in found]
        return ids


if __name__ == "__main__":
    serve(Qdrant)
