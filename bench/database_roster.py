"""What takes part in the benchmark of databases, and the efforts each is swept over, in rising order."""
from dataclasses import dataclass, field

from roster import sweep

RECALLS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1000)
# Every setting of these takes a long call for each query.
FEW_EF = (16, 32, 64, 128, 256, 512, 1024)
NPROBES = (4, 8, 16, 32, 64, 128, 256, 512)
REFINE = 10
SHORT = {"float32": "f32", "float16": "f16", "uint8": "u8", "int8": "i8"}
OWN = "stratann"


@dataclass(frozen=True)
class EngineSpec:
    """A database with one way to index its vectors."""

    name: str
    module: str
    settings: tuple
    options: dict = field(default_factory=dict, hash=False)
    venv: str = ".venv"


def engines(k, dtype):
    """All databases get float32; StratANN also the data's own type, under a second name."""
    ef, few_ef = (sweep("ef", [v for v in values if v >= k]) for values in (EF, FEW_EF))
    recalls = sweep("recall", RECALLS)
    own = [EngineSpec(OWN, "stratann_engine", recalls, {"dtype": "float32"})]
    if dtype != "float32":
        own.append(EngineSpec(f"{OWN}-{SHORT[dtype]}", "stratann_engine", recalls, {"dtype": dtype}))
    return (
        *own,
        EngineSpec("milvus-lite", "milvus_engine", few_ef),
        EngineSpec("lancedb-ivf-hnsw", "lancedb_engine", few_ef, {"index": "IVF_HNSW_SQ"}),
        EngineSpec("lancedb-ivf-pq", "lancedb_engine", tuple({"nprobes": v, "refine": REFINE} for v in NPROBES),
                   {"index": "IVF_PQ"}),
        EngineSpec("qdrant-edge", "qdrant_engine", ef),
        EngineSpec("postgres-pgvector", "postgres_engine", ef),
    )
