"""Points for an index that keeps their ids and payloads, as the compiled half takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import Path, fixed, is_path, source
from ._errors import InputError
from ._inputs import Payloads
from ._payloads import payload_list, payloads_as_json
from ._points import ids_of

#: Payloads of rows, whether a file has some, or names of its columns.
KeptPayloads = Union[Payloads, Sequence[str], bool]

#: Ends of names of files of points.
_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".arrows", ".jsonl", ".ndjson")


def point_source(base: ArrayLike | Path, ids: Any, payload: Any, vector_column: Any) -> tuple[Any, ...]:
    """Returns a file with its columns of ids, vectors and payloads, or vectors with an id and a payload for each row.

    Raises:
        InputError: what does not go together, ids that are none, or payloads that JSON does not have.
    """
    if payload is None:
        raise InputError("schema and vector_column go with payloads; pass payload, too (True for those of a file)")
    if _is_file(base) and _is_choice(payload) and (ids is None or isinstance(ids, str)):
        return fixed(base), ids, _name(vector_column), _columns(payload)  # type: ignore[arg-type]
    if vector_column is not None:
        raise InputError("vector_column is a column of a file of points, such as .parquet or .jsonl; leave it out")
    if isinstance(payload, (bool, np.bool_)):
        if payload:
            raise InputError(
                "payload is True, and base has no columns of payloads; pass a list with a dict or None for each row, "
                "or False for ids alone"
            )
        payloads = None
    else:
        payloads = payloads_as_json(payload_list(payload, "row"))
    return source(base, "base"), None if ids is None else ids_of(ids), payloads


def _is_file(base: Any) -> bool:
    return is_path(base) and os.fspath(base).lower().endswith(_SUFFIXES)


def _is_choice(payload: Any) -> bool:
    """Whether payloads are chosen among columns, rather than given."""
    if isinstance(payload, (list, tuple)):
        return all(isinstance(name, str) for name in payload)
    return isinstance(payload, (bool, np.bool_, str))


def _columns(payload: Any) -> list[str] | None:
    """Names of columns of payloads; None for all."""
    if isinstance(payload, (bool, np.bool_)):
        return None if payload else []
    if isinstance(payload, str):
        raise InputError(f"payload is {payload!r}; pass a list of names of columns, or True for all")
    return [str(name) for name in payload]


def _name(column: Any) -> str | None:
    if column is not None and not isinstance(column, str):
        raise InputError(f"vector_column is of type {type(column).__name__}; pass the name of a column")
    return column
