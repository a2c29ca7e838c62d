"""What takes part in the benchmark of filters, and the settings each is swept over, in the order of rising effort."""
from roster import KindSpec, PeerSpec, sweep

# StratANN runs all of its settings, the others until one reaches the highest recall.
RECALLS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
SEARCH_LIST = (10, 14, 20, 28, 40, 60, 90, 180, 400)
FEW_NPROBE = (2, 4, 8, 16, 32, 64)
NPROBE = (2, 4, 8, 16, 32, 64, 128)
LISTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
# Every setting of a database takes a Python call for each query.
FEW_EF = (16, 32, 64, 128, 256, 512, 1024)
FEW_LISTS = (1, 2, 4, 8, 16, 32, 64, 128)


def kinds(k):
    """StratANN's contenders. Each is asked for recalls, and for efforts."""
    recalls = sweep("recall", RECALLS)
    return (
        KindSpec("stratann-disk-graph", "disk-graph", "memory",
                 recalls + sweep("search_list", [v for v in SEARCH_LIST if v >= k])),
        KindSpec("stratann-hybrid-ivf", "hybrid-ivf", "memory", recalls + sweep("nprobe", FEW_NPROBE),
                 ("--no-learning",)),
        KindSpec("stratann-gpu-ivf", "gpu-ivf", "memory", recalls + sweep("nprobe", NPROBE), ("--scorer", "cpu")),
        KindSpec("stratann-grid-ivf", "grid-ivf", "memory", recalls + sweep("nprobe", NPROBE)),
        KindSpec("stratann-flat", "flat", "memory", ({"recall": 1},)),
    )


def peers(k):
    ef, few_ef = (sweep("ef", [v for v in values if v >= k]) for values in (EF, FEW_EF))
    once = ({},)
    return (
        PeerSpec("faiss-ivf-flat", "faiss_peer", "memory", sweep("nprobe", LISTS), options={"kind": "ivf-flat"}),
        PeerSpec("faiss-hnsw", "faiss_peer", "memory", ef, options={"kind": "hnsw"}, is_hnsw=True),
        PeerSpec("hnswlib-16", "hnswlib_peer", "memory", ef, options={"m": 16}, is_hnsw=True),
        PeerSpec("lancedb-ivf-pq", "lancedb_peer", "disk",
                 tuple({"nprobe": v, "refine": f} for f in (4, 20) for v in FEW_LISTS), options={"kind": "IVF_PQ"},
                 has_columns=True),
        PeerSpec("lancedb-ivf-hnsw", "lancedb_peer", "disk", few_ef, options={"kind": "IVF_HNSW_SQ"},
                 has_columns=True),
        PeerSpec("milvus-lite", "milvus_peer", "memory", few_ef, has_columns=True),
        PeerSpec("qdrant-edge", "qdrant_peer", "memory", few_ef, has_columns=True),
        PeerSpec("scan-faiss", "faiss_peer", "memory", once, options={"kind": "flat"}),
        PeerSpec("scan-numpy", "scan_peer", "memory", once, options={"is_batch": False}),
        PeerSpec("scan-numpy-batch", "scan_peer", "memory", once, options={"is_batch": True}),
    )
