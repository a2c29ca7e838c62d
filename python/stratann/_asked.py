"""Requests of a client: what is asked, as a URL and a body."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

#: The type of a body of vectors as bytes.
OCTETS = "application/octet-stream"


class Ids(NamedTuple):
    """Ids of rows that queries may return, or may not."""

    is_without: bool
    #: Whether each query has a list of its own.
    each: bool
    lists: list[list[int]]


class Asked(NamedTuple):
    """How queries are searched."""

    #: The parameters of a URL.
    parameters: str
    ids: Ids | None
    #: A filter over payloads: JSON, or text.
    filter: bytes | str | None = None

    def request(self, rows: NDArray[Any], numbers: list[int], cached: str | None) -> tuple[str, bytes, str]:
        """Returns path, body and type of a request with the queries of these numbers. Ids and filters
        would not fit into a URL: they are in a body of JSON, a list for all queries once.
        """
        own = rows[numbers]
        if self.ids is None and self.filter is None:
            more = "" if cached is None else f"&cached={cached}"
            return f"/v1/search?{self.parameters}{more}", own.tobytes(), OCTETS
        # Doubles have all digits, so that a server that rounds finds the same number.
        own = own.astype(np.float64) if own.dtype.kind == "f" else own
        fields: dict[str, Any] = {"queries": own.tolist()}
        if self.ids is not None:
            lists = [self.ids.lists[number] for number in numbers] if self.ids.each else self.ids.lists[0]
            fields["without" if self.ids.is_without else "only"] = lists
        if isinstance(self.filter, bytes):
            fields["filter"] = json.loads(self.filter)
        elif self.filter is not None:
            fields["where"] = self.filter
        for name, text in parse_qsl(self.parameters):
            try:
                fields[name] = json.loads(text)
            except ValueError:
                fields[name] = text
        if cached is not None:
            fields["cached"] = cached
        return "/v1/search", json.dumps(fields).encode(), "application/json"


def results_min(said: dict[str, Any] | None, k: int) -> int:
    """Returns how many results a query has at least, by what is said of its filter."""
    if said is None:
        return k
    return min(k, said["matches"]) if said["matches_exact"] else 0
