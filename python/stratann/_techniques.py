"""Arguments of a search: its effort, and techniques that can be switched to compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import real, whole
from ._errors import InputError

#: Rows of lists that a query in a grid-ivf visits at a time, at most.
_FAN_OUT_MAX = 64


def effort(
    k: int,
    recall: float | None,
    search_list: int | None,
    nprobe: int | None,
    early_stop: float | None,
    stop_slack: float | None,
) -> dict[str, Any]:
    """Checks the types of how much a search does."""
    return {
        "k": whole(k, "k"),
        "recall": real(recall, "recall"),
        "search_list": whole(search_list, "search_list"),
        "nprobe": whole(nprobe, "nprobe"),
        "early_stop": real(early_stop, "early_stop"),
        "stop_slack": real(stop_slack, "stop_slack"),
    }


def grid_techniques(
    prune_dimension: bool = True,
    prune_vector: bool = True,
    prewarm: bool = True,
    fan_out: int = 1,
    static_order: bool = False,
    balance: bool = True,
    pipeline: bool = True,
) -> dict[str, Any]:
    """Checks the switches of a search in a grid-ivf."""
    switches = {
        "prune_dimension": prune_dimension,
        "prune_vector": prune_vector,
        "prewarm": prewarm,
        "static_order": static_order,
        "balance": balance,
        "pipeline": pipeline,
    }
    for name, value in switches.items():
        if not isinstance(value, (bool, np.bool_)):
            raise InputError(f"{name} is {value!r}; give True or False")
    if isinstance(fan_out, bool) or not isinstance(fan_out, (int, np.integer)) or not 1 <= fan_out <= _FAN_OUT_MAX:
        raise InputError(f"fan_out is {fan_out!r}; give 1 to {_FAN_OUT_MAX}")
    return {**{name: bool(value) for name, value in switches.items()}, "fan_out": int(fan_out)}


def remote_techniques(
    ef: int | None = None, batch: int | None = None, doorbell: int | None = None
) -> dict[str, Any]:
    """Checks the types of the numbers of a search in a remote-hnsw; the engine checks the range of `ef`."""
    return {"ef": whole(ef, "ef"), "batch": whole(batch, "batch", 1), "doorbell": whole(doorbell, "doorbell", 1)}


def gpu_techniques(
    baseline: str | None = None,
    rule: str | None = None,
    candidates: int | None = None,
    batch_size: int | None = None,
    epsilon_stop: float | None = None,
    beta: int | None = None,
    margin: float | None = None,
) -> dict[str, Any]:
    """Checks the types of the switches of a search in a gpu-ivf; the engine checks names and ranges."""
    for name, value in {"baseline": baseline, "rule": rule}.items():
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} is {value!r}; give a name")
    return {
        "baseline": baseline,
        "rule": rule,
        "candidates": whole(candidates, "candidates"),
        "batch_size": whole(batch_size, "batch_size"),
        "epsilon_stop": real(epsilon_stop, "epsilon_stop"),
        "beta": whole(beta, "beta"),
        "margin": real(margin, "margin"),
    }
