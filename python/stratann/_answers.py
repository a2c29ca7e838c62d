"""Answers of servers as arrays and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._errors import plain
from ._points import shown
from ._remote import id_of_json
from ._results import SearchResult

_Json = dict[str, Any]


def collected(
    answers: list[_Json], columns: int, seconds: float, params: _Json
) -> tuple[SearchResult, list[tuple[int, str]]]:
    """Converts answers to arrays and statistics. Returns also the failed queries with their reasons."""
    count = len(answers)
    ids = _no_ids(answers, columns)
    distances = np.full((count, columns), np.inf, dtype=np.float32)
    counts = np.zeros(count, dtype=np.uint32)
    latency_us = np.zeros(count, dtype=np.float64)
    failed = []
    totals: dict[str, int] = {}
    for i, answer in enumerate(answers):
        if "error" in answer:
            failed.append((i, plain(str(answer["error"]))))
            continue
        counts[i] = found = len(answer["ids"])
        for rank, one in enumerate(answer["ids"]):
            # Through int, because float64 would round ids above 2**53.
            ids[i, rank] = shown(id_of_json(one)) if answer.get("any_ids") else int(one)
        distances[i, :found] = answer["distances"]
        latency_us[i] = answer["latency_us"]
        for name, value in answer["per_query"].items():
            totals[name] = totals.get(name, 0) + value
    stats = {
        "queries": count,
        "seconds": seconds,
        "qps": count / max(seconds, 1e-9),
        "latency_us": _latencies(latency_us),
        "params": params,
        "per_query": {name: value / count for name, value in totals.items()},
        "totals": totals,
        "partial": sum(bool(a.get("partial")) for a in answers),
    }
    has_payloads = any("payloads" in answer for answer in answers)
    payloads = [answer.get("payloads", []) for answer in answers] if has_payloads else None
    unindexed = list(dict.fromkeys(one for answer in answers for one in answer.get("unindexed", ())))
    return SearchResult(ids, distances, latency_us, stats, counts, payloads, unindexed), failed


def _no_ids(answers: list[_Json], columns: int) -> NDArray[Any]:
    """Ids before there are any: of objects, where some id of the index is no number."""
    shape = len(answers), columns
    if any(answer.get("any_ids") for answer in answers):
        return np.full(shape, None, object)
    return np.full(shape, np.iinfo(np.uint64).max, dtype=np.uint64)


def _latencies(latency_us: NDArray[np.float64]) -> dict[str, float]:
    ordered, count = np.sort(latency_us), len(latency_us)

    def percentile(share: float) -> float:
        return float(ordered[max(int(np.ceil(share * count)) - 1, 0)])

    return {
        "mean": float(latency_us.mean()),
        "p50": percentile(0.5),
        "p95": percentile(0.95),
        "p99": percentile(0.99),
    }
