"""SVS in memory (scalable-vs): a Vamana graph over vectors in LVQ codes, which only Intel's processors search."""
from importlib.metadata import version

import numpy as np

from peers.worker import Peer, serve

# As its own documentation recommends for this degree: alpha above one for distances, below one for products.
DEGREE, BUILD_WINDOW = 64, 200
ALPHA_L2, ALPHA_PRODUCT = 1.2, 0.95
PADDING_BYTES = 32
PARTS = ("config", "graph", "data")


class Svs(Peer):
    def __init__(self, job):
        import svs
        super().__init__(job)
        self.api = svs
        self.is_l2 = job["metric"] == "l2"
        # Cosine sets arrive normalised, so inner product gives their order.
        self.distance = svs.DistanceType.L2 if self.is_l2 else svs.DistanceType.MIP
        self.layout = {"padding": PADDING_BYTES, "strategy": svs.LVQStrategy.Turbo}

    def version(self):
        return version("scalable-vs")

    def alpha(self):
        return ALPHA_L2 if self.is_l2 else ALPHA_PRODUCT

    def build(self, base):
        rows = self.index_dir / "rows.fvecs"
        self.api.write_vecs(np.ascontiguousarray(base, np.float32), str(rows))
        loader = self.api.VectorDataLoader(str(rows), self.api.DataType.float32, dims=base.shape[1])
        codes = self.api.LVQLoader(loader, primary=self.job["primary"], residual=self.job["residual"], **self.layout)
        settings = self.api.VamanaBuildParameters(alpha=self.alpha(), graph_max_degree=DEGREE,
                                                  window_size=BUILD_WINDOW)
        index = self.api.Vamana.build(settings, codes, self.distance, num_threads=self.job["threads"])
        rows.unlink()
        index.save(*(str(self.index_dir / part) for part in PARTS))

    def details(self):
        return {"graph_max_degree": DEGREE, "window_size": BUILD_WINDOW, "alpha": self.alpha(),
                "lvq": f"{self.job['primary']}x{self.job['residual']}", "layout": "turbo, padded to 32 bytes"}

    def load(self):
        config, graph, data = (str(self.index_dir / part) for part in PARTS)
        self.index = self.api.Vamana(config, self.api.GraphLoader(graph), self.api.LVQLoader(data, **self.layout),
                                     self.distance, num_threads=self.job["threads"])

    def search(self, queries, setting, threads):
        if self.index.num_threads != threads:
            self.index.num_threads = threads
        parameters = self.index.search_parameters
        parameters.buffer_config = self.api.SearchBufferConfig(setting["window"])
        self.index.search_parameters = parameters
        return self.index.search(queries, self.job["k"])[0].astype(np.int64)


if __name__ == "__main__":
    serve(Svs)
