"""StratANN: vector search for collections that outgrow memory.

Build an index under one RAM budget, open it, and search with a recall target:

>>> import numpy as np, os, stratann, tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> path = os.path.join(folder.name, "index")
>>> base = np.random.default_rng(0).standard_normal((2000, 32), dtype=np.float32)
>>> report = stratann.build(base, path, metric="l2", ram_budget="1GiB")
>>> index = stratann.open(path)
>>> r = index.search(base[:5], k=10, recall=0.95)
>>> r.ids.shape, r.ids.dtype, r.distances.dtype
((5, 10), dtype('uint64'), dtype('float32'))
>>> index.close()
>>> folder.cleanup()
"""

from . import filters
from ._arrays import read_vectors, write_vectors
from ._async import AsyncClient, AsyncCollection, AsyncJob
from ._build import BuildReport, Neighbors, build, groundtruth
from ._changes import Changes, delete
from ._client import IndexClient, connect
from ._collections import Collection
from ._database import Client
from ._errors import (
    BudgetError,
    BusyError,
    ChangeError,
    CorruptIndexError,
    DiskError,
    Error,
    InputError,
    KeywordError,
    MissingError,
    QueryError,
    ServerError,
    UnknownOutcomeError,
    WorkerError,
)
from ._found import FoundPoints, Hit
from ._index import Index
from ._jobs import Job, JobProgress
from ._named import VectorSpec
from ._open import open, open_memory
from ._points import Count, Deleted, Page, PayloadChanged, Point, Upserted, VectorsChanged
from ._results import SearchResult
from ._stratann import __version__
from ._together import search_together

__all__ = [
    "AsyncClient",
    "AsyncCollection",
    "AsyncJob",
    "BudgetError",
    "BuildReport",
    "BusyError",
    "ChangeError",
    "Changes",
    "Client",
    "Collection",
    "CorruptIndexError",
    "Count",
    "Deleted",
    "DiskError",
    "Error",
    "FoundPoints",
    "Hit",
    "Index",
    "IndexClient",
    "InputError",
    "Job",
    "JobProgress",
    "KeywordError",
    "MissingError",
    "Neighbors",
    "Page",
    "PayloadChanged",
    "Point",
    "QueryError",
    "SearchResult",
    "ServerError",
    "UnknownOutcomeError",
    "Upserted",
    "VectorSpec",
    "VectorsChanged",
    "WorkerError",
    "__version__",
    "build",
    "connect",
    "delete",
    "filters",
    "groundtruth",
    "open",
    "open_memory",
    "read_vectors",
    "search_together",
    "write_vectors",
]
