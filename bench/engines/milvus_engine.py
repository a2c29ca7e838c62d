"""Milvus Lite in this process: HNSW by faiss, and inverted indexes of scalar fields. Its engine is Python."""
from importlib.metadata import version

from engines.worker import HNSW_BUILD_LIST, HNSW_M, Engine, serve

COLLECTION = "rows"
METRICS = {"l2": "L2", "cosine": "COSINE", "ip": "IP"}


class Milvus(Engine):
    promise = ("each batch is in a log that is not flushed: it survives the end of the process, and a power failure "
               "only after flush()")

    def __init__(self, job):
        import milvus_lite  # noqa: F401
        import pymilvus
        from database_rows import FIELDS
        super().__init__(job)
        self.api, self.client, self.fields = pymilvus, None, list(FIELDS)
        self.metric = METRICS[job["metric"]]

    def version(self):
        return version("milvus-lite")

    def details(self):
        return {"M": HNSW_M, "efConstruction": HNSW_BUILD_LIST,
                "ready": "flush(), close(), which waits for its indexes, and opened again",
                "compact": "the same: it merges segments by itself", "filters": "INVERTED indexes", "effort": "ef"}

    def connect(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.client = self.api.MilvusClient(str(self.folder / "rows.db"))

    def create(self):
        self.connect()
        client, types = self.client, self.api.DataType
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", types.INT64, is_primary=True)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=self.job["dim"])
        for field in self.fields:
            schema.add_field(field, types.VARCHAR, max_length=16)
        schema.add_field("price", types.DOUBLE)
        schema.add_field("title", types.VARCHAR, max_length=256)
        index = client.prepare_index_params()
        index.add_index("vector", index_type="HNSW", metric_type=self.metric,
                        params={"M": HNSW_M, "efConstruction": HNSW_BUILD_LIST})
        for field in self.fields:
            index.add_index(field, index_type="INVERTED")
        client.create_collection(COLLECTION, schema=schema, index_params=index)

    def records(self, ids, rows, payloads):
        return [{"id": int(i), "vector": row} | payload for i, row, payload in zip(ids, rows, payloads, strict=True)]

    def write(self, ids, rows, payloads):
        self.client.insert(COLLECTION, self.records(ids, rows, payloads))

    def overwrite(self, ids, rows, payloads):
        self.client.upsert(COLLECTION, self.records(ids, rows, payloads))

    def delete(self, ids):
        self.client.delete(COLLECTION, ids=ids.tolist())

    def make_ready(self):
        """Indexes are built in the background; closing is the call of the client that waits for them."""
        self.client.flush(COLLECTION)
        self.close()
        self.open()

    def open(self):
        self.connect()
        self.client.load_collection(COLLECTION)

    def close(self):
        if self.client is not None:
            self.client.close()
            self.client = None

    def search_one(self, query, only, setting):
        return self.search_many(query[None], only, setting)[0]

    def search_many(self, queries, only, setting):
        found = self.client.search(COLLECTION, data=list(queries), limit=self.job["k"], anns_field="vector",
                                   filter=f'{only.field} == "{only.value}"' if only else "",
                                   search_params={"metric_type": self.metric, "params": {"ef": setting["ef"]}})
        return [[hit["id"] for hit in hits] for hits in found]


if __name__ == "__main__":
    serve(Milvus)
