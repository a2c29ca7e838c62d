"""A StratANN collection in this process."""
from engines.worker import Engine, serve

COLLECTION = "rows"


class StratAnn(Engine):
    promise = "each batch survives a power failure when its call has returned"

    def __init__(self, job):
        import stratann
        from database_rows import FIELDS
        super().__init__(job)
        self.api, self.client, self.collection = stratann, None, None
        self.schema = dict.fromkeys(FIELDS, "keyword")

    def version(self):
        return self.api.__version__

    def details(self):
        return {"dtype": self.job["dtype"], "kind": "auto", "threads": 1, "ready": "compact()",
                "filters": "keyword fields of the schema", "effort": "recall"}

    def create(self):
        self.client = self.api.Client(self.folder, threads=1)
        self.collection = self.client.create_collection(COLLECTION, dim=self.job["dim"], metric=self.job["metric"],
                                                        dtype=self.job["dtype"])
        self.collection.set_schema(self.schema)

    def write(self, ids, rows, payloads):
        self.collection.upsert(ids, self.typed(rows), payload=payloads)

    def typed(self, rows):
        return rows.astype(self.job["dtype"], copy=False)

    def delete(self, ids):
        self.collection.delete(ids)

    def make_ready(self):
        self.collection.compact()

    def open(self):
        self.client = self.api.Client(self.folder, threads=1)
        self.collection = self.client.collection(COLLECTION)

    def close(self):
        if self.client is not None:
            self.client.close()

    def matching(self, only):
        return only and {"must": [{"key": only.field, "match": {"value": only.value}}]}

    def search_one(self, query, only, setting):
        return self.search_many(query[None], only, setting)[0]

    def search_many(self, queries, only, setting):
        return self.collection.search(self.typed(queries), k=self.job["k"], recall=setting["recall"],
                                      filter=self.matching(only)).ids

    def log_paths(self):
        """The log of the newest points, and what is kept free for a full disk."""
        return [self.folder / "reserve", *(self.folder / "db").glob("*.jnl")]


if __name__ == "__main__":
    serve(StratAnn)
