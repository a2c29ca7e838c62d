"""The peers that are compared, the data form each needs, and the settings each is swept over."""
from dataclasses import dataclass, field

EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NPROBE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
SEARCH_LIST = (10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 80, 100, 150)


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


def _ef(k):
    return tuple({"ef": v} for v in EF if v >= k)


def roster(k, beam_width=4):
    """All peers, in the order of the report, with sweeps fit for k neighbours."""
    return (
        PeerSpec("diskann", "diskann_peer", "disk",
                 tuple({"search_list": v, "beam_width": beam_width} for v in SEARCH_LIST if v >= k),
                 dtypes=("float32", "uint8", "int8"), venv=".venv-diskann"),
        PeerSpec("faiss-ivf-flat", "faiss_peer", "memory", tuple({"nprobe": v} for v in NPROBE),
                 options={"kind": "ivf-flat"}),
        PeerSpec("faiss-ivf-pq", "faiss_peer", "memory",
                 tuple({"nprobe": v, "k_factor": f} for f in (4, 16) for v in NPROBE),
                 options={"kind": "ivf-pq"}),
        PeerSpec("faiss-hnsw", "faiss_peer", "memory", _ef(k), options={"kind": "hnsw"}, is_hnsw=True),
        PeerSpec("hnswlib", "hnswlib_peer", "memory", _ef(k), is_hnsw=True),
        PeerSpec("usearch", "usearch_peer", "memory", _ef(k), is_hnsw=True),
    )


def select(text, specs):
    """The peers named in a comma-separated list: `all`, `none`, a full name, or a family such as `faiss`."""
    chosen = []
    for word in text.split(","):
        hits = [s for s in specs if word in ("all", s.name) or s.name.startswith(word + "-")]
        if not hits and word != "none":
            raise ValueError(f"--peers: no peer '{word}'; use all, none or {', '.join(s.name for s in specs)}")
        chosen += hits
    return [s for s in specs if s in chosen]
