"""Milvus Lite in this process: HNSW, and a boolean field for each filter. Its engine is Python over faiss."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, bind_to_cores, column_of, serve

COLLECTION = "rows"
METRICS = {"l2": "L2", "cosine": "COSINE", "ip": "IP"}
HNSW_M, HNSW_BUILD_LIST = 16, 200
BLOCK_ROWS = 5000


class Milvus(Peer):
    def __init__(self, job):
        bind_to_cores(job["threads"])
        import milvus_lite  # noqa: F401
        import pymilvus
        super().__init__(job)
        self.api, self.metric, self.expression = pymilvus, METRICS[job["metric"]], ""

    def version(self):
        return version("milvus-lite")

    def connect(self):
        return self.api.MilvusClient(str(self.index_dir / "rows.db"))

    def build(self, base):
        client, types = self.connect(), self.api.DataType
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", types.INT64, is_primary=True)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=base.shape[1])
        masks = {}
        for name, path in self.job["filters"].items():
            schema.add_field(column_of(name), types.BOOL)
            masks[column_of(name)] = np.isin(np.arange(len(base)), np.load(path).astype(np.int64))
        index = client.prepare_index_params()
        index.add_index("vector", index_type="HNSW", metric_type=self.metric,
                        params={"M": HNSW_M, "efConstruction": HNSW_BUILD_LIST})
        client.create_collection(COLLECTION, schema=schema, index_params=index)
        for start in range(0, len(base), BLOCK_ROWS):
            block = np.ascontiguousarray(base[start:start + BLOCK_ROWS], np.float32)
            client.insert(COLLECTION, [
                {"id": start + i, "vector": row, **{name: bool(mask[start + i]) for name, mask in masks.items()}}
                for i, row in enumerate(block)])
        client.flush(COLLECTION)
        client.close()

    def details(self):
        return {"M": HNSW_M, "efConstruction": HNSW_BUILD_LIST, "filters": "a boolean field each"}

    def load(self):
        self.client = self.connect()
        self.client.load_collection(COLLECTION)

    def use_filter(self, name, rows):
        self.expression = "" if rows is None else f"{column_of(name)} == true"

    def search(self, queries, setting, threads):
        found = self.client.search(COLLECTION, data=list(queries), limit=self.job["k"], filter=self.expression,
                                   search_params={"metric_type": self.metric, "params": {"ef": setting["ef"]}})
        ids = np.full((len(queries), self.job["k"]), -1, np.int64)
        for i, hits in enumerate(found):
            ids[i, :len(hits)] = [hit["id"] for hit in hits]
        return ids


if __name__ == "__main__":
    serve(Milvus)
