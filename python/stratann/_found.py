"""Results of a search of a collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._inputs import Payload
from ._payloads import loaded
from ._points import Id, shown
from ._tables import Tabular


@dataclass(frozen=True, eq=False)
class Hit:
    """A point that a search found."""

    #: Its id.
    id: Id
    #: Squared l2, minus the inner product, or one minus the cosine. Smaller is nearer.
    distance: float
    #: The l2 distance, of which smaller is nearer; the inner product or the cosine, of which larger is nearer.
    score: float
    #: Its payload, with ``with_payload``; None for a point without fields.
    payload: Payload | None = None
    #: Its vector as it was given, with ``with_vectors``.
    vector: NDArray[Any] | None = None

    def __repr__(self) -> str:
        more = "" if self.payload is None else f", {len(self.payload)} fields"
        return f"<stratann.Hit {self.id!r}: distance {self.distance:.6g}, score {self.score:.6g}{more}>"


@dataclass(frozen=True, eq=False)
class FoundPoints(Tabular, Sequence[list[Hit]]):
    """The nearest points of each query, closest first. It is a sequence with a list of `Hit` for each query.

    As a table it has a row for each hit, with the columns ``query``, ``rank``, ``id``, ``distance``, ``score``, and
    where they were asked for ``payload`` and ``vector``.
    """

    #: For each query a list of up to k ids: int, str or uuid.UUID.
    ids: list[list[Id]]
    #: Distances, shape (nq, k), float32: squared l2, minus the inner product, or one minus the cosine. Infinite past
    #: the ids of a query.
    distances: NDArray[np.float32]
    #: Number of the newest change that the search saw. It saw all earlier ones.
    seq: int
    #: For each query the payloads of its ids, as the search saw them: a dict, or None for a point without fields. None
    #: without ``with_payload``.
    payloads: list[list[Payload | None]] | None = None
    #: Conditions of the filter for which payloads were read, for want of an index: the field, and what to do.
    unindexed: list[str] = field(default_factory=list)
    #: For each query the vectors of its ids, as the search saw them. None without ``with_vectors``.
    vectors: list[list[NDArray[Any]]] | None = None
    #: ``"l2"``, ``"ip"`` or ``"cosine"``.
    metric: str = "l2"

    @property
    def scores(self) -> NDArray[np.float32]:
        """Scores, shape (nq, k), float32: the l2 distance, the inner product or the cosine. Past the ids of a query
        infinite for l2, else minus infinite.
        """
        if self.metric == "l2":
            return np.sqrt(np.maximum(self.distances, 0))
        return (np.float32(1) if self.metric == "cosine" else np.float32(0)) - self.distances

    def hits(self, query: int) -> list[Hit]:
        """Returns the results of a query, closest first.

        Raises:
            IndexError: there is no such query.
        """
        ids = self.ids[query]
        distances, scores = self.distances[query].tolist(), self.scores[query].tolist()
        payloads = [None] * len(ids) if self.payloads is None else self.payloads[query]
        vectors: Sequence[NDArray[Any] | None] = [None] * len(ids) if self.vectors is None else self.vectors[query]
        return [Hit(*own) for own in zip(ids, distances, scores, payloads, vectors)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, query: Any) -> Any:
        if isinstance(query, slice):
            return [self.hits(own) for own in range(*query.indices(len(self)))]
        return self.hits(query)

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self.hits(query) for query in range(len(self)))

    def __repr__(self) -> str:
        most = max(map(len, self.ids), default=0)
        return f"<stratann.FoundPoints: {len(self.ids)} queries, up to {most} hits each, seq {self.seq}>"

    def _columns(self) -> dict[str, list[Any]]:
        rows = [(query, rank, hit) for query, hits in enumerate(self) for rank, hit in enumerate(hits)]
        columns: dict[str, list[Any]] = {"query": [row[0] for row in rows], "rank": [row[1] for row in rows]}
        names = ["id", "distance", "score"]
        names += ["payload"] if self.payloads is not None else []
        names += ["vector"] if self.vectors is not None else []
        for name in names:
            columns[name] = [getattr(row[2], name) for row in rows]
        return columns


def found_of(parts: list[Any], k: int, of: tuple[str, np.dtype[Any]]) -> FoundPoints:
    """Joins the results of several parts of the queries. `of` has the metric and the type of a component."""
    metric, dtype = of
    ids = [[shown(id_) for id_ in own] for part in parts for own in part[1]]
    distances = np.full((len(ids), k), np.inf, np.float32)
    payloads: list[list[Payload | None]] = []
    vectors: list[list[NDArray[Any]]] = []
    query = 0
    for _, of_queries, flat, own_payloads, own_vectors, _ in parts:
        at = 0
        for own in of_queries:
            end = at + len(own)
            distances[query, : len(own)] = flat[at:end]
            if own_payloads is not None:
                payloads.append([loaded(one) for one in own_payloads[at:end]])
            if own_vectors is not None:
                vectors.append([one.view(dtype) for one in own_vectors[at:end]])
            query, at = query + 1, end
    with_payload, with_vectors = (any(part[place] is not None for part in parts) for place in (3, 4))
    unindexed = list(dict.fromkeys(one for part in parts for one in part[5]))
    return FoundPoints(
        ids,
        distances,
        parts[-1][0],
        payloads if with_payload else None,
        unindexed,
        vectors if with_vectors else None,
        metric,
    )
