"""What is compared: kinds of StratANN and peers, the data form each needs, and the settings each is swept over."""
from dataclasses import dataclass, field

EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NPROBE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
SEARCH_LIST = (10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 80, 100, 150)
MEMORY_LIST = (10, 13, 17, 22, 29, 38, 50, 66, 90, 128, 180)
GRID_NPROBE = (2, 4, 8, 16, 25, 36, 50, 66, 100, 150)
RECALLS = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)
# The same search under two names: what differs between them is noise.
TWINS = ("stratann-disk-graph", "stratann-disk-graph-again")


@dataclass(frozen=True)
class KindSpec:
    """StratANN with one kind of index and one way to search it."""

    name: str
    kind: str
    storage: str                     # "memory" or "disk"
    settings: tuple                  # the knob and its values; the keys are options of `stratann search`
    search: tuple = ()
    has_code_bytes: bool = False     # built with --code-bytes of the comparison instead of its default
    is_serial: bool = False          # one query in flight also under load

    @property
    def index(self):
        """Name of its folder; contenders that search the same index share it."""
        return f"stratann-{self.kind}" + ("-codes" if self.has_code_bytes else "")


@dataclass(frozen=True)
class PeerSpec:
    name: str
    module: str
    storage: str                     # "memory" or "disk"
    settings: tuple
    dtypes: tuple = ("float32",)     # what it takes as it is (l2 only); anything else is converted to float32
    venv: str = ".venv"
    options: dict = field(default_factory=dict, hash=False)
    is_hnsw: bool = False
    has_columns: bool = False        # its index has a column for each filter


def sweep(name, values):
    return tuple({name: v} for v in values)


def kinds(k):
    """StratANN's contenders. Recall is the knob of kinds in which it sets several parameters at once."""
    lists, on_disk = (sweep("search_list", [v for v in vs if v >= k]) for vs in (MEMORY_LIST, SEARCH_LIST))
    recalls = sweep("recall", RECALLS)
    graph, again = (KindSpec(name, "disk-graph", "memory", lists) for name in TWINS)
    return (
        graph,
        KindSpec("stratann-flat", "flat", "memory", ({"recall": 1},)),
        # What it learns from queries that are asked again and again would be no fair figure.
        KindSpec("stratann-hybrid-ivf", "hybrid-ivf", "memory", recalls, ("--no-learning",)),
        KindSpec("stratann-grid-ivf", "grid-ivf", "memory", sweep("nprobe", GRID_NPROBE)),
        KindSpec("stratann-gpu-ivf", "gpu-ivf", "memory", recalls, ("--scorer", "cpu")),
        KindSpec("stratann-remote-hnsw", "remote-hnsw", "memory", recalls),
        KindSpec("stratann-from-disk", "disk-graph", "disk", on_disk, has_code_bytes=True),
        KindSpec("stratann-from-disk-one-in-flight", "disk-graph", "disk", on_disk, ("--in-flight", "1"),
                 has_code_bytes=True, is_serial=True),
        again,
    )


def peers(k, beam_width=4):
    """All peers, in the order of the report, with sweeps fit for k neighbours."""
    ef = sweep("ef", [v for v in EF if v >= k])
    windows = sweep("window", [v for v in EF if v >= k])
    return (
        PeerSpec("diskann", "diskann_peer", "disk",
                 tuple({"search_list": v, "beam_width": beam_width} for v in SEARCH_LIST if v >= k),
                 dtypes=("float32", "uint8", "int8"), venv=".venv-diskann"),
        PeerSpec("faiss-ivf-flat", "faiss_peer", "memory", sweep("nprobe", NPROBE), options={"kind": "ivf-flat"}),
        PeerSpec("faiss-ivf-pq", "faiss_peer", "memory",
                 tuple({"nprobe": v, "k_factor": f} for f in (2, 4, 16) for v in NPROBE),
                 options={"kind": "ivf-pq"}),
        PeerSpec("faiss-hnsw", "faiss_peer", "memory", ef, options={"kind": "hnsw"}, is_hnsw=True),
        PeerSpec("hnswlib-16", "hnswlib_peer", "memory", ef, options={"m": 16}, is_hnsw=True),
        PeerSpec("hnswlib-32", "hnswlib_peer", "memory", ef, options={"m": 32}, is_hnsw=True),
        PeerSpec("usearch", "usearch_peer", "memory", ef, is_hnsw=True),
        PeerSpec("svs-lvq8", "svs_peer", "memory", windows, options={"primary": 8, "residual": 0}),
        PeerSpec("svs-lvq4x8", "svs_peer", "memory", windows, options={"primary": 4, "residual": 8}),
        PeerSpec("symphonyqg", "symphonyqg_peer", "memory", ef),
    )


def select(option, text, specs):
    """Those named in a comma-separated list: `all`, `none`, a full name, or a family such as `faiss`."""
    chosen = []
    for word in text.split(","):
        hits = [s for s in specs if word == "all" or f"{s.name}-".startswith((f"{word}-", f"stratann-{word}-"))]
        if not hits and word != "none":
            raise ValueError(f"{option}: there is no '{word}'; use all, none or {', '.join(s.name for s in specs)}")
        chosen += hits
    return [s for s in specs if s in chosen]


def thinned(settings, step):
    """Every `step`-th setting, the first and the last included."""
    return settings if len(settings) < 3 else (*settings[:-1:step], settings[-1])
